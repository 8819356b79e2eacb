"""cugraphs profile on a GPU, a tiny model: every op has a time, and every launch its stamps."""

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
    folder = str(write_tiny_model(tmp_path / "tiny"))

    def run(*options):
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
