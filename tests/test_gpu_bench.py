"""cugraphs bench on a GPU, with a tiny model: every benchmark runs, and its record adds up."""

import json

import pytest
from tiny_model import write_tiny_model

from cugraphs.cli import bench_session, main
from cugraphs.gpu_specs import gpu_spec

pytestmark = pytest.mark.gpu


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Runs a benchmark and returns its record; ceilings are not measured anew each time."""
    monkeypatch.setattr(bench_session, "measure_gpu", lambda device: gpu_spec("h200"))
    folder = str(write_tiny_model(tmp_path / "tiny"))

    def run(name, *options):
        file = tmp_path / f"{name}.json"
        assert main(["bench", name, folder, "--json", str(file), *options]) == 0
        return json.loads(file.read_text())

    return run


def test_capture_reports_every_rung(bench):
    sizes = ["--max-num-seqs", "8", "--max-num-batched-tokens", "64", "--max-model-len", "64"]
    record = bench("capture", *sizes, "--mode", "full_and_piecewise")
    for start in record["starts"]:
        full = [rung for rung in start["rungs"] if rung["kind"] == "full"]
        assert [rung["rows"] for rung in full] == [8, 4, 2, 1]
        pieces = [rung for rung in start["rungs"] if rung["kind"] == "piecewise"]
        assert [rung["rows"] for rung in pieces] == [16, 8, 4, 2, 1]
        for rung in start["rungs"]:
            assert rung["nodes"] > 10 and rung["record_ms"] > 0 and rung["instantiate_ms"] > 0
        assert all(rung["graphs"] == 1 for rung in full)
        assert all(rung["graphs"] > 1 for rung in pieces)
    assert {host["rows"] for host in record["host"]} == {1, 8}
    assert all(host["launch_us"] > 0 and host["queue_us"] > 0 for host in record["host"])


def test_decode_is_timed_by_the_engine_and_by_events(bench):
    record = bench("decode", "--batch", "1", "3", "--prompt", "20", "--tokens", "16")
    for result in record["results"]:
        times = result["times"]
        assert times["replay_ms"] > 0 and times["step_ms"] > 0
        shares = {"step": times["step_ms"], "replay": times["replay_ms"]}
        bounds = [result[f"{name}_share"] * ms for name, ms in shares.items()]
        assert 0 < bounds[0] == pytest.approx(bounds[1])


def test_graphs_and_padding(bench):
    (gain,) = bench("graphs", "--batch", "2", "--prompt", "20", "--tokens", "16")["results"]
    assert gain["eager"]["replay_ms"] is None and gain["graph"]["replay_ms"] > 0
    (padded,) = bench("padding", "--pair", "3:8", "--context", "20")["results"]
    assert padded["exact_ms"] > 0 and padded["padded_ms"] > 0 and padded["added_bytes"] > 0


def test_prefill_is_timed_eager_and_in_pieces(bench):
    options = ["--prompt", "5", "40", "--chunk", "16", "64", "--runs", "2"]
    results = bench("prefill", *options)["results"]
    assert [(r["prompt_tokens"], r["chunk_tokens"]) for r in results] == [
        (5, 16),
        (40, 16),
        (5, 64),
        (40, 64),
    ]
    for result in results:
        assert result["eager_ms"] > 0 and result["pieces_ms"] > 0
        assert 0 < result["bound_ms"] < result["eager_ms"]
