"""Data sheets: figures that NVIDIA prints, looked up by name, replaced by measured ones."""

import dataclasses
import math

import pytest

from cugraphs.gpu_specs import GPU_SPECS, gpu_spec


@pytest.mark.parametrize(
    ("name", "tb_per_s", "tflops", "gb", "num_sms"),
    [
        ("a100", 2.039, 312, 80, 108),
        ("h100", 3.35, 989, 80, 132),
        ("h200", 4.8, 989, 141, 132),
        ("b200", 7.7, 2250, 180, 148),
        ("l4", 0.3, 121, 24, 58),
        ("l40s", 0.864, 362, 48, 142),
        ("rtx3090", 0.936, 71, 24, 82),
        ("rtx4090", 1.008, 165.2, 24, 128),
        ("rtx5090", 1.792, 209.5, 32, 170),
    ],
)
def test_figures_of_the_data_sheets(name, tb_per_s, tflops, gb, num_sms):
    spec = gpu_spec(name)
    assert spec.read_bytes_per_s == pytest.approx(tb_per_s * 1e12)
    assert spec.flops_per_s == pytest.approx(tflops * 1e12)
    assert (spec.memory_bytes, spec.num_sms) == (gb * 10**9, num_sms)


@pytest.mark.parametrize("spec", GPU_SPECS.values(), ids=GPU_SPECS)
def test_every_figure_has_a_source(spec):
    for field in ("read_bytes_per_s", "flops_per_s", "memory_bytes", "num_sms", "l2_bytes"):
        assert spec.source(field)


@pytest.mark.parametrize("name", ["RTX 4090", "rtx-4090", "Rtx_4090", "rtx4090"])
def test_spelling_does_not_matter(name):
    assert gpu_spec(name) is GPU_SPECS["rtx4090"]


def test_an_unknown_gpu_is_refused_with_those_known():
    with pytest.raises(
        ValueError, match=r"^gpu: 'h300' is not known, expected one of a100, .*h200"
    ):
        gpu_spec("h300")


def test_measured_figures_stand_in_place_of_the_sheets():
    spec = gpu_spec("h200").with_figures("measured", read_bytes_per_s=4.466e12, flops_per_s=None)
    assert (spec.read_bytes_per_s, spec.flops_per_s) == (4.466e12, 989e12)
    assert spec.source("read_bytes_per_s") == "measured"
    assert "data sheet" in spec.source("flops_per_s")
    assert spec.with_figures("given", memory_bytes=10**9).replaced == {
        "read_bytes_per_s": "measured",
        "memory_bytes": "given",
    }


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_impossible_figures_are_refused(value):
    with pytest.raises(ValueError, match=r"GpuSpec: flops_per_s is .*, expected a positive"):
        dataclasses.replace(gpu_spec("l4"), flops_per_s=value)
