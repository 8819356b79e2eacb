"""``cugraphs.compile`` on the CPU: what a call computes, keeps, counts and refuses."""

import dataclasses
import logging
import re

import ml_dtypes
import numpy as np
import pytest
from conftest import needs_compiler
from hypothesis import given
from hypothesis import strategies as st
from random_programs import MAX_ROWS, assert_same_bits, make_arrays, plain_run, recipes
from step_kernels import DOUBLED_BY_ROWS, SLOT_TOTALS
from tiny_kernels import ACCUMULATE, DOUBLE, LIKELIEST, MAKE

import cugraphs
from cugraphs.cpu_device import CpuDevice
from cugraphs.device import CaptureError
from cugraphs.kernels import ADD, EMBEDDING, LINEAR
from cugraphs.program import Kind
from cugraphs.testing import assert_kernel

WIDTH = 4


def doubled(t, rows):
    t.output(t.call(DOUBLE, t.input("x", (rows, WIDTH), "float32")), "y")


def running_total(t, rows):
    """``out`` is each row plus the sum of all rows so far, this call's included."""
    x = t.input("x", (rows, WIDTH), "float32")
    t.output(t.call(ACCUMULATE, t.state("total", (WIDTH,), "float32"), x), "out")


def matrix(t, rows):
    x = t.input("x", (rows, WIDTH), "float32")
    y = t.call(LINEAR, x, t.weight("w", (WIDTH, WIDTH), "float32"))
    t.output(t.call(ADD, y, x), "y")


def table_rows(t, rows):
    """Rows of a table that comes with the call."""
    ids = t.input("ids", (rows,), "int32")
    t.output(t.call(EMBEDDING, ids, t.input("table", (6, WIDTH), "float32")), "y")


def compiled(step, buckets=(1, 2, 4, 8), **options):
    return cugraphs.compile(step, buckets=buckets, device="cpu", poison=True, debug=True, **options)


def floats(rows, seed=0, width=WIDTH):
    return np.random.default_rng(seed).standard_normal((rows, width), np.float32)


class RecordingGraph:
    """What a device without a GPU can capture: the calls themselves."""

    num_nodes = 3

    def __init__(self, run):
        self.run = run

    def launch(self):
        self.run()


class CapturingDevice(CpuDevice):
    """Replays by calling again; ``fails_at`` captures in, it cannot."""

    has_graphs = True

    def __init__(self, fails_at=None):
        self.num_captures, self.fails_at = 0, fails_at

    def capture(self, run):
        if self.num_captures == self.fails_at:
            raise CaptureError("capture fails in op 0 double: it is planted")
        self.num_captures += 1
        return RecordingGraph(run)


# --- what a call returns


def test_any_batch_up_to_the_largest_bucket():
    double = compiled(doubled)
    for rows in (3, 8, 1, 2, 5):
        x = floats(rows, rows)
        out = double(x=x)
        assert out.keys() == {"y"} and (out["y"] == 2 * x).all() and out["y"].shape == x.shape
    assert double.counts.padding_rows == 1 + 0 + 0 + 0 + 3
    assert double.counts.eager_steps == {"graphs are off": 5} and double.counts.captures == 0


def test_a_result_is_a_view_until_the_next_call_and_read_is_a_copy():
    double = compiled(doubled)
    first = double(x=np.ones((3, WIDTH)).astype("float32"))["y"]
    kept = double.read(first)
    second = double(x=np.zeros((3, WIDTH), np.float32))["y"]
    assert np.shares_memory(first, second) and (first == 0).all() and (kept == 2).all()


def test_a_result_can_be_the_next_input():
    double = compiled(doubled)
    y = double(x=np.ones((3, WIDTH), np.float32))["y"]
    for _ in range(3):
        y = double(x=y[::-1])["y"]
    assert (y == 16).all()


def test_an_input_without_rows_is_given_each_time():
    step = compiled(table_rows)
    for seed in range(2):
        table = floats(6, seed)
        assert (step(ids=[5, 0, 2], table=table)["y"] == table[[5, 0, 2]]).all()


@pytest.mark.parametrize("dead", [3, -1])
def test_padding_rows_hold_the_declared_value(dead):
    """The whole rung's result, which lies behind the view, is the dead row's too."""
    step = cugraphs.compile(table_rows, buckets=[8], device="cpu", dead={"ids": dead})
    table = floats(6)
    out = step(ids=[4], table=table)["y"]
    whole = np.lib.stride_tricks.as_strided(out, (8, WIDTH))
    expected = np.zeros(WIDTH) if dead == -1 else table[dead]
    assert (whole[0] == table[4]).all() and (whole[1:] == expected).all()


def test_a_dead_row_may_be_an_array():
    step = cugraphs.compile(doubled, buckets=[3], device="cpu", dead={"x": np.arange(WIDTH)})
    out = step(x=floats(1))["y"]
    whole = np.lib.stride_tricks.as_strided(out, (3, WIDTH))
    assert (whole[1:] == 2 * np.arange(WIDTH)).all()


def test_an_axis_that_is_longer_than_the_batch():
    def step(t, rows):
        t.output(t.call(DOUBLE, t.input("ends", (rows + 1, WIDTH), "float32")), "y")

    double = compiled(step)
    ends = floats(4)  # three rows, in a bucket of four
    assert double(ends=ends)["y"].tolist() == (2 * ends).tolist()
    assert double.counts.padding_rows == 1


# --- weights and state


def test_state_is_kept_read_and_written():
    total = np.full(WIDTH, 10, np.float32)
    step = compiled(running_total, state={"total": total})
    assert (step.read("total") == 10).all()
    assert (step(x=np.ones((3, WIDTH), np.float32))["out"] == 14).all()  # 10 + 3, and the row
    assert (step(x=np.ones((1, WIDTH), np.float32))["out"] == 15).all()
    assert (step.read("total") == 14).all() and (total == 10).all()
    before = step.read("total")
    step.write("total", np.zeros(WIDTH, np.int64))
    assert (step.read("total") == 0).all() and (before == 14).all()
    step.arrays["total"][...] = 5
    assert (step(x=np.ones((2, WIDTH), np.float32))["out"] == 8).all()


def test_weights_are_copied_and_can_be_written():
    w = np.eye(WIDTH, dtype=np.float32)
    step = compiled(matrix, weights={"w": w, "not_used": w})
    x = floats(3)
    w[...] = 0
    assert (step(x=x)["y"] == 2 * x).all()
    step.write("w", w)
    assert (step(x=x)["y"] == x).all()
    assert (step.read("w") == 0).all()


def test_the_warm_up_does_not_reach_the_state():
    def biased(t, rows):
        """Dead rows of ones, which the total would count."""
        running_total(t, rows)

    step = cugraphs.compile(
        biased,
        buckets=[1, 4],
        device=CapturingDevice(),
        state={"total": np.zeros(WIDTH)},
        dead={"x": 1},
    )
    assert step.captured == (1, 4) and (step.read("total") == 0).all()


def test_a_replaced_array_is_found():
    step = compiled(running_total, state={"total": np.zeros(WIDTH)})
    step.arrays["total"] = np.zeros(WIDTH, np.float32)
    with pytest.raises(RuntimeError, match=r"^running_total_\d: state 'total' was replaced after"):
        step(x=floats(1))


# --- above the largest bucket


@pytest.mark.parametrize("off_ladder", ["split", "eager"])
def test_a_batch_above_the_largest_bucket(off_ladder, caplog):
    step = compiled(matrix, max_rows=20, off_ladder=off_ladder, weights={"w": np.eye(WIDTH)})
    with caplog.at_level(logging.WARNING, "cugraphs"):
        for rows in (19, 3, 20, 8):
            x = floats(rows, rows)
            assert (step(x=x)["y"] == 2 * x).all()
    assert len(caplog.records) == 1 and step.counts.off_ladder_steps == 2
    eager = step.counts.eager_steps
    if off_ladder == "split":  # 8 + 8 + 3, 3, 8 + 8 + 4, 8
        assert eager == {"graphs are off": 8} and step.counts.padding_rows == 1 + 1
    else:
        assert eager == {"graphs are off": 2, "above the ladder": 2}
        assert step.counts.padding_rows == 1


def test_parts_of_a_split_batch_update_the_state_in_order():
    step = compiled(running_total, buckets=[2], max_rows=5, state={"total": np.zeros(WIDTH)})
    out = step(x=np.ones((5, WIDTH), np.float32))["out"]
    assert out[:, 0].tolist() == [3, 3, 5, 5, 6] and (step.read("total") == 5).all()
    assert (out[:2] == 3).all()  # what the first part gave is still there


def test_a_split_result_can_be_the_next_input():
    double = compiled(doubled, buckets=[2], max_rows=6)
    y = double(x=np.arange(6 * WIDTH).reshape(6, WIDTH))["y"]
    y = double(x=y[::-1])["y"]
    assert y.tolist() == (4 * np.arange(6 * WIDTH).reshape(6, WIDTH)[::-1]).tolist()


def test_the_largest_batch_is_a_bound():
    def largest(**options):
        return compiled(doubled, **options)

    for step, rows in ((largest(), 9), (largest(max_rows=12), 13), (largest(), 0)):
        with pytest.raises(ValueError, match=rf"^doubled: input 'x' is float32\[{rows}, 4\], exp"):
            step(x=floats(rows))
    refusing = largest(max_rows=12, off_ladder="error")
    with pytest.raises(ValueError, match=r"a batch has 9 rows, expected at most 8"):
        refusing(x=floats(9))
    assert (refusing(x=floats(8))["y"] == 2 * floats(8)).all()


def test_what_cannot_be_split_is_refused_at_once():
    def fixed(t, rows):
        t.call(DOUBLE, t.input("x", (rows, WIDTH), "float32"))
        t.output(t.call(MAKE, t.input("z", (2,), "float32"), n=3), "three")

    with pytest.raises(
        ValueError, match=r"^fixed: output 'three' is float32\[3\], expected one ro"
    ):
        compiled(fixed, max_rows=9)
    step = compiled(fixed, max_rows=9, off_ladder="eager")
    assert step(x=floats(9), z=[1, 2])["three"].tolist() == [1, 2, 1]


# --- dtypes


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1, 2, 3, 4]], [1, 2, 3, 4]),
        (np.array([[True, False, True, True]]), [1, 0, 1, 1]),
        (np.array([[1, 2, 3, 4]], ml_dtypes.bfloat16), [1, 2, 3, 4]),
        (np.array([[0.5, 2, 3, 4]], np.float16), [0.5, 2, 3, 4]),
        (np.array([[-(2**24), 0, 2**24, 2**60]]), [-(2**24), 0, 2**24, 2**60]),
        (np.array([[0.5, np.inf, -0.0, 2.0**100]]), [0.5, np.inf, 0, 2.0**100]),
    ],
)
def test_what_loses_nothing_is_converted(values, expected):
    double = compiled(doubled)
    assert double(x=values)["y"].tolist() == [[2 * value for value in expected]]


def test_nan_is_a_value_too():
    x = np.array([[np.nan, 1, 2, 3]])
    assert np.isnan(compiled(doubled)(x=x)["y"][0, 0])


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (np.full((1, 4), 0.1), ValueError, "is float64, expected float32, which would round it"),
        (np.full((1, 4), 1e300), ValueError, "is float64, expected float32, which would round i"),
        (np.ones((1, 4), complex), TypeError, "is complex128, expected float32"),
        ([["a", "b", "c", "d"]], TypeError, "is <U1, expected float32"),
        ([[1, 2, 3, 2**24 + 1]], ValueError, "is int64, expected float32, which would round its"),
        ([[1, 2, 3, 2**63 - 1]], ValueError, "is int64, expected float32, which would round its"),
    ],
)
def test_what_would_lose_something_is_refused(values, error, message):
    with pytest.raises(error, match=f"^doubled: input 'x' {re.escape(message)}"):
        compiled(doubled)(x=values)


def test_integers_have_to_fit():
    step = compiled(table_rows)
    table = floats(6)
    assert (step(ids=np.array([1, 2], np.uint64), table=table)["y"] == table[1:3]).all()
    for ids in ([2**31], [-(2**31) - 1], np.array([2**32 - 1], np.uint32)):
        with pytest.raises(ValueError, match=r"^table_rows: input 'ids' is u?int\d\d with values "):
            step(ids=ids, table=table)
    with pytest.raises(TypeError, match=r"^table_rows: input 'ids' is float64, expected int32$"):
        step(ids=[1.0], table=table)


def test_rounding_where_it_is_asked_for():
    double = compiled(doubled, allow_rounding=True)
    x = np.full((2, WIDTH), 0.1)
    assert (double(x=x)["y"] == 2 * np.float32(0.1)).all()
    assert (double(x=[[2**24 + 1] * WIDTH])["y"] == 2**25).all()


# --- what is refused


@pytest.mark.parametrize(
    ("given_arrays", "error", "message"),
    [
        ({}, TypeError, "no array is given for input 'x', expected float32[rows, 4]"),
        ({"y": 1}, TypeError, "no array is given for input 'x', expected float32[rows, 4]"),
        ({"x": floats(1), "y": 1}, TypeError, "input 'y' is given, expected x"),
        ({"x": floats(1, width=5)}, ValueError, "input 'x' is float32[1, 5], expected float32[1, "),
        ({"x": np.float32(1)}, ValueError, "input 'x' is float32[], expected float32[rows, 4] wit"),
    ],
)
def test_inputs_that_do_not_fit(given_arrays, error, message):
    with pytest.raises(error, match=f"^doubled: {re.escape(message)}"):
        compiled(doubled)(**given_arrays)


def test_inputs_of_different_batches():
    step = compiled(
        lambda t, rows: t.output(
            t.call(
                ADD, t.input("a", (rows, WIDTH), "float32"), t.input("b", (rows, WIDTH), "float32")
            )
        )
    )
    with pytest.raises(ValueError, match=r": input 'b' is float32\[2, 4\], expected float32\[3, 4"):
        step(b=floats(2), a=floats(3))


@pytest.mark.parametrize(
    ("step", "options", "error", "message"),
    [
        (matrix, {}, TypeError, "no array is given for weight 'w', expected float32[4, 4]"),
        (matrix, {"weights": {"w": floats(3)}}, ValueError, "weight 'w' is float32[3, 4], expecte"),
        (matrix, {"weights": {"w": np.eye(4) / 3}}, ValueError, "weight 'w' is float64, expected "),
        (running_total, {}, TypeError, "no array is given for state 'total', expected float32[4]"),
        (running_total, {"state": {"total": 0}}, ValueError, "state 'total' is int64[], expected "),
        (doubled, {"state": {"total": 0}}, TypeError, "state 'total' is given, expected none"),
        (doubled, {"dead": {"z": 0}}, ValueError, "dead has 'z', expected inputs with rows: x"),
        (table_rows, {"dead": {"table": 0}}, ValueError, "dead has 'table', expected inputs with"),
        (table_rows, {"dead": {"ids": 0.5}}, TypeError, "dead 'ids' is float64, expected int32"),
        (doubled, {"dead": {"x": [1, 2]}}, ValueError, "dead 'x' is float32[2], expected float32["),
        (doubled, {"dead": {"x": 0.1}}, ValueError, "dead 'x' is float64, expected float32, which"),
        (doubled, {"buckets": []}, ValueError, "buckets is empty, expected row counts, as [1, 2,"),
        (doubled, {"buckets": "vllm"}, ValueError, "max_rows is not given, expected the rows of"),
        (doubled, {"max_rows": 7}, ValueError, "max_rows is 7, expected at least the largest buck"),
    ],
)
def test_steps_that_do_not_fit(step, options, error, message):
    with pytest.raises(error, match=f"^{step.__name__}: {re.escape(message)}"):
        compiled(step, **options)


def test_arguments_of_the_ladder_and_the_device():
    with pytest.raises(TypeError, match=r"^Ladder: a rung is 'a', expected an integer"):
        compiled(doubled, buckets=["a"])
    with pytest.raises(ValueError, match=r"device is 'tpu', expected 'auto', 'cpu' or 'cuda'"):
        cugraphs.compile(doubled, buckets=[1], device="tpu")
    step = compiled(doubled, buckets="latency", max_rows=12)
    assert step.planned.keys() == {2, 8, 12}
    assert (step(x=floats(11))["y"] == 2 * floats(11)).all()
    with pytest.raises(ValueError, match=r"^doubled: no weight or state is called 'w', only none"):
        step.write("w", 0)
    with pytest.raises(ValueError, match=r"^doubled: no weight or state is called 'y', only none"):
        step.read("y")
    with pytest.raises(ValueError, match=r"^graph: 8 rows are not captured, expected one of \[\]"):
        step.graph(8)


def test_a_step_that_is_not_the_same_at_every_bucket():
    def fixed_size(t, rows):
        doubled(t, rows)
        t.input("mask", (int(rows), 2), "float32")

    def other_axis(t, rows):
        doubled(t, rows)
        t.input("lens", (t.dim("seqs", 3),), "int32")

    def no_rows(t, rows):
        t.output(t.call(DOUBLE, t.input("x", (2, WIDTH), "float32")))

    def sometimes(t, rows):
        doubled(t, rows)
        if rows > 2:
            t.input("z", (2,), "int32")

    for step, message in (
        (fixed_size, "input 'mask' is float32[2, 2] at 2 rows and float32[8, 2] at 8, expected on"),
        (other_axis, "declares the axis 'seqs', expected 'rows' alone"),
        (no_rows, "no input has the axis 'rows', expected one at least"),
        (sometimes, "input 'z' is not declared at 2 rows, expected the same inputs and outputs"),
    ):
        with pytest.raises(ValueError, match=f"^{step.__name__}: {re.escape(message)}"):
            compiled(step)


# --- memory


def test_the_memory_map_counts_every_byte():
    options = {"weights": {"w": np.eye(WIDTH)}}
    step = compiled(matrix, **options)
    memory = step.memory_map()
    sizes = {part.name: part.nbytes for part in memory.parts}
    assert sizes == {"weights": 64, "state": 0, "arena": step.arena.nbytes}
    regions = {name: region.nbytes for name, region in step.arena.regions.items()}
    row_bytes = 4 * WIDTH
    assert regions["inputs"] == 8 * row_bytes or regions["inputs"] == 256
    assert regions["outputs/y"] == 8 * row_bytes
    for line in ("weights: 64 bytes", "outputs/y", "temporaries", "together: "):
        assert line in str(memory)
    more = compiled(matrix, buckets=range(1, 9), **options)
    assert more.arena.nbytes == step.arena.nbytes  # more buckets add no byte
    split = compiled(matrix, max_rows=20, **options).memory_map()
    assert {p.name: p.nbytes for p in split.parts}["split batches"] == 20 * row_bytes


def test_results_weights_and_state_are_where_the_map_says():
    step = compiled(running_total, state={"total": np.zeros(WIDTH)})
    region = step.arena.regions["outputs/out"]
    base = step.arena.view("outputs/out", step.signature.outputs["out"]).ctypes.data
    for rows in (8, 3, 1):
        assert step(x=floats(rows))["out"].ctypes.data == base and region.nbytes == 8 * 4 * WIDTH


# --- captures, on a device that replays by calling again


def test_every_bucket_is_captured_once_the_largest_first():
    step = cugraphs.compile(doubled, buckets=[1, 2, 4, 8], device=CapturingDevice())
    assert step.captured == (1, 2, 4, 8) and step.counts.captures == 4
    assert not step.counts.eager_steps  # the warm-up is not a step
    for rows in (3, 8, 1, 3):
        assert (step(x=floats(rows))["y"] == 2 * floats(rows)).all()
    assert step.counts.replays == {4: 2, 8: 1, 1: 1} and step.counts.captures == 4
    report = step.capture_report
    assert [rung.rows for rung in report] == [8, 4, 2, 1] and len(report) == 4
    assert all(rung.num_nodes == 3 and rung.capture_ms > 0 for rung in report)
    assert [rung.warm_up_ms > 0 for rung in report] == [True, True, True, True]
    assert str(report).splitlines()[-1].startswith("4 graphs, ") and not report.stopped
    assert isinstance(step.graph(8), RecordingGraph)
    assert "graphs" in {part.name for part in step.memory_map().parts}


def test_each_program_runs_on_dead_rows_before_its_first_capture():
    events = []

    def spy(x):
        events.append(x.copy())
        return (x + x,)

    def spied(t, rows):
        x = t.input("x", (rows, 1), "float32")
        t.output(t.call(dataclasses.replace(DOUBLE, reference=spy), x), "y")

    class Spying(CapturingDevice):
        def capture(self, run):
            events.append("capture")
            return super().capture(run)

    cugraphs.compile(spied, buckets=[1, 2, 4, 8], device=Spying(), dead={"x": 7})
    seen = [e if isinstance(e, str) else e.tolist() for e in events]
    assert seen == [[[7]] * 8, "capture", "capture", [[7]] * 2, "capture", "capture"]


def test_a_capture_that_fails_leaves_the_step_working(caplog):
    with caplog.at_level(logging.WARNING, "cugraphs"):
        step = cugraphs.compile(doubled, buckets=[1, 2, 4, 8], device=CapturingDevice(fails_at=2))
    assert "2 rows: capture fails in op 0 double: it is planted; they and sma" in caplog.text
    assert step.captured == (4, 8) and step.capture_report.stopped in caplog.text
    for rows in (1, 3, 2):
        assert (step(x=floats(rows))["y"] == 2 * floats(rows)).all()
    reason = "not captured: capture fails in op 0 double: it is planted"
    assert step.counts.replays == {4: 1} and step.counts.eager_steps == {reason: 2}


def test_more_buckets_than_bindings_are_kept():
    """All rungs of a large ladder stay captured, whatever runs in between."""
    rungs = range(65, 165)
    step = cugraphs.compile(doubled, buckets=rungs, device=CapturingDevice())
    for rows in (*rungs, 65):
        assert (step(x=floats(rows))["y"] == 2 * floats(rows)).all()
        assert isinstance(step.graph(rows), RecordingGraph)
    assert step.counts.replays.total() == 101 and not step.counts.eager_steps


def test_without_graphs():
    device = CapturingDevice()
    step = cugraphs.compile(doubled, buckets=[2], device=device, graphs=False)
    assert device.num_captures == 0 and (step(x=floats(1))["y"] == 2 * floats(1)).all()


# --- any program, any sequence of batches

SEQS = 3
DEAD = {"slot_mapping": -1, "row_ids": -1}


def padded(type_, values, rows, dead):
    """The array of a bucket, with dead rows after the batch."""
    if not str(type_).partition("[")[2].startswith("rows"):
        return values
    array = np.full(type_.bind({"rows": rows}).shape, dead, values.dtype)
    array[: len(values)] = values
    return array


@given(recipes(), st.lists(st.integers(1, MAX_ROWS), min_size=1, max_size=5))
def test_a_used_step_equals_a_fresh_one_and_the_references(recipe, batches):
    """Large, small, large: nothing of a batch is left for the next but the state."""
    rungs = (1, 3, 8, MAX_ROWS)

    def step(t, rows):
        recipe.record(t, rows, SEQS)

    largest = recipe.trace(MAX_ROWS, SEQS)  # the same buffers; only for making arrays
    fixed = {b.name: a for b, a in make_arrays(largest, 1, SEQS, seed=7).items()}

    def make(**options):
        return cugraphs.compile(
            step, buckets=rungs, dead=DEAD, device="cpu", weights=fixed, **options
        )

    def state_of(compiled_step):
        return {name: compiled_step.read(name) for name in compiled_step.signature.state}

    caches = {b.name: fixed[b.name] for b in largest.of_kind(Kind.STATE)}
    used = make(state=caches, poison=True, debug=True)
    for seed, rows in enumerate(batches):
        arrays = make_arrays(largest, rows, SEQS, seed)
        inputs = {b.name: arrays[b] for b in largest.of_kind(Kind.INPUT)}
        fresh = make(state=state_of(used), poison=False)
        # What the references give at the bucket, on the same padded inputs.
        rung = min(r for r in rungs if r >= rows)
        unfused = recipe.trace(MAX_ROWS, SEQS)
        bound = {}
        for b in unfused.of_kind(Kind.WEIGHT, Kind.STATE, Kind.INPUT):
            if b.kind is Kind.INPUT:
                bound[b] = padded(b.type, inputs[b.name], rung, DEAD.get(b.name, 0))
            else:
                bound[b] = used.read(b.name) if b.kind is Kind.STATE else fixed[b.name]
        values = plain_run(unfused, bound)
        expected = {b: a for b, a in values.items() if b.kind is Kind.OUTPUT}
        found, alone = used(**inputs), fresh(**inputs)
        assert found.keys() == alone.keys() == {b.name for b in expected}
        for b, array in expected.items():
            assert_same_bits(found[b.name], alone[b.name], b)
            cut = array[:rows] if str(b.type).partition("[")[2].startswith("rows") else array
            assert_same_bits(found[b.name], cut, b)
        assert state_of(used).keys() == caches.keys()
        for b in unfused.of_kind(Kind.STATE):
            assert_same_bits(used.read(b.name), fresh.read(b.name), b)
            assert_same_bits(used.read(b.name), values[b], b)


@given(recipes(steps=("add", "rms_norm", "silu", "add_norm", "output")), st.integers(1, MAX_ROWS))
def test_padding_does_not_reach_the_batch(recipe, rows):
    """Ops on rows alone: the same bits in any bucket, whatever dead rows hold."""

    def step(t, axis):
        recipe.record(t, axis, SEQS)

    program = recipe.trace(MAX_ROWS, SEQS)
    arrays = {b.name: a for b, a in make_arrays(program, rows, SEQS, seed=3).items()}
    inputs = {b.name: arrays[b.name] for b in program.of_kind(Kind.INPUT)}
    state = {b.name: arrays[b.name] for b in program.of_kind(Kind.STATE)}
    results = []
    for buckets, noise in (([rows], 0), ([MAX_ROWS], 0), ([MAX_ROWS], np.inf)):
        dead = {**DEAD, "x_narrow": noise, "x_wide": noise}
        compiled_step = cugraphs.compile(
            step, buckets=buckets, dead=dead, device="cpu", weights=arrays, state=state
        )
        with np.errstate(all="ignore"):
            results.append({n: a.copy() for n, a in compiled_step(**inputs).items()})
    for other in results[1:]:
        for name, array in results[0].items():
            assert_same_bits(other[name], array, name)


def test_ids_of_the_likeliest():
    """A result of another dtype than what it is made of."""

    def step(t, rows):
        t.output(t.call(LIKELIEST, t.input("x", (rows, WIDTH), "float32")), "ids")

    out = compiled(step)(x=np.eye(WIDTH, dtype=np.float32)[[2, 0, 3]])["ids"]
    assert out.dtype == np.int32 and out.tolist() == [2, 0, 3]


@needs_compiler
@pytest.mark.parametrize("kernel", [SLOT_TOTALS, DOUBLED_BY_ROWS], ids=lambda kernel: kernel.name)
def test_the_kernels_that_the_gpu_tests_bring(kernel):
    assert_kernel(kernel, stages=["compile", "emulate"], dtypes=["float32", "bfloat16"])


# --- a device with memory of its own, as a GPU has


class DeviceArray(np.ndarray):
    """An array that the host must not touch."""


class Twins:
    """Two host buffers in turn; a step that reads before they are sent finds NaN."""

    def __init__(self, inputs):
        self.inputs, self.current, self.num_sent = inputs, 0, 0
        self.twins = tuple(np.full(inputs.nbytes, 0xFF, np.uint8) for _ in range(2))

    def next(self):
        return self.current

    def send(self, nbytes):
        self.inputs[:nbytes] = self.twins[self.current][:nbytes]
        self.twins[self.current][...] = 0xFF
        self.current, self.num_sent = 1 - self.current, self.num_sent + 1

    def sent(self, nbytes):
        return None

    def overwritten(self):
        pass


class KeptTwins(Twins):
    """Host buffers that hold what was sent, so that it need not be sent again."""

    sent_bytes = 0

    def send(self, nbytes):
        self.inputs[:nbytes] = self.twins[self.current][:nbytes]
        self.current, self.num_sent, self.sent_bytes = 1 - self.current, self.num_sent + 1, nbytes

    def sent(self, nbytes):
        return 1 - self.current if nbytes <= self.sent_bytes else None

    def overwritten(self):
        self.sent_bytes = 0


class SeparateDevice(CapturingDevice):
    shares_host_memory = False

    def allocate_bytes(self, nbytes):
        return super().allocate_bytes(nbytes).view(DeviceArray)

    def read(self, array):
        assert isinstance(array, DeviceArray)
        return np.array(array)

    def owns(self, array):
        return isinstance(array, DeviceArray)

    def stage(self, inputs):
        self.staging = Twins(inputs)
        return self.staging


def on_device(array):
    return np.array(array).view(DeviceArray)


def totals(t, rows):
    x = t.input("x", (rows, WIDTH), "float32")
    ids = t.input("ids", (rows,), "int32")
    total = t.state("total", (6, WIDTH), "float32")
    t.output(t.call(SLOT_TOTALS, total, x, ids), "out")


@given(
    st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), min_size=1, max_size=6),
    st.sampled_from(["split", "eager"]),
)
def test_arrays_of_the_device_are_as_good_as_host_arrays(calls, off_ladder):
    options = {"buckets": [1, 4], "max_rows": 6, "off_ladder": off_ladder, "dead": {"ids": -1}}
    state = {"total": np.zeros((6, WIDTH), np.float32)}
    plain = cugraphs.compile(totals, device="cpu", state=state, **options)
    own = {"total": on_device(state["total"])}
    step = cugraphs.compile(totals, device=SeparateDevice(), state=own, poison=True, **options)
    for seed, (rows, x_there, ids_there) in enumerate(calls):
        x = floats(rows, seed)
        ids = np.random.default_rng(seed).permutation(6)[:rows].astype(np.int32)
        expected = plain(x=x, ids=ids)["out"]
        out = step(x=on_device(x) if x_there else x, ids=on_device(ids) if ids_there else ids)
        assert isinstance(out["out"], DeviceArray)
        assert_same_bits(step.read(out["out"]), expected, "out")
    assert_same_bits(step.read("total"), plain.read("total"), "total")


def test_nothing_is_sent_where_all_of_a_bucket_is_on_the_device():
    device = SeparateDevice()
    step = cugraphs.compile(doubled, buckets=[2, 4], device=device)
    sent = device.staging.num_sent
    for rows, more in ((4, 0), (2, 0), (3, 1)):
        before = device.staging.num_sent
        out = step(x=on_device(floats(rows)))["y"]
        assert (step.read(out) == 2 * floats(rows)).all()
        assert device.staging.num_sent - before == more  # the dead row of the last batch
    assert device.staging.num_sent == sent + 1


class KeepingDevice(SeparateDevice):
    def stage(self, inputs):
        self.staging = KeptTwins(inputs)
        return self.staging


def test_inputs_that_the_device_holds_are_not_sent_again():
    device = KeepingDevice()
    step = cugraphs.compile(doubled, buckets=[2, 4], device=device)
    zero, one = np.zeros((2, WIDTH), np.float32), np.ones((2, WIDTH), np.float32)
    four = np.concatenate([one, zero])

    def sends(x, given=None):
        before = device.staging.num_sent
        out = step.read(step(x=x if given is None else given)["y"])
        assert_same_bits(out, 2 * x, "y")
        return device.staging.num_sent - before

    sends(four)
    assert sends(one) == 0 and sends(one) == 0  # the first rows of what is there
    assert sends(zero) == 1 and sends(zero) == 0
    assert sends(-zero) == 1  # equal as numbers, other bits
    assert sends(four) == 1 and sends(one) == 0
    assert sends(zero, on_device(zero)) == 0
    assert sends(one) == 1  # the device's own array has taken the place of what was sent


def test_a_split_batch_on_the_device_may_be_its_own_results():
    step = cugraphs.compile(doubled, buckets=[2], device=SeparateDevice(), max_rows=6)
    x = floats(6)
    y = step(x=on_device(x))["y"]
    for _ in range(2):
        y = step(x=np.ascontiguousarray(y[::-1]).view(DeviceArray))["y"]
        y = step(x=y)["y"]
    assert (step.read(y) == 32 * x).all()


def test_arrays_of_the_device_are_taken_as_they_stand():
    step = cugraphs.compile(doubled, buckets=[4], device=SeparateDevice())
    for array in (on_device(np.ones((3, WIDTH))), on_device(floats(6))[::2]):
        with pytest.raises(TypeError, match=r"^doubled: input 'x' is float.* on the device, expec"):
            step(x=array)
