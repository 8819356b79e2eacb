"""`cugraphs check` with a GPU that is played: what is timed, and how it is shown."""

import dataclasses
import json

import pytest
from conftest import needs_compiler

from cugraphs import gpu_runs
from cugraphs.cli import check, main
from cugraphs.emulation import emulate
from cugraphs.kernel import Cost
from cugraphs.kernel_speed import Ceilings, Speed, three_digits
from cugraphs.kernels import ADD

pytestmark = needs_compiler

# 1 MB in 1 us is 1,000 GB/s: a quarter of what the card reads.
CEILINGS = Ceilings(read_bytes_per_s=4e12, flops_per_s=800e12)
GPU = ["--stage", "gpu", "--dtype", "float32"]


@pytest.fixture
def timed(monkeypatch):
    """The (case, dtype) of every timing; the emulation stands for the GPU."""
    calls = []

    def time_case(device, kernel, case, dtype, arrays):
        assert [array.dtype.name for array in arrays] == [dtype] * len(arrays)
        calls.append((case.name, dtype))
        return Speed(kernel.name, case.name, dtype, 1e-6, Cost(10**6, 1))

    monkeypatch.setattr(gpu_runs, "gpu_runs", lambda: [("eager", emulate)])
    monkeypatch.setattr(check, "CudaDevice", lambda: None)
    monkeypatch.setattr(check, "measure_ceilings", lambda device: CEILINGS)
    monkeypatch.setattr(check, "time_case", time_case)
    return calls


@pytest.fixture
def wrong_add(monkeypatch):
    """`add`, as if its reference doubled the result wherever there are several rows."""

    def reference(a, b):
        (out,) = ADD.reference(a, b)
        return (out if len(out) == 1 else 2 * out,)

    monkeypatch.setattr(check, "ALL", [dataclasses.replace(ADD, reference=reference)])


def test_every_case_is_timed_and_shown_with_its_share(timed, capsys):
    assert main(["check", "add", *GPU]) == 0
    assert timed == [(case.name, "float32") for case in ADD.cases]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-4:] == ["us", "rate", "share", "result"]
    for line in lines[1 : 1 + len(timed)]:
        assert line.split()[-5:] == ["1", "1,000", "GB/s", "25.0%", "passed"]
    (told,) = [line for line in lines if line.startswith("this card reads")]
    assert "reads 4 TB/s" in told and "at 800 TFLOP/s" in told
    assert "Small cases measure launches and caches" in told


def test_json_has_ceilings_and_times(timed, capsys):
    assert main(["check", "add", *GPU, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["ceilings"] == {"read_bytes_per_s": 4e12, "flops_per_s": 8e14}
    assert [speed["case"] for speed in record["speeds"]] == [case.name for case in ADD.cases]
    for speed in record["speeds"]:
        assert speed["us"] == pytest.approx(1) and speed["share"] == pytest.approx(0.25)


def test_a_case_that_failed_is_not_timed(timed, wrong_add, capsys):
    assert main(["check", "add", *GPU, "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    passed = [result["case"] for result in record["results"] if result["passed"]]
    assert record["failed"] > 0 and "one_row" in passed
    assert timed == [(case, "float32") for case in passed]


def test_without_the_gpu_stage_nothing_is_timed(timed, capsys):
    assert main(["check", "add", "--stage", "compile", "--dtype", "float32"]) == 0
    assert timed == []
    out = capsys.readouterr().out
    assert "share" not in out and "this card" not in out


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01234, "0.0123"), (12.345, "12.3"), (999.4, "999"), (999.6, "1,000"), (4012.3, "4,012")],
)
def test_figures_have_three_digits_and_no_exponent(value, text):
    assert three_digits(value) == text
