"""Programs on NumPy arrays: the plain run, the poisoned arena, and programs bound to fewer rows."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_programs import (
    MAX_ROWS,
    NUM_BLOCKS,
    STEPS,
    Recipe,
    assert_same_bits,
    copies,
    make_arrays,
    plain_run,
    recipes,
)
from tiny_kernels import ACCUMULATE, DOUBLE, MAKE, SPLIT, free

from cugraphs.buffer_assignment import assign_buffers
from cugraphs.fusion import fuse
from cugraphs.interpreter import BoundOp, bind_ops, interpret, run_ops
from cugraphs.kernel import DTYPES, Kernel
from cugraphs.kernels import ADD, LINEAR
from cugraphs.program import Kind, Program
from cugraphs.trace import Tracer

ALL_DTYPES = ("float32", "float64", "bfloat16", "float16")
MAX_SEQS = 4


def result_and_state(program: Program, bound, rows: int, seqs: int, **options):
    """Outputs and state after a run, which leaves ``bound`` as it was."""
    run = copies(bound)
    outputs = interpret(program, run, sizes={"rows": rows, "seqs": seqs}, **options)
    return outputs | {buffer: run[buffer] for buffer in program.of_kind(Kind.STATE)}


# --- any program


@given(
    recipes(dtypes=ALL_DTYPES, max_steps=20),
    st.integers(1, MAX_ROWS),
    st.integers(1, MAX_SEQS),
    st.integers(0, 99),
    st.booleans(),
)
def test_a_poisoned_arena_changes_no_bit(recipe: Recipe, rows, seqs, seed, fused):
    program = recipe.trace(MAX_ROWS, MAX_SEQS)
    bound = make_arrays(program, rows, seqs, seed)
    expected = plain_run(program, bound)
    if fused:
        program = fuse(program)
    assignment = assign_buffers(program)
    plain = result_and_state(program, bound, rows, seqs)
    poisoned = result_and_state(program, bound, rows, seqs, assignment=assignment)
    assert plain.keys() == poisoned.keys() == set(program.of_kind(Kind.OUTPUT, Kind.STATE))
    for buffer in plain:
        assert_same_bits(plain[buffer], expected[buffer], buffer)
        assert_same_bits(poisoned[buffer], expected[buffer], buffer)


@given(
    recipes(max_steps=20),
    st.integers(1, MAX_ROWS),
    st.integers(1, MAX_SEQS),
    st.integers(0, 99),
)
def test_a_program_traced_large_and_bound_small_is_the_one_traced_small(recipe, rows, seqs, seed):
    large, small = recipe.trace(MAX_ROWS, MAX_SEQS), recipe.trace(rows, seqs)
    placements = assign_buffers(large), assign_buffers(small)
    found, expected = (
        result_and_state(
            program, make_arrays(program, rows, seqs, seed), rows, seqs, assignment=placement
        )
        for program, placement in zip((large, small), placements, strict=True)
    )
    for (buffer, array), other in zip(found.items(), expected.values(), strict=True):
        assert_same_bits(array, other, buffer)


ROWWISE = tuple(step for step in STEPS if step not in ("prefill", "gather"))


@given(recipes(ROWWISE, max_steps=20), st.integers(1, MAX_ROWS - 1), st.data())
def test_live_rows_do_not_depend_on_what_dead_rows_hold(recipe: Recipe, live, data):
    rung = data.draw(st.integers(live + 1, MAX_ROWS), label="rung")
    program = recipe.trace(MAX_ROWS, 1)
    assignment = assign_buffers(program)
    bound = make_arrays(program, rung, 1, seed=0)
    results = []
    for noise in (0.0, np.nan, 1e30, -np.inf):
        arrays = copies(bound)
        for buffer, array in arrays.items():
            if str(buffer.type.shape[0]) == "rows":
                array[live:] = DEAD.get(buffer.name, noise)
        results.append(result_and_state(program, arrays, rung, 1, assignment=assignment))
    for found in results[1:]:
        for buffer, expected in results[0].items():
            rows = slice(None) if buffer.kind is Kind.STATE else slice(live)
            assert_same_bits(found[buffer][rows], expected[rows], buffer)


DEAD = {"token_ids": 0, "positions": 0, "slot_mapping": -1, "row_ids": -1, "seq_lens": 0}


@given(recipes(("rope_append", "decode", "add_norm", "linear"), min_steps=3))
def test_dead_rows_write_nothing_to_state(recipe: Recipe):
    program = recipe.trace(MAX_ROWS, 1)
    bound = make_arrays(program, 5, 1, seed=0)
    for buffer, array in bound.items():
        if buffer.name in DEAD:
            array[...] = DEAD[buffer.name]
    after = result_and_state(program, bound, 5, 1, assignment=assign_buffers(program))
    for buffer in program.of_kind(Kind.STATE):
        assert_same_bits(after[buffer], bound[buffer], buffer)
        assert len(after[buffer]) == NUM_BLOCKS


# --- by hand


def test_results_by_hand():
    t = Tracer()
    x, total = t.input("x", (t.dim("rows", 4), 4), "float32"), t.state("total", (2,), "float32")
    left, right = t.call_tuple(SPLIT, x)
    out = t.output(t.call(ACCUMULATE, total, t.call(ADD, left, right)))
    state = np.array([100, 200], np.float32)
    bound = {x: np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32), total: state}
    for assignment in (None, assign_buffers(t.program)):
        state[:] = 100, 200
        found = interpret(t.program, bound, sizes={"rows": 2}, assignment=assignment)
        # left + right is [[4, 6], [12, 14]], its columns add 16 and 20 to the total
        assert found.keys() == {out}
        assert found[out].tolist() == [[120, 226], [128, 234]]
        assert state.tolist() == [116, 220]


def test_an_output_that_is_read_later():
    t = Tracer()
    first = t.output(t.call(DOUBLE, t.input("x", (1, 2), "float32")), "first")
    second = t.output(t.call(DOUBLE, first), "second")
    x = next(t.program.of_kind(Kind.INPUT))
    found = interpret(t.program, {x: np.array([[1, 2]], np.float32)})
    assert found[first].tolist() == [[2, 4]] and found[second].tolist() == [[4, 8]]


def test_zero_rows_are_a_step_too():
    t = Tracer()
    x = t.input("x", (t.dim("rows", 4), 2), "float32")
    y = t.call(LINEAR, x, t.weight("w", (3, 2), "float32"))
    out = t.output(t.call(DOUBLE, y))
    arrays = {x: np.zeros((0, 2), np.float32), t.program.buffers[1]: np.ones((3, 2), np.float32)}
    found = interpret(t.program, arrays, sizes={"rows": 0}, assignment=assign_buffers(t.program))
    assert found[out].shape == (0, 3)


# --- the poison


def poisoned_chain() -> tuple[Program, list]:
    t = Tracer()
    x = t.input("x", (2, 64), "float32")
    y = t.call(DOUBLE, x)
    z = t.call(DOUBLE, y)
    t.output(t.call(ADD, y, z))
    return t.program, [x, y, z]


def test_a_wrong_placement_shows():
    program, (x, y, z) = poisoned_chain()
    array = np.ones((2, 64), np.float32)
    good = assign_buffers(program)
    (out,) = program.of_kind(Kind.OUTPUT)
    assert (interpret(program, {x: array}, assignment=good)[out] == 6).all()
    for offset in (0, 256):
        wrong = dataclasses.replace(
            good, offsets={y: 0, z: offset}, arena_bytes=2048
        )  # y is lost, whole or by half
        found = interpret(program, {x: array}, assignment=wrong)[out]
        assert (found != 6).any()


def test_temporaries_are_poisoned_after_their_last_use():
    program, (x, y, z) = poisoned_chain()
    (out,) = program.of_kind(Kind.OUTPUT)
    arrays = {buffer: np.zeros((2, 64), np.float32) for buffer in (x, y, z, out)}
    ops = bind_ops(program, arrays)
    run_ops(ops)
    assert all(np.isfinite(array).all() for array in arrays.values())
    run_ops(ops[:2], poison=True)
    assert np.isfinite(arrays[y]).all()  # y is needed once more
    run_ops(ops, poison=True)
    assert np.isnan(arrays[y]).all() and np.isnan(arrays[z]).all()
    assert np.isfinite(arrays[out]).all() and np.isfinite(arrays[x]).all()


def test_an_output_that_is_not_written_shows():
    program, (x, *_) = poisoned_chain()
    (out,) = program.of_kind(Kind.OUTPUT)
    forgetful = Program("forgetful", program.buffers, program.ops[:-1], program.dims)
    bound = {x: np.ones((2, 64), np.float32)}
    assert np.isnan(interpret(forgetful, bound, assignment=assign_buffers(program))[out]).all()


def test_a_result_that_is_missing_is_an_error():
    lazy = Kernel("lazy", SPLIT.operands, lambda x: (x[:, :1].copy(),), free)
    t = Tracer()
    x = t.input("x", (2, 2), "float32")
    for name, half in zip(("left", "right"), t.call_tuple(lazy, x), strict=True):
        t.output(half, name)
    with pytest.raises(ValueError, match="zip"):
        interpret(t.program, {x: np.ones((2, 2), np.float32)})


# --- what does not fit


@pytest.fixture
def added():
    t = Tracer()
    rows = t.dim("rows", 8)
    x = t.input("x", (rows, 4), "float32")
    y = t.call(LINEAR, x, t.weight("w", (4, 4), "float32"))
    t.output(t.call(ADD, x, y))
    w = t.program.buffers[1]
    return t.program, {x: np.ones((3, 4), np.float32), w: np.eye(4, dtype=np.float32)}


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("x", None, "bind: no array is given for input 'x'"),
        ("w", None, "bind: no array is given for weight 'w'"),
        (
            "x",
            np.ones((2, 4), np.float32),
            r"bind: input 'x' is float32\[2, 4\], expected float32\[3, 4",
        ),
        ("w", np.ones((4, 4)), r"bind: weight 'w' is float64\[4, 4\], expected float32\[4, 4\]"),
        (
            "w",
            np.ones((4, 8), np.float32)[:, ::2],
            r"bind: weight 'w' has strides \[32, 8\], expected a C-contiguous array; copy it with",
        ),
    ],
)
def test_an_array_that_does_not_fit_is_named(added, name, array, message):
    program, arrays = added
    arrays = {b: array if b.name == name else known for b, known in arrays.items()}
    arrays = {buffer: known for buffer, known in arrays.items() if known is not None}
    with pytest.raises(ValueError, match=f"^{message}"):
        interpret(program, arrays, sizes={"rows": 3})


def test_sizes_that_do_not_fit_are_refused(added):
    program, arrays = added
    with pytest.raises(
        ValueError, match=r"^bind: no size is given for axis 'rows', expected rows<=8"
    ):
        interpret(program, arrays)
    with pytest.raises(
        ValueError, match=r"^bind: axis 'rows' is 9, expected 0 to 8; trace the prog"
    ):
        interpret(program, arrays, sizes={"rows": 9})


def test_an_error_in_a_reference_names_the_op():
    def fails(x, *, n: int):
        raise ZeroDivisionError("n is zero")

    t = Tracer()
    x = t.input("x", (1,), "float32")
    t.output(t.call(Kernel("bad", MAKE.operands, fails, free), t.call(MAKE, x, n=2), n=3))
    with pytest.raises(ZeroDivisionError, match="n is zero") as error:
        interpret(t.program, {x: np.ones(1, np.float32)})
    assert error.value.__notes__ == ["in op 1 bad"]


@pytest.mark.parametrize(
    "result", [np.ones((1, 4), np.float32), np.ones((3, 4)), np.ones((3, 4), np.int32)]
)
def test_a_result_of_another_shape_or_dtype_is_not_stretched(result):
    array = np.zeros((3, 4), np.float32)
    with pytest.raises(AssertionError):
        run_ops([BoundOp("op 0 k", lambda: (result,), (array,), (), ())], poison=True)


def test_every_dtype_can_be_bound():
    for dtype in DTYPES:
        t = Tracer()
        x = t.input("x", (3,), dtype)
        t.output(t.call(MAKE, t.call(MAKE, x, n=5), n=4))
        found = interpret(
            t.program, {x: np.arange(3).astype(DTYPES[dtype])}, assignment=assign_buffers(t.program)
        )
        (array,) = found.values()
        assert array.astype(int).tolist() == [0, 1, 2, 0]
