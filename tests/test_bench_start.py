"""cugraphs bench load and start without a GPU, and what they stand on: checkpoints, spans."""

import importlib
import json
import sys
import types

import numpy as np
import pytest
from test_weight_loading import LateDevice
from tiny_model import write_tiny_model

from cugraphs import load_bench, start_bench
from cugraphs.arena import allocate_arrays
from cugraphs.checkpoint import Checkpoint
from cugraphs.cli import bench_load, bench_session, main
from cugraphs.kernel_loading import launched_functions, load_kernels
from cugraphs.kv_cache import KVCacheShape
from cugraphs.lone_import import import_alone
from cugraphs.model_runner import ModelRunner
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.weights import check_tensors, checkpoint_shapes
from cugraphs.program import Kind
from cugraphs.random_checkpoint import write_random_checkpoint
from cugraphs.start_bench import merge_spans
from cugraphs.start_times import SPANS, span
from cugraphs.step_plan import StepPlan
from cugraphs.tokenizer import Tokenizer

SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 700,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "hidden_act": "silu",
}


def config_of(config):
    return LlamaConfig.from_hf(config, "small")


# ------------------------------------------------------------------------------ random checkpoints


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("shard_bytes", "files"), [(1 << 30, 1), (100_000, 3)])
def test_a_random_checkpoint_is_a_whole_model(tmp_path, dtype, shard_bytes, files):
    shapes = checkpoint_shapes(config_of(SMALL))
    write_random_checkpoint(tmp_path / "m", SMALL, shapes, dtype=dtype, shard_bytes=shard_bytes)
    with Checkpoint.open(tmp_path / "m") as checkpoint:
        config = LlamaConfig.from_hf(checkpoint.config, "small")
        check_tensors(checkpoint.tensors, config, "small")
        assert config.dtype == dtype and (len(checkpoint.files) == 1) == (files == 1)
        assert all(view.dtype == dtype for view in checkpoint.tensors.values())
        embedding = checkpoint.tensors["model.embed_tokens.weight"].array().astype(np.float32)
        assert 0.018 < embedding.std() < 0.022 and len(np.unique(embedding, axis=0)) == 700
        norm = checkpoint.tensors["model.norm.weight"].array().astype(np.float32)
        assert 0.9 < norm.min() < norm.max() < 1.1
    tokenizer = Tokenizer.load(tmp_path / "m", SMALL, {})
    assert tokenizer.vocab_size == 700
    assert tokenizer.decode(tokenizer.encode("a small model")) == "a small model"


def test_a_checkpoint_that_is_there_is_taken_and_another_is_written_over_it(tmp_path):
    folder, shapes = tmp_path / "m", checkpoint_shapes(config_of(SMALL))
    write_random_checkpoint(folder, SMALL, shapes)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    write_random_checkpoint(folder, SMALL, shapes)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    wider = {**SMALL, "vocab_size": 900}
    write_random_checkpoint(folder, wider, checkpoint_shapes(config_of(wider)))
    with Checkpoint.open(folder) as checkpoint:
        assert checkpoint.tensors["lm_head.weight"].shape == (900, 32)


# ------------------------------------------------------------------------------------------- spans


def test_spans_of_one_name_are_one_phase():
    spans = [
        ("import", "MainThread", 10.0, 10.5),
        ("weights", "reader 0", 10.6, 11.0),
        ("load a<1>", "MainThread", 10.7, 10.8),
        ("weights", "reader 1", 10.5, 10.9),
        ("load b", "MainThread", 11.0, 11.2),
        ("compile b", "kernels 3", 10.75, 10.9),
    ]
    found = [
        (p.name, round(p.begin_ms), round(p.end_ms), round(p.busy_ms), p.count, p.in_thread)
        for p in merge_spans(spans, 9.9)
    ]
    assert found == [
        ("import", 100, 600, 500, 1, False),
        ("weights", 600, 1100, 800, 2, True),
        ("load kernels", 800, 1300, 300, 2, False),
        ("compile kernels", 850, 1000, 150, 1, True),
    ]


def test_a_span_is_recorded_though_it_fails():
    with pytest.raises(ValueError, match="no"), span("a part of the test"):
        raise ValueError("no")
    found = SPANS.pop()
    assert found.name == "a part of the test" and found.begin_s <= found.end_s
    assert found.thread == "MainThread"


# ------------------------------------------------------------------------------------- benchmarks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["load", "--shape", "llama-3.2-1b", "--repeats", "0"], "--repeats is 0, expected 1 to"),
        (["load", "--shape", "llama-3.2-1b", "--chunk-kib", "0"], "--chunk-kib is 0, expected 1"),
        (["load", "--shape", "llama"], "shape: 'llama' is not known, expected one of"),
        (["load", "demo", "--folder", "there"], "--folder is given with a model, expected --shape"),
        (["start", "--shape", "llama-3.2-1b", "--runs", "0"], "--runs is 0, expected 1 to 1,000"),
        (["start", "no/such/folder/here"], "no/such/folder/here"),
        (["start", "demo", "--plot", "start.jpg"], "start.jpg ends in '.jpg', expected .png"),
        (["start", "demo", "--json", "/no/such/f.json"], "is in no folder that exists"),
        (
            ["start", "demo", "--device", "cpu", "--max-model-len", "1"],
            "the start fails: ValueError: LLM: max_model_len is 1, expected an integer of at least",
        ),
    ],
)
def test_a_mistake_is_one_line(capsys, arguments, message):
    assert main(["bench", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("cugraphs: error: ") and message in err


@pytest.mark.parametrize("benchmark", ["start", "load"])
def test_without_a_driver_no_checkpoint_is_written(benchmark, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("cugraphs.cuda_availability.has_driver", lambda: False)
    folder = tmp_path / "there"
    options = ["--shape", "smollm2-135m", "--folder", str(folder)]
    assert main(["bench", benchmark, *options]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "libcuda.so.1 is not found" in err
    assert not folder.exists()
    assert main(["bench", benchmark, "demo"]) == 2
    assert capsys.readouterr().err.startswith("cugraphs: error: cuda: libcuda.so.1 is not found")


def test_a_start_that_does_not_end_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(start_bench, "_LIMIT_S", 0.01)
    assert main(["bench", "start", "demo", "--device", "cpu", "--dtype", "float32"]) == 2
    err = capsys.readouterr().err
    assert err == "cugraphs: error: bench: the start has not ended after 0 s\n"


def test_a_start_is_told_from_the_process_to_the_first_token(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="needs matplotlib (extra plot)")
    folder = write_tiny_model(tmp_path / "tiny")
    files = {name: tmp_path / f"start.{name}" for name in ("json", "png")}
    options = ["--device", "cpu", "--dtype", "float32", "--runs", "1"]
    outputs = ["--json", str(files["json"]), "--plot", str(files["png"])]
    assert main(["bench", "start", str(folder), *options, *outputs]) == 0
    out = capsys.readouterr().out
    assert "import cugraphs" in out and "first start ever: first token after" in out
    record = json.loads(files["json"].read_text())
    for start in (record["first"], *record["cached"]):
        phases = {phase["name"]: phase for phase in start["phases"]}
        main_line = ["Python", "import cugraphs", "tokenizer", "plan", "arena", "first token"]
        begins = [phases[name]["begin_ms"] for name in main_line]
        assert begins == sorted(begins) and begins[0] == 0
        whole = phases["LLM"]
        assert whole["begin_ms"] <= phases["weights"]["begin_ms"]
        assert phases["weights"]["end_ms"] <= whole["end_ms"] and phases["weights"]["in_thread"]
        assert start["first_token_ms"] == phases["first token"]["end_ms"] < start["exit_ms"]
    assert files["png"].read_bytes().startswith(b"\x89PNG")


def test_loading_stands_beside_a_pinned_copy_and_the_page_cache(tmp_path, monkeypatch, capsys):
    folder, file = write_tiny_model(tmp_path / "tiny"), tmp_path / "load.json"
    device = LateDevice()
    device.stream = types.SimpleNamespace(synchronize=lambda: None)
    machine = dict.fromkeys(
        ("gpu", "driver", "driver_cuda", "cupy", "cuda_bindings", "cublaslt", "python"), "1.0"
    )
    monkeypatch.setattr(bench_session, "CudaDevice", lambda: device)
    monkeypatch.setattr(bench_session, "describe_machine", lambda device: machine)
    monkeypatch.setattr(load_bench, "pinned_copy_rate", lambda device: 1e9)
    monkeypatch.setattr(bench_load, "check_cuda", lambda: None)
    options = ["--dtype", "float32", "--repeats", "3", "--readers", "2", "--json", str(file)]
    assert main(["bench", "load", str(folder), *options]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "weights of a checkpoint; mode 2 threads, two buffers of 4,096 KiB each" in out
    assert "a plain copy from pinned memory │ 1.0 │" in out and "median of 3" in out
    record = json.loads(file.read_text())
    with Checkpoint.open(folder) as checkpoint:
        assert record["times"]["checkpoint_bytes"] == checkpoint.nbytes
    median_s = sorted(record["times"]["load_s"])[1]
    rate = record["times"]["checkpoint_bytes"] / median_s
    assert record["load_bytes_per_s"] == pytest.approx(rate)
    assert record["share"] == pytest.approx(rate / 1e9)
    assert not device.holds


def test_reading_counts_every_byte_of_the_files(tmp_path, monkeypatch):
    files = [tmp_path / "a", tmp_path / "b"]
    for file, nbytes in zip(files, (10_001, 5_000), strict=True):
        file.write_bytes(bytes(nbytes))
    ticks = iter([1.0, 3.0])
    monkeypatch.setattr(load_bench.time, "perf_counter", lambda: next(ticks))
    assert load_bench.read_rate(files, 3, 4096) == 15_001 / 2


# ------------------------------------------------------------------------------ kernels of a start


class NotedDevice(LateDevice):
    """Notes which programs a runner wants to bind, and whether it has written before."""

    def __init__(self):
        super().__init__()
        self.done = []

    def load_kernels(self, programs):
        self.programs = programs
        self.done.append("load_kernels")

    def write(self, target, values):
        super().write(target, values)
        self.done.append("write")


def tiny_plan():
    model = Llama(config_of(SMALL), "bfloat16")
    cache = KVCacheShape(2, 9, 2, 16, 8, "bfloat16", 64)
    return StepPlan(model, cache, vocab_size=700, max_num_seqs=8, max_num_batched_tokens=64)


def tiny_runner(plan, device, mode):
    shapes = {
        buffer.name: buffer.type
        for planned in plan.programs
        for buffer in planned.program.of_kind(Kind.WEIGHT)
    }
    return ModelRunner(plan, allocate_arrays(shapes, device.allocate_bytes), device, mode=mode)


def test_what_waits_for_the_weights_comes_last():
    device, plan = NotedDevice(), tiny_plan()
    runner = tiny_runner(plan, device, "full")
    assert device.done == ["load_kernels", "write"]
    for name, expected in runner.mirror.fields.items():  # and no step has written it before
        np.testing.assert_array_equal(runner.state[name], expected)


def test_every_function_of_a_start_is_loaded_once_with_all_its_shared_memory():
    plan = tiny_plan()
    programs = [(plan.decode[plan.ladder.class_for(r)].program, {"rows": r}) for r in (1, 8)]
    expected = launched_functions(programs, "sm_90")
    loaded = []
    load_kernels([*programs, *programs], "sm_90", lambda *what: loaded.append(what))
    assert sorted(map(str, loaded)) == sorted(
        str((*function, nbytes)) for function, amounts in expected.items() for nbytes in amounts
    )
    names = {function.split("<")[0] for _, function, _ in expected}
    assert {"begin_rows", "rms_norm", "add_rms_norm", "sample_few_rows", "advance"} <= names
    assert all(arch.rstrip("a") == "sm_90" for _, _, arch in expected)


def test_a_kernel_that_does_not_compile_is_the_callers_error():
    plan = tiny_plan()
    program = plan.decode[plan.ladder.class_for(1)].program

    def load(source, function, arch, shared_bytes):
        if function == "advance":
            raise ValueError("advance.cu:3: expected a ';'")

    with pytest.raises(ValueError, match=r"advance\.cu:3"):
        load_kernels([(program, {"rows": 1})], "sm_90", load)


@pytest.mark.parametrize(("mode", "tokens"), [("full", {64}), ("full_and_piecewise", {1, 16, 64})])
def test_a_runner_asks_for_the_sizes_that_it_will_capture_and_a_long_prompt(mode, tokens):
    device, plan = NotedDevice(), tiny_plan()
    tiny_runner(plan, device, mode)
    asked = [(program.name, sizes) for program, sizes in device.programs]
    rows = {sizes["rows"] for _, sizes in asked if "rows" in sizes}
    assert rows == set(plan.ladder.rungs)
    assert tokens <= {sizes["tokens"] for name, sizes in asked if name == "mixed"}
    assert ("changes", {}) in asked
    prompts = [sizes["logits"] for _, sizes in asked if sizes.get("tokens") == 64]
    assert {1, 2, 4, 8} <= set(prompts)


# --------------------------------------------------------------------------------- a module alone


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that takes long to import, with a module that needs none of it."""
    inner = tmp_path / "heavy_one" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "heavy_one" / "__init__.py").write_text("loaded = True\n")
    (inner / "__init__.py").write_text("from heavy_one.inner import leaf\n")
    (inner / "leaf.py").write_text("from heavy_one.inner.twig import VALUE\n")
    (inner / "twig.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("heavy_one")]:
        del sys.modules[name]


def test_a_module_comes_without_the_packages_above_it(package):
    leaf = import_alone("heavy_one.inner.leaf")
    assert leaf.VALUE == 7 and "heavy_one" not in sys.modules
    assert import_alone("heavy_one.inner.leaf") is leaf
    whole = importlib.import_module("heavy_one.inner")  # whoever wants it all gets it
    assert whole.leaf is leaf and sys.modules["heavy_one"].loaded


@pytest.mark.parametrize("name", ["heavy_one.inner.nothing", "heavy_one.no.leaf", "no_such.leaf"])
def test_a_module_that_is_not_there_is_an_import_error_and_leaves_nothing(package, name):
    with pytest.raises(ImportError):
        import_alone(name)
    assert "heavy_one" not in sys.modules and "no_such" not in sys.modules
