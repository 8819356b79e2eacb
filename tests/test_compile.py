"""``cugraphs.compile`` on the CPU: what a call computes, keeps, counts and refuses."""

import logging
import re

import ml_dtypes
import numpy as np
import pytest
from compiled_steps import (
    WIDTH,
    CapturingDevice,
    compiled,
    doubled,
    floats,
    matrix,
    running_total,
    table_rows,
)
from conftest import needs_compiler
from hypothesis import given
from hypothesis import strategies as st
from random_programs import MAX_ROWS, assert_same_bits, make_arrays, plain_run, recipes
from step_kernels import DOUBLED_BY_ROWS, SLOT_TOTALS
from tiny_kernels import DOUBLE, LIKELIEST, MAKE

import cugraphs
from cugraphs.kernels import ADD
from cugraphs.program import Kind
from cugraphs.testing import assert_kernel

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
    assert step.planned.keys() == {1, 2, 8, 12}
    assert (step(x=floats(11))["y"] == 2 * floats(11)).all()
    with pytest.raises(ValueError, match=r"^doubled: no weight or state is called 'w', only none"):
        step.write("w", 0)
    with pytest.raises(ValueError, match=r"^doubled: no weight or state is called 'y', only none"):
        step.read("y")
    with pytest.raises(ValueError, match=r"^graph: rung 8 is not captured, expected one of \[\]"):
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
        (sometimes, "input 'z' is not declared at 1 row, expected the same inputs and outputs"),
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
