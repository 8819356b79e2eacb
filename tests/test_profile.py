"""cugraphs profile without a GPU: kinds of ops, the stamps of launches, pictures, the table."""

import json
import types

import numpy as np
import pytest
from test_bench_command import CONFIG, H200, tiny
from tiny_model import write_tiny_model

from cugraphs.cli import bench_session, main, profile
from cugraphs.clock_stamps import (
    STAMP,
    ExpectedLaunch,
    StampedLaunch,
    split_stamps,
)
from cugraphs.kernel import Cost
from cugraphs.ladder import Ladder
from cugraphs.model_runner import ModelRunner
from cugraphs.pricing import price_step
from cugraphs.step_profile import OpTime, ProfiledRunner, StepProfile, kinds_of
from cugraphs.step_state import Chunk
from cugraphs.step_timeline import (
    launches_of,
    spans_of,
)
from cugraphs.timeline_plot import draw_timeline, lanes_of, middle_layer


def stamps_of(*rows):
    """Stamps from (function, block, multiprocessor, waits, goes on, ends)."""
    found = np.zeros(len(rows), STAMP)
    for stamp, row in zip(found, rows, strict=True):
        names = ("function", "block", "multiprocessor", "waits_ns", "goes_on_ns", "ends_ns")
        for name, value in zip(names, row, strict=True):
            stamp[name] = value
    return found


def launch_of(*rows):
    return StampedLaunch("f", stamps_of(*rows))


# ------------------------------------------------------------------------------------------- kinds


def test_ops_of_one_kernel_and_size_are_a_kind():
    program = next(iter(tiny(64).plan(Ladder(2, [2]), length=64).decode.values())).program
    kinds = kinds_of(program, {"rows": 2})
    assert sorted(index for kind in kinds for index in kind) == list(range(len(program.ops)))
    assert [kind[0] for kind in kinds] == sorted(kind[0] for kind in kinds)
    attention = [kind for kind in kinds if program.ops[kind[0]].kernel.is_attention]
    assert [len(kind) for kind in attention] == [CONFIG.num_hidden_layers]
    linear = [kind for kind in kinds if "linear" in program.ops[kind[0]].kernel.name]
    weights = {program.ops[kind[0]].read[1].type.shape for kind in linear}
    assert len(weights) == len(linear)  # no two kinds have one shape
    for kind in kinds:
        assert len({program.ops[index].kernel for index in kind}) == 1


@pytest.mark.parametrize("tokens", [40, 33])
def test_each_run_of_a_prompt_computes_the_same_keys_and_values(tokens):
    bench = tiny(64)
    plan = bench.plan(Ladder(1, [1]), length=64, prefill_tokens=64)
    token_ids = np.random.default_rng(5).integers(0, plan.vocab_size, tokens, np.int32)
    expected = ModelRunner(plan, bench.weights, bench.device)
    blocks = range(1, 1 - (-tokens // plan.cache.block_size))
    expected.run_mixed([Chunk(token_ids, 0, list(blocks))])
    runner = ProfiledRunner(bench, plan, "none")
    sizes = runner.prefill(token_ids)
    assert sizes == {"tokens": tokens, "seqs": 1, "logits": 1}
    for _ in range(3):  # as replays do, on the inputs that are there
        for name in plan.cache.types:
            found, wanted = (rows_of(r.state[name], blocks, tokens) for r in (runner, expected))
            assert np.array_equal(found, wanted)
            runner.state[name][1:] = np.nan
        queue_again(runner.mixed.executable, sizes)


def rows_of(cache, blocks, tokens):
    """[kv_heads, tokens, head_dim] of a sequence's cache."""
    _, kv_heads, _, head_dim = cache.shape
    return cache[blocks].transpose(1, 0, 2, 3).reshape(kv_heads, -1, head_dim)[:, :tokens].copy()


def queue_again(executable, sizes):
    for op in executable.bind(sizes).ops:
        op(False)


def test_what_a_step_queues_are_the_launches_that_are_priced():
    plan = tiny(64).plan(Ladder(16, [1, 16]), length=64)
    for rows in (1, 16):
        program = plan.decode[plan.ladder.class_for(rows)].program
        launches = launches_of(program, {"rows": rows}, "sm_90")
        price = price_step(program, {"rows": rows}, context=10, arch="sm_90")
        assert len(launches) == price.launches
        assert all((launch.blocks > 0) == bool(launch.function) for launch in launches)
        assert [launch.op for launch in launches] == sorted(launch.op for launch in launches)
        assert all(launch.ops == 1 and not launch.phases for launch in launches)


def test_shares_and_gap_by_hand():
    op = OpTime("linear", "10 x 20", ops=4, launches=2, us=5.0, cost=Cost(10_000_000, 40_000_000))
    assert op.total_us == 20 and op.bytes_per_s == 2e12 and op.flops_per_s == 8e12
    assert op.share(4e12, 1e15) == 0.5 and op.share(4e12, 1e13) == 0.8
    step = StepProfile("a step", (op, op), replay_us=37.0)
    assert step.sum_us == 40 and step.gap_us == -3


# ------------------------------------------------------------------------------------------ stamps


def test_a_functions_stamps_are_its_launches_one_after_the_other():
    stamps = stamps_of(
        (0, 1, 5, 90, 200, 230),  # the second launch of f waits while the first runs
        (1, 0, 1, 50, 120, 180),
        (0, 0, 7, 0, 10, 100),
        (0, 0, 5, 80, 201, 220),
        (0, 1, 8, 0, 11, 110),
    )
    launches = [ExpectedLaunch("f", 2), ExpectedLaunch("g", 1), ExpectedLaunch("f", 2)]
    first, other, second = split_stamps(stamps, ["f", "g"], launches)
    assert first.stamps["ends_ns"].tolist() == [100, 110]
    assert other.function == "g" and other.stamps["multiprocessor"].tolist() == [1]
    assert second.stamps["ends_ns"].tolist() == [230, 220]


def test_a_function_that_was_loaded_twice_is_one():
    stamps = stamps_of((0, 0, 0, 0, 1, 2), (2, 0, 0, 3, 4, 5))
    found = split_stamps(stamps, ["f", "g", "f"], [ExpectedLaunch("f", 1)] * 2)
    assert [launch.stamps["ends_ns"].tolist() for launch in found] == [[2], [5]]


def test_blocks_that_are_missing_or_there_twice_are_said():
    twice = stamps_of((0, 0, 0, 0, 1, 2), (0, 0, 0, 0, 1, 2))
    with pytest.raises(RuntimeError, match="clock stamps: f has 2 stamps of 2 blocks, expected"):
        split_stamps(twice, ["f"], [ExpectedLaunch("f", 2)])
    with pytest.raises(RuntimeError, match="f has 0 stamps of 2 blocks"):
        split_stamps(twice[:0], ["f"], [ExpectedLaunch("f", 2)])


def test_a_product_is_the_time_between_launches_of_ours():
    parts = [
        (0, "norm", launch_of((0, 0, 0, 1000, 1000, 3000), (0, 1, 1, 1100, 1500, 2500))),
        (1, "linear", None),
        (2, "silu", launch_of((1, 0, 0, 9000, 9200, 9900))),
        (3, "silu", launch_of((1, 0, 0, 9300, 9950, 11000))),
    ]
    spans = spans_of(parts)
    found = [(span.kernel, span.begin_us, span.end_us) for span in spans]
    assert found == [
        ("norm", 0.0, 2.0),
        ("linear", 2.0, 8.0),
        ("silu", 8.2, 8.9),
        ("silu", 8.95, 10.0),
    ]
    assert spans_of([*parts, (4, "linear", None)])[-1].begin_us == 10.0


# ----------------------------------------------------------------------------------------- picture


def step_of_layers(layers=5):
    parts, now = [], 0
    for op in range(layers):
        for part, kernel in enumerate(("rope_append", "paged_decode_attention")):
            rows = [(0, b, b % 3, now, now + 100, now + 900 + 10 * b) for b in range(6)]
            parts.append((3 * op + part, kernel, launch_of(*rows)))
            now += 1000
        parts.append((3 * op + 2, "linear", None))
        now += 2000
    return spans_of(parts)


def test_the_layer_that_is_drawn_is_in_the_middle_and_whole():
    spans = step_of_layers()
    layer = middle_layer(spans)
    assert [span.kernel for span in layer] == ["paged_decode_attention", "linear", "rope_append"]
    assert layer[0] is spans[7]
    assert middle_layer(spans[:2]) == spans[:2]


def test_blocks_of_a_multiprocessor_lie_beside_each_other_while_they_are_there():
    stamps = stamps_of(
        (0, 0, 4, 0, 5, 10), (0, 1, 4, 2, 5, 20), (0, 2, 4, 10, 12, 30), (0, 3, 9, 0, 1, 2)
    )
    top, bottom = lanes_of(stamps)
    assert top.tolist() == [0, 0.5, 0, 0] and (bottom - top == 0.5).all()


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture_is_drawn(tmp_path, suffix):
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    file = tmp_path / f"step{suffix}"
    draw_timeline(step_of_layers(), "a step", file)
    assert file.stat().st_size > 5000


# ----------------------------------------------------------------------------------------- command


@pytest.fixture
def folder(tmp_path):
    return str(write_tiny_model(tmp_path / "tiny"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "0"], "profile: --batch is 0, expected 1 to 4,096"),
        (["--prompt", "-2"], "profile: --prompt is -2, expected 1 to"),
        (["--prefill", "0"], "profile: --prefill is 0, expected 1 to"),
        (["--plot", "step.txt"], "plot: step.txt ends in '.txt', expected .png, .svg, .pdf"),
    ],
)
def test_a_mistake_is_one_line(folder, capsys, arguments, message):
    assert main(["profile", folder, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_without_a_gpu_it_says_so(folder, capsys, monkeypatch):
    from cugraphs import cuda_availability

    monkeypatch.setattr(cuda_availability, "has_driver", lambda: False)
    assert main(["profile", folder]) == 2
    assert "cuda: libcuda.so.1 is not found, expected NVIDIA's driver" in capsys.readouterr().err


def test_the_table_and_the_record_hold_the_same_figures(folder, tmp_path, capsys, monkeypatch):
    machine = dict.fromkeys(
        ("gpu", "driver", "driver_cuda", "cupy", "cuda_bindings", "cublaslt", "python"), "1.0"
    )
    device = types.SimpleNamespace(stream=types.SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(bench_session, "CudaDevice", lambda: device)
    monkeypatch.setattr(bench_session, "describe_machine", lambda device: machine)
    monkeypatch.setattr(bench_session, "measure_gpu", lambda device: H200)
    monkeypatch.setattr(bench_session, "random_weights", lambda *arguments: {})
    ops = (
        OpTime("linear", "512 x 256", ops=2, launches=1, us=50.0, cost=Cost(100_000_000, 1)),
        OpTime("rms_norm", "", ops=5, launches=1, us=2.0, cost=Cost(1_000_000, 1)),
    )
    step = types.SimpleNamespace(ops_us=lambda advance, context: ops, launches=[])
    monkeypatch.setattr(profile, "_prepare", lambda model, args: (step, 120.0))
    file = tmp_path / "record.json"
    assert main(["profile", folder, "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "sum of ops 110 us, replay 120 us: gap +10 us (+8.3%)" in printed
    row = next(line for line in printed.splitlines() if "512 x 256" in line)
    # 100 MB in 50 us are 2 TB/s, of 4 TB/s
    assert all(word in row for word in ("linear", "100.0", "83.3%", "2,000", "50.0%"))
    record = json.loads(file.read_text())
    assert record["gap_us"] == 10 and record["sum_us"] == 110
    assert [op["us"] for op in record["profile"]["ops"]] == [50.0, 2.0]
    assert record["machine"] == machine and record["ceilings"]["read_bytes_per_s"] == 4.0e12
