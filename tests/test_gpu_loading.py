"""Loading and starting on a GPU: the bytes that arrive, and what an end half way leaves."""

import json
import logging
import os
import threading

import numpy as np
import pytest
from test_bench_start import SMALL, config_of
from tiny_model import write_tiny_model

from cugraphs import LLM, SamplingParams, launch
from cugraphs.checkpoint import Checkpoint
from cugraphs.cli import main
from cugraphs.models.rope import cos_sin_table
from cugraphs.models.weights import (
    ROPE_COS_SIN,
    begin_loading,
    checkpoint_shapes,
    weight_table,
)
from cugraphs.random_checkpoint import write_random_checkpoint

pytestmark = pytest.mark.gpu

# 80 MB in several files: large enough to be ended half way.
LARGE = {**SMALL, "vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 4096}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large") / "model"
    shapes = checkpoint_shapes(config_of(LARGE))
    write_random_checkpoint(folder, LARGE, shapes, dtype="bfloat16", shard_bytes=40 << 20)
    return folder


def begin(device, folder, dtype="bfloat16", **options):
    checkpoint = Checkpoint.open(folder)
    return begin_loading(checkpoint.tensors, config_of(LARGE), dtype, 64, device, **options)


def bits(array):
    return array.view(np.uint8)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("options", [{}, {"readers": 3, "chunk_bytes": 1_000_000}])
def test_every_weight_has_the_bits_of_the_checkpoint(device, folder, dtype, options):
    weights, loading = begin(device, folder, dtype, **options)
    with loading:
        pass
    with Checkpoint.open(folder) as checkpoint:
        for name, weight in weight_table(config_of(LARGE)).items():
            parts = [checkpoint.tensors[part].array() for part, _ in weight.parts]
            found = device.read(weights[name])
            assert np.array_equal(bits(found), bits(np.concatenate(parts).astype(found.dtype)))
    table = cos_sin_table(config_of(LARGE).rope, config_of(LARGE).head_dim, 64)
    assert np.array_equal(device.read(weights[ROPE_COS_SIN]), table)


class Stop(Exception):
    """Ends a loading from its own progress."""


@pytest.mark.parametrize("kind", [Stop, KeyboardInterrupt, "a file that is cut short"])
def test_an_end_half_way_leaves_nothing_allocated(device, tmp_path, held, kind):
    folder = tmp_path / "m"
    shapes = checkpoint_shapes(config_of(LARGE))
    write_random_checkpoint(folder, LARGE, shapes, dtype="bfloat16", shard_bytes=40 << 20)

    def end(nbytes):
        if kind is Stop:
            raise Stop
        if isinstance(kind, str):
            for file in folder.glob("*.safetensors"):
                os.truncate(file, 1 << 20)

    def attempt():
        weights, loading = begin(device, folder, progress=end, readers=2, chunk_bytes=1 << 18)
        with loading:
            assert weights and held
            if kind is KeyboardInterrupt:
                raise KeyboardInterrupt

    expected = {Stop: Stop, KeyboardInterrupt: KeyboardInterrupt}.get(kind, ValueError)
    with pytest.raises(expected) as caught:
        attempt()
    if expected is ValueError:
        assert "while being read, expected a file at rest" in str(caught.value)
    del caught
    assert not held  # without a collection
    assert not [t for t in threading.enumerate() if t.name.startswith("cugraphs reader")]


@pytest.mark.parametrize("limit_bytes", [0, 1 << 20, 5 << 20])
def test_less_pinned_memory_is_one_line_and_the_same_weights(
    device, folder, monkeypatch, caplog, limit_bytes
):
    import cupy

    pinned = cupy.cuda.PinnedMemory

    def limited(nbytes):
        if nbytes > limit_bytes:
            raise cupy.cuda.runtime.CUDARuntimeError(2)  # cudaErrorMemoryAllocation
        return pinned(nbytes)

    monkeypatch.setattr(cupy.cuda, "PinnedMemory", limited)
    with caplog.at_level(logging.WARNING, "cugraphs"):
        weights, loading = begin(device, folder, readers=2)
        with loading:
            pass
    assert len(caplog.records) == 1 and "pinned memory can" in caplog.text
    with Checkpoint.open(folder) as checkpoint:
        expected = checkpoint.tensors["model.embed_tokens.weight"].array()
    found = device.read(weights["model.embed_tokens.weight"])
    assert np.array_equal(bits(found), bits(expected))


def test_a_start_loads_its_kernels_before_it_binds(monkeypatch):
    """What binding, capture and a first long prompt want has been loaded by then."""
    loaded, wanted = set(), set()
    function = launch._function
    noted = launch.load_function

    def note(*key, build):
        loaded.add((*key, build))
        noted(*key, build=build)

    def want(*key):
        wanted.add(key)
        return function(*key)

    from cugraphs import cuda_device

    monkeypatch.setattr(cuda_device, "load_function", note)
    monkeypatch.setattr(launch, "_function", want)
    launch._plan.cache_clear()
    llm = LLM("demo", device="cuda", dtype="bfloat16", max_num_seqs=4)
    llm.generate(["One day " * 20], SamplingParams(temperature=0, max_tokens=2))
    assert wanted and wanted <= loaded


def test_load_and_start_are_measured(tmp_path, folder, capsys):
    file = tmp_path / "load.json"
    options = ["--repeats", "2", "--readers", "4", "--json", str(file)]
    assert main(["bench", "load", str(folder), *options]) == 0
    record = json.loads(file.read_text())
    assert record["share"] > 0 and record["times"]["page_cache_bytes_per_s"] > 0
    tiny, file = write_tiny_model(tmp_path / "tiny"), tmp_path / "start.json"
    options = ["--runs", "1", "--max-num-seqs", "2", "--json", str(file)]
    assert main(["bench", "start", str(tiny), *options]) == 0
    record = json.loads(file.read_text())
    (cached,) = record["cached"]
    first = {phase["name"] for phase in record["first"]["phases"]}
    again = {phase["name"]: phase for phase in cached["phases"]}
    assert "compile kernels" in first and "compile kernels" not in again
    assert cached["graphs"] > 2 and again["weights"]["in_thread"]
    assert again["kernels"]["end_ms"] <= again["graphs of decode steps"]["begin_ms"]
    assert "kernels cached, median: first token after" in capsys.readouterr().out
