"""cugraphs profile on a GPU, tiny models: every op has a time, and every launch its stamps."""

import json

import pytest
from tiny_model import write_tiny_model

from cugraphs.cli import bench_session, main
from cugraphs.gpu_specs import gpu_spec

pytestmark = pytest.mark.gpu


@pytest.fixture
def profiled(tmp_path, monkeypatch):
    """Runs the command; ceilings are not measured anew each time."""
    monkeypatch.setattr(bench_session, "measure_gpu", lambda device: gpu_spec("h200"))

    def run(*options, config=None):
        folder = str(write_tiny_model(tmp_path / "tiny", config=config))
        file, plot = tmp_path / "profile.json", tmp_path / "profile.png"
        assert main(["profile", folder, "--json", str(file), "--plot", str(plot), *options]) == 0
        assert plot.stat().st_size > 5000
        return json.loads(file.read_text())

    return run


@pytest.mark.parametrize("options", [("--batch", "3", "--prompt", "20"), ("--prefill", "40")])
def test_a_step_is_taken_apart(profiled, options):
    record = profiled(*options)
    profile = record["profile"]
    ops = profile["ops"]
    assert all(op["us"] > 0 and op["ops"] > 0 for op in ops)
    assert any("attention" in op["kernel"] for op in ops)
    assert record["sum_us"] == pytest.approx(sum(op["us"] * op["ops"] for op in ops))
    assert profile["replay_us"] == pytest.approx(record["sum_us"] + record["gap_us"])
    assert profile["stamped_us"] > 0


def test_layers_that_are_one_launch_have_phases(profiled):
    sizes = {"hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 4}
    config = {**sizes, "num_attention_heads": 32, "num_key_value_heads": 8}
    profile = profiled("--batch", "1", "--prompt", "200", config=config)["profile"]
    (op,) = (op for op in profile["ops"] if op["kernel"] == "decode_layer")
    if op["launches"] > 1:
        pytest.skip("layers are one launch on sm_90 alone")
    phases = profile["phases"]
    assert [phase["phase"] for phase in phases] == ["qkv", "attention", "o", "gate_up", "down"]
    assert op["ops"] == 4 and all(phase["ops"] == 4 for phase in phases)
    assert all(phase["busy_us"] > 0 and phase["us"] > 0 for phase in phases)
    assert 4 * sum(phase["us"] for phase in phases) < profile["stamped_us"]
    bytes_of = [phase["cost"]["bytes_accessed"] for phase in phases]
    assert sum(bytes_of) == op["cost"]["bytes_accessed"]
