"""cugraphs bench without a GPU: arguments, records, shares, and the steps it drives on the CPU."""

import json
import types

import numpy as np
import pytest
from tiny_model import write_tiny_model

from cugraphs.capture_bench import CaptureTimes, RungCapture
from cugraphs.cli import (
    bench_capture,
    bench_decode,
    bench_graphs,
    bench_padding,
    bench_session,
    main,
)
from cugraphs.cpu_device import CpuDevice
from cugraphs.decode_bench import (
    BenchModel,
    DecodeTimes,
    Queueing,
    RandomCacheRunner,
    length_of,
    stand_in_tokenizer,
    time_engine,
)
from cugraphs.gpu_specs import gpu_spec
from cugraphs.ladder import Ladder
from cugraphs.model_shapes import model_shape
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.random_weights import random_weights
from cugraphs.models.weights import ROPE_COS_SIN, weight_table
from cugraphs.prefill_bench import chunks_of, prefill_work
from cugraphs.random_fill import fill_random

MACHINE = dict.fromkeys(
    ("gpu", "driver", "driver_cuda", "cupy", "cuda_bindings", "cublaslt", "python"), "1.0"
)
H200 = gpu_spec("h200").with_figures("measured", read_bytes_per_s=4.0e12, flops_per_s=8.0e14)
CONFIG = LlamaConfig.from_hf(
    {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "hidden_act": "silu",
    },
    "tiny",
)


@pytest.fixture
def folder(tmp_path):
    return str(write_tiny_model(tmp_path / "tiny"))


@pytest.fixture
def on_cpu(monkeypatch):
    """A GPU's place is taken by the CPU, which captures nothing."""
    device = CpuDevice()
    device.stream = types.SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(bench_session, "CudaDevice", lambda: device)
    monkeypatch.setattr(bench_session, "describe_machine", lambda device: {**MACHINE, "gpu": "Toy"})
    monkeypatch.setattr(bench_session, "measure_gpu", lambda device: H200)
    return device


def tiny(length, device=None):
    device = device or CpuDevice()
    weights = random_weights(CONFIG, "float32", length, device)
    model = Llama(CONFIG, "float32")
    return BenchModel("tiny", model, CONFIG, CONFIG.vocab_size, "float32", length, weights, device)


# -------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decode", "--shape", "llama"], "shape: 'llama' is not known, expected one of llama-3.1-"),
        (
            ["decode", "--shape", "llama-3.2-1b", "--batch", "0"],
            "--batch is 0, expected 1 to 4,096",
        ),
        (["graphs", "--shape", "llama-3.2-1b", "--prompt", "-1"], "--prompt is -1, expected 1 to"),
        (["decode", "--shape", "llama-3.2-1b", "--tokens", "0"], "--tokens is 0, expected 1 to"),
        (
            ["decode", "--shape", "llama-3.2-1b", "--batch", "1", "2", "3", "--prompt", "1", "2"],
            "--prompt has 2 numbers for 3 batches, expected one, or one each",
        ),
        (
            ["decode", "--shape", "smollm2-135m", "--prompt", "8192"],
            "sequences are 8,334 tokens long, expected at most 8,192, the model's limit",
        ),
        (
            ["padding", "--shape", "llama-3.2-1b", "--pair", "8:8"],
            "--pair is '8:8', expected ROWS:RUNG, as 257:272",
        ),
        (
            ["padding", "--shape", "llama-3.2-1b", "--pair", "9"],
            "--pair is '9', expected ROWS:RUNG",
        ),
        (["padding", "--shape", "llama-3.2-1b", "--context", "0"], "--context is 0, expected 1 to"),
        (
            ["capture", "--shape", "llama-3.2-1b", "--max-num-batched-tokens", "64"],
            "--max-num-batched-tokens is 64, expected at least --max-num-seqs, 512",
        ),
        (
            ["capture", "--shape", "llama-3.2-1b", "--json", "/no/such/folder/record.json"],
            "/no/such/folder/record.json is in no folder that exists, expected one",
        ),
        (["decode", "no/such/folder/here"], "no/such/folder/here"),
        (["decode", "--shape", "llama-3.2-1b", "--top-p", "2"], "top_p is 2.0, expected"),
        (["prefill", "--shape", "llama-3.2-1b", "--chunk", "0"], "--chunk is 0, expected 1 to"),
        (
            ["prefill", "--shape", "smollm2-135m", "--prompt", "8192"],
            "sequences are 8,193 tokens long, expected at most 8,192, the model's limit",
        ),
    ],
)
def test_a_mistake_is_one_line(on_cpu, capsys, arguments, message):
    assert main(["bench", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("cugraphs: error: ") and message in err


@pytest.mark.parametrize("benchmark", ["capture", "padding", "graphs", "decode", "prefill"])
def test_without_a_gpu_it_says_so_in_one_line(monkeypatch, capsys, benchmark):
    monkeypatch.setattr("cugraphs.cuda_availability.has_driver", lambda: False)
    assert main(["bench", benchmark, "--shape", "llama-3.1-8b"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("cugraphs: error: cuda: ")


@pytest.mark.parametrize("arguments", [["decode"], [], ["decode", "demo", "--shape", "llama-2-7b"]])
def test_what_is_missing_or_too_much_is_named(capsys, arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["bench", *arguments])
    assert exit_.value.code == 2
    assert "cugraphs bench" in capsys.readouterr().err


# ---------------------------------------------------------------------------------- what is driven


def test_no_prompt_is_computed_and_every_sequence_gets_its_tokens():
    length = length_of(40, 12)
    bench = tiny(length)
    runner = RandomCacheRunner(bench, bench.plan(Ladder(3, [3]), length=length), "none")
    one_by_one = Queueing(steps_ahead=0)
    assert time_engine(runner, batch=3, prompt_tokens=40, tokens=12, queueing=one_by_one) > 0
    counts = runner.counts
    # 8 tokens to warm up and 12 that are timed; the first token of each comes with the prompts.
    assert counts.eager_steps == {"graphs are off": 20}
    assert counts.padding_rows == 0


def test_the_cache_holds_random_numbers_but_for_the_block_of_dead_rows():
    length = length_of(40, 12)
    bench = tiny(length)
    runner = RandomCacheRunner(bench, bench.plan(Ladder(3, [3]), length=length), "none")
    for name in runner.plan.cache.types:
        blocks = runner.state[name]
        assert not blocks[0].any() and (blocks[1:] != 0).mean() > 0.99
        assert abs(blocks[1:].std() - 1) < 0.1


def test_there_is_room_for_every_sequence_to_its_end():
    bench = tiny(length_of(100, 50))
    plan = bench.plan(Ladder(7, [7]), length=length_of(40, 50))
    assert (plan.cache.num_blocks - 1) // 7 * plan.cache.block_size >= length_of(40, 50)
    alone = bench.plan(Ladder(1, [1]), length=length_of(40, 50))  # the engine asks for the longest
    assert (alone.cache.num_blocks - 1) * alone.cache.block_size >= length_of(100, 50)


def test_random_weights_are_those_of_the_model_and_no_two_rows_are_alike():
    weights = random_weights(CONFIG, "bfloat16", 64, CpuDevice())
    assert weights.keys() == {*weight_table(CONFIG), ROPE_COS_SIN}
    matrix = weights["model.layers.0.mlp.gate_up_proj.weight"].astype(np.float32)
    assert matrix.shape == (96, 32) and len({row.tobytes() for row in matrix}) == 96
    assert 0.019 < matrix.std() < 0.021 and abs(matrix.mean()) < 1e-3
    norm = weights["model.layers.0.input_layernorm.weight"].astype(np.float32)
    assert norm.min() > 0.9 and norm.max() < 1.1


def test_an_array_larger_than_the_block_is_filled_to_its_end():
    array = np.zeros((1030, 4096), np.float32)
    fill_random(CpuDevice(), array)
    assert (array != 0).mean() > 0.999 and array[-1].any()
    assert not np.array_equal(array[0], array[1024])


def test_the_stand_in_tokenizer_has_a_word_for_every_id():
    tokenizer = stand_in_tokenizer(50)
    assert tokenizer.vocab_size == 50 and not tokenizer.eos_token_ids
    assert tokenizer.decode([0, 49]) == "word0 word49"


# -------------------------------------------------------------------------------- what is reported


def test_decode_prints_its_mode_and_writes_a_record(on_cpu, folder, tmp_path, capsys):
    file = tmp_path / "record.json"
    options = ["--dtype", "float32", "--batch", "1", "2", "--prompt", "20", "--tokens", "4"]
    assert main(["bench", "decode", folder, *options, "--mode", "none", "--json", str(file)]) == 0
    out = capsys.readouterr().out.splitlines()
    mode = "none (EAGER, launch by launch: not decode speed), steps queued one, while the last runs"
    assert out[0].endswith(f"random weights; mode {mode}, greedy")
    assert out[1].startswith("Toy, driver 1.0 (CUDA 1.0), CuPy 1.0, ")
    assert out[2] == "ceilings, measured now: 4.000 TB/s read, 800 TFLOP/s of bf16 matrix products"
    assert "mode none (EAGER" in out[3] and "GPU replay" in "".join(out)
    record = json.loads(file.read_text())
    assert record["benchmark"] == "decode" and record["mode"].startswith("none (EAGER")
    assert record["weights"] == "random" and record["machine"]["gpu"] == "Toy"
    assert record["ceilings"] == {"read_bytes_per_s": 4e12, "flops_per_s": 8e14}
    assert [r["times"]["batch"] for r in record["results"]] == [1, 2]
    for result in record["results"]:
        times = result["times"]
        assert times["prompt_tokens"] == 20 and times["tokens"] == 4
        assert times["step_ms"] > 0 and times["replay_ms"] is None
        assert result["step_share"] == pytest.approx(result["floor_ms"] / times["step_ms"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--temperature", "0.6", "--top-p", "0.9"], "temperature 0.6, top-p 0.9"),
        (["--top-k", "5", "--min-p", "0.05"], "temperature 1, top-k 5, min-p 0.05"),
        (["--temperature", "0", "--top-p", "0.9"], "greedy"),
    ],
)
def test_decode_draws_tokens_as_it_is_asked_to(on_cpu, folder, capsys, options, said):
    work = ["--dtype", "float32", "--prompt", "20", "--tokens", "2", "--mode", "none"]
    assert main(["bench", "decode", folder, *work, *options]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(f"while the last runs, {said}")


def test_shares_of_8b_are_those_of_its_weights_and_cache(monkeypatch):
    config = LlamaConfig.from_hf(model_shape("llama-3.1-8b"), "8b")
    model = Llama(config, "bfloat16")
    length = length_of(128, 128)
    bench = BenchModel("8b", model, config, config.vocab_size, "bfloat16", length, {}, CpuDevice())
    monkeypatch.setattr(bench_decode, "RandomCacheRunner", lambda *args, **how: None)
    times = DecodeTimes(64, 128, 128, step_ms=8.0, replay_ms=7.5, launch_us=4.0)
    monkeypatch.setattr(bench_decode, "time_decode", lambda runner, **work: times)
    result = bench_decode.measure(bench, H200, 64, 128, 128, "full")
    # A layer's matrices are 6144, 4096 and 28672 x 4096 and 4096 x 14336, with 2 norms of 4096;
    # then the last norm and the head of 128256 x 4096; 2 bytes each. K and V of a token are 128
    # KiB. The cache holds 128 tokens, 8 to warm up, and half of the 129th.
    layer = (6144 + 4096 + 28672) * 4096 + 4096 * 14336 + 2 * 4096
    weight_bytes = 2 * (32 * layer + 4096 + 128256 * 4096)
    floor_ms = (weight_bytes + 64 * 200 * 131072) / 4e12 * 1e3
    assert result.floor_ms == pytest.approx(floor_ms)
    assert result.step_share == pytest.approx(floor_ms / 8.0)
    assert result.replay_share == pytest.approx(floor_ms / 7.5)
    assert result.times.tokens_per_s == 8000


def test_many_rows_are_bound_by_flops(monkeypatch):
    config = LlamaConfig.from_hf(model_shape("llama-3.1-8b"), "8b")
    model = Llama(config, "bfloat16")
    length = length_of(128, 128)
    bench = BenchModel("8b", model, config, config.vocab_size, "bfloat16", length, {}, CpuDevice())
    monkeypatch.setattr(bench_decode, "RandomCacheRunner", lambda *args, **how: None)
    times = DecodeTimes(512, 128, 128, step_ms=20.0)
    monkeypatch.setattr(bench_decode, "time_decode", lambda runner, **work: times)
    result = bench_decode.measure(bench, H200, 512, 128, 128, "none")
    # 7.50e9 weights of matrices, two flops each and row, at 800 TFLOP/s.
    assert result.bound.linear_ms == pytest.approx(2 * 7504658432 * 512 / 8e14 * 1e3, rel=1e-3)
    assert result.bound.total_ms == pytest.approx(result.bound.linear_ms + result.bound.kv_ms)
    assert result.bound.total_ms > result.floor_ms and result.replay_share is None


def test_graphs_are_timed_beside_eager_steps(on_cpu, folder, tmp_path, monkeypatch, capsys):
    def timed(model, gpu, batch, prompt, tokens, mode):
        step_ms = {"none": 10.0, "full": 4.0}[mode]
        times = DecodeTimes(batch, prompt, tokens, step_ms, 3.5 if mode == "full" else None, 3.0)
        return types.SimpleNamespace(times=times, launches=297)

    monkeypatch.setattr(bench_graphs, "measure", timed)
    file = tmp_path / "record.json"
    options = ["--dtype", "float32", "--prompt", "9", "--tokens", "4", "--json", str(file)]
    assert main(["bench", "graphs", folder, *options]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "mode none (EAGER) beside full" in out
    assert "64 x 9 │ 10.000 ms │ 4.000 ms │ 6.000 ms │ 2.50 │ 3.500 ms │ 3.0 us │ 297" in out
    results = json.loads(file.read_text())["results"]
    assert [result["graph"]["batch"] for result in results] == [1, 8, 64]


def test_padding_stands_beside_the_plans_price(on_cpu, tmp_path, monkeypatch, capsys):
    """At 800 TFLOP/s 15 rows of 15.0 GFLOP each take 0.281 ms where flops bound the step."""
    runner = types.SimpleNamespace()

    def fake_runner(model, plan, mode):
        runner.plan = plan
        return runner

    monkeypatch.setattr(bench_padding, "RandomCacheRunner", fake_runner)
    monkeypatch.setattr(
        bench_padding,
        "time_rung",
        lambda runner, rung, *, rows, prompt_tokens, replays: [{257: 9.0, 272: 9.5}[rung]],
    )
    monkeypatch.setattr(bench_session, "random_weights", lambda *args: {})
    file = tmp_path / "record.json"
    options = ["--shape", "llama-3.1-8b", "--pair", "257:272", "--json", str(file)]
    assert main(["bench", "padding", *options]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "257 in 272 │ 9.000 ms │ 9.500 ms │ 0.500 ms (+5.6%) │ 0.281 ms │ 0.281 ms" in out
    (result,) = json.loads(file.read_text())["results"]
    assert result["price"]["kv_ms"] == 0
    # A dead row's logits alone are 2 bytes, written once and read at least twice.
    assert result["added_bytes"] > 15 * 128256 * 2 * 3


def test_capture_times_add_up_by_kind():
    full = RungCapture("full", 8, 1, 297, 4.0, 10.0, 2.0, 1.5, 0.5, 2 << 20)
    small = RungCapture("full", 1, 1, 297, 4.0, 0.0, 2.0, 1.5, 0.5, 0)
    pieces = RungCapture("piecewise", 16, 34, 265, 5.0, 9.0, 3.0, 2.0, 1.0, 4 << 20)
    times = CaptureTimes(rungs=[full, small, pieces])
    assert times.graphs_ms("full") == 26.0 and times.graphs_ms("piecewise") == 20.0
    assert times.sum_ms("full", "bind_ms") == 8.0
    assert times.driver_bytes("full") == 2 << 20 and times.driver_bytes("piecewise") == 4 << 20


def test_capture_prints_where_the_time_goes(on_cpu, tmp_path, monkeypatch, capsys):
    rungs = [RungCapture("full", rows, 1, 297, 4.0, 0.0, 2.0, 1.5, 0.5, 1 << 20) for rows in (8, 1)]

    class Captured:
        def __init__(self, model, plan):
            self.plan = plan

        def run(self, *, piecewise, progress):
            for rung in self.plan.ladder.rungs:
                progress("full", rung)
            return CaptureTimes({"memory": 3.0}, rungs)

        def host_times(self, rung):
            return types.SimpleNamespace(rows=rung, launch_us=3.25, queue_us=25.0)

    monkeypatch.setattr(bench_capture, "CaptureBench", Captured)
    monkeypatch.setattr(bench_session, "random_weights", lambda *args: {})
    monkeypatch.setattr(bench_session.BenchSession, "finish", lambda self, gpu, **results: None)
    assert main(["bench", "capture", "--shape", "llama-3.2-1b", "--max-num-seqs", "8"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "mode full, profile default" in out
    assert "full: 2 graphs in all │ 16 │ 16" in out
    assert "the driver took 2.0 MiB for 2 rungs, 1.0 MiB each" in out
    assert "launch of the graph 3.2 us; inputs, copy and launch 25.0 us" in out


def test_prefill_times_every_prompt_in_every_chunk(on_cpu, folder, tmp_path, capsys):
    file = tmp_path / "record.json"
    options = ["--dtype", "float32", "--prompt", "5", "40", "--chunk", "16", "64", "--runs", "1"]
    assert main(["bench", "prefill", folder, *options, "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "mode none (EAGER) beside piecewise" in out.splitlines()[0] and "40 in 16" in out
    results = json.loads(file.read_text())["results"]
    asked = [(r["prompt_tokens"], r["chunk_tokens"]) for r in results]
    assert asked == [(5, 16), (40, 16), (5, 64), (40, 64)]
    for result in results:
        assert result["eager_ms"] > 0 and result["pieces_ms"] is None


def test_the_work_of_a_prompt_of_8b_is_that_of_its_matrices_and_its_triangle():
    config = LlamaConfig.from_hf(model_shape("llama-3.1-8b"), "8b")
    model = Llama(config, "bfloat16")
    bench = BenchModel("8b", model, config, config.vocab_size, "bfloat16", 8193, {}, CpuDevice())
    plans = [bench.plan(Ladder(1, [1]), length=8193, prefill_tokens=n) for n in (8192, 2048)]
    whole, chunked = (prefill_work(plan, 8192) for plan in plans)
    # What follows the last layer's attention is computed for one token, and so is the head; a chunk
    # that does not end the prompt has none.
    qkv, after = 6144 * 4096, 4096 * 4096 + 28672 * 4096 + 4096 * 14336
    weights = 8192 * (32 * qkv + 31 * after) + after + 128256 * 4096
    assert whole.linear_flops == pytest.approx(2 * weights, rel=1e-4)
    assert chunked.linear_flops == pytest.approx(2 * weights, rel=1e-4)
    triangle = 8192 * 8193 // 2
    assert whole.attention_flops == pytest.approx(32 * 4 * 4096 * triangle, rel=1e-6)
    assert chunked.attention_flops == pytest.approx(whole.attention_flops, rel=1e-6)
    # The three chunks that do not end the prompt stop at the last attention.
    unread = 3 * 2 * (after + 128256 * 4096 + 2 * 4096)
    assert chunked.weight_bytes == 4 * whole.weight_bytes - unread


def test_chunks_cover_the_prompt():
    assert chunks_of(17, 8) == [(0, 8), (8, 16), (16, 17)]
    assert chunks_of(16, 8) == [(0, 8), (8, 16)] and chunks_of(3, 8) == [(0, 3)]
