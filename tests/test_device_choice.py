"""What `LLM` asks of a device, and what it says where a permission has no use."""

import types
from pathlib import Path

import pytest

from cugraphs import LLM, device_choice
from cugraphs.cli import main
from cugraphs.cpu_device import CpuDevice
from cugraphs.device_choice import choose_device, choose_dtype

GPU = types.SimpleNamespace(name="cuda", gpu_name="NVIDIA Toy", shares_host_memory=False)


@pytest.fixture
def asked(monkeypatch):
    """What every GPU device was made with."""
    calls = []

    def make(**options):
        calls.append(options)
        return GPU

    monkeypatch.setattr(device_choice, "CudaDevice", make)
    monkeypatch.setattr(device_choice, "has_driver", lambda: True)
    return calls


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_a_gpu_rounds_to_tf32_only_where_that_is_allowed(asked, device):
    assert choose_device(device) is GPU
    assert choose_device(device, allow_tf32=True, tuning_table="mine.json") is GPU
    assert asked == [
        {"allow_tf32": False, "tuning_table": None},
        {"allow_tf32": True, "tuning_table": Path("mine.json")},
    ]


@pytest.mark.parametrize(
    ("device", "dtype", "says"),
    [
        (CpuDevice(), "auto", ["the CPU does not round to TF32"]),
        (GPU, "auto", ["the dtype is bfloat16, TF32 is of float32 alone"]),
        (GPU, "float16", ["the dtype is float16, TF32 is of float32 alone"]),
        (GPU, "float32", []),
    ],
)
def test_a_permission_that_nothing_can_use_is_said_to_have_no_effect(caplog, device, dtype, says):
    with caplog.at_level("INFO", logger="cugraphs"):
        choose_dtype(dtype, device, "bfloat16", allow_tf32=True)
    found = [m for m in caplog.messages if m.startswith("allow_tf32")]
    assert found == [f"allow_tf32 has no effect: {text}" for text in says]


def test_without_the_permission_nothing_is_said_of_it(caplog):
    with caplog.at_level("INFO", logger="cugraphs"):
        choose_dtype("auto", CpuDevice(), "bfloat16")
    assert "tf32" not in caplog.text


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_table_of_a_gpus_products_is_said_to_have_no_effect_on_the_cpu(
    caplog, monkeypatch, device
):
    monkeypatch.setattr(device_choice, "has_driver", lambda: False)
    with caplog.at_level("INFO", logger="cugraphs"):
        choose_device(device, tuning_table="mine.json")
    assert "tuning_table has no effect: it is of a GPU's matrix products" in caplog.messages
    caplog.clear()
    choose_device(device)
    assert "tuning_table" not in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allow_tf32": 1}, r"^LLM: allow_tf32 is 1, expected True or False$"),
        ({"allow_tf32": "no"}, r"^LLM: allow_tf32 is 'no', expected True or False$"),
        ({"tuning_table": 3}, r"^LLM: tuning_table is 3, expected a path or None$"),
    ],
)
def test_options_of_another_type_are_refused_before_the_model_is_read(folder, options, message):
    with pytest.raises(TypeError, match=message):
        LLM(folder, device="cpu", **options)


def test_the_model_and_the_command_pass_both_options_on(asked, folder, monkeypatch, capsys):
    def stop(*args, **options):
        raise ValueError("far enough")

    monkeypatch.setattr("cugraphs.llm.choose_dtype", stop)
    with pytest.raises(ValueError, match="far enough"):
        LLM(folder, device="cuda", allow_tf32=True, tuning_table="a.json")
    options = ["--device", "cuda", "--allow-tf32", "--tuning-table", "b.json"]
    assert main(["generate", str(folder), "The", *options]) == 2
    assert "far enough" in capsys.readouterr().err
    assert asked == [
        {"allow_tf32": True, "tuning_table": Path("a.json")},
        {"allow_tf32": True, "tuning_table": Path("b.json")},
    ]


def test_the_cpu_computes_the_same_with_the_permission(folder, capsys):
    arguments = ["generate", str(folder), "The quick", "--device", "cpu", "--temperature", "0"]
    outputs = []
    for extra in ([], ["--allow-tf32"]):
        assert main([*arguments, "--max-tokens", "8", *extra]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != ""
