"""Where temporaries live: placements computed by hand, and the rules that any placement keeps."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_programs import (
    LOSSLESS_STEPS,
    MAX_ROWS,
    Recipe,
    copies,
    make_arrays,
    plain_run,
    recipes,
)
from tiny_kernels import DOUBLE, MAKE

from cugraphs.buffer_assignment import (
    ALIGNMENT_BYTES,
    BufferAssignment,
    LiveRange,
    aligned,
    assign_buffers,
    live_ranges,
)
from cugraphs.fusion import fuse
from cugraphs.interpreter import interpret
from cugraphs.kernels import ATTENTION_PARTS
from cugraphs.program import Buffer, Kind, Op, Program
from cugraphs.trace import Tracer


def chain(*sizes_bytes: int) -> Program:
    """Each temporary of so many bytes is made from the one before; the last op makes the output."""
    t = Tracer()
    x = t.input("x", (1,), "uint8")
    for size in sizes_bytes:
        x = t.call(MAKE, x, n=size)
    t.output(t.call(MAKE, x, n=1))
    return t.program


def temps(program: Program) -> list[Buffer]:
    return list(program.of_kind(Kind.TEMP))


def placed(program: Program) -> list[int]:
    assignment = assign_buffers(program)
    assignment.verify(program)
    return [assignment.offsets[buffer] for buffer in temps(program)]


# --- live ranges


def test_live_ranges_of_a_chain():
    program = chain(1, 1, 1)
    a, b, c = temps(program)
    # op 0 writes a, op 1 reads a and writes b, op 2 reads b and writes c, op 3 reads c
    assert live_ranges(program) == {a: LiveRange(0, 1), b: LiveRange(1, 2), c: LiveRange(2, 3)}


def test_a_result_that_nobody_reads_lives_at_its_op():
    t = Tracer()
    x = t.input("x", (1,), "uint8")
    unread = t.call(MAKE, x, n=4)
    t.output(t.call(MAKE, x, n=1))
    assert live_ranges(t.program) == {unread: LiveRange(0, 0)}


def test_a_buffer_that_is_written_again_lives_on():
    program = chain(1, 1)
    first, _ = temps(program)
    op = program.ops[0]
    program.ops.append(Op(MAKE, (first, op.read[0]), op.attrs, op.axes))
    assert live_ranges(program)[first] == LiveRange(0, 3)


def test_only_temporaries_have_live_ranges():
    t = Tracer()
    t.output(t.call(MAKE, t.input("x", (1,), "uint8"), n=4))
    assert live_ranges(t.program) == {}
    assignment = assign_buffers(t.program)
    assert (assignment.arena_bytes, assignment.peak_live_bytes) == (0, 0)
    assignment.verify(t.program)


def test_a_read_before_the_write_is_refused():
    program = chain(1, 1)
    program.ops.reverse()
    message = r"^live_ranges: op 0 make reads %2:out, which no earlier op writes"
    with pytest.raises(ValueError, match=message):
        live_ranges(program)
    with pytest.raises(ValueError, match=message):
        assign_buffers(program)


# --- placements by hand


@pytest.mark.parametrize(
    ("nbytes", "expected"), [(0, 256), (1, 256), (255, 256), (256, 256), (257, 512), (1000, 1024)]
)
def test_sizes_are_rounded_up_to_the_alignment(nbytes, expected):
    assert ALIGNMENT_BYTES == 256 and aligned(nbytes) == expected


def test_a_chain_alternates_between_two_places():
    # Each lives with the one before and the one after it, and with no other.
    assert placed(chain(256, 256, 256, 256)) == [0, 256, 0, 256]


def test_the_largest_is_placed_first_and_the_others_around_it():
    program = chain(1024, 512, 2048, 256)
    # 2048 goes to 0; 1024 does not meet it, so 0 too; 512 meets both: after the longer one;
    # 256 meets 2048 alone.
    assert placed(program) == [0, 2048, 0, 2048]
    assignment = assign_buffers(program)
    assert assignment.arena_bytes == 2560
    assert assignment.peak_live_bytes == 512 + 2048  # at the op that makes 2048 from 512
    assert assignment.total_bytes == 1024 + 512 + 2048 + 256
    assert assignment.report() == (
        "4 temporaries: 2,560 bytes, lower bound 2,560, without sharing 3,840"
    )


def test_of_equal_buffers_the_first_written_is_placed_first():
    t = Tracer()
    x = t.input("x", (2, 64), "float32")
    a, b = t.call(DOUBLE, x), t.call(DOUBLE, x)
    for name, buffer in (("twice_a", a), ("twice_b", b)):
        t.output(t.call(DOUBLE, buffer), name)
    assert placed(t.program) == [0, 512]


def test_the_lowest_hole_that_is_long_enough_is_taken():
    t = Tracer()
    x = t.input("x", (1,), "uint8")
    long = t.call(MAKE, x, n=1024)  # live throughout: at 0
    before = t.call(MAKE, x, n=768)  # at 1024, dead after op 2
    after = t.call(MAKE, before, n=512)  # meets both: at 1792
    small = t.call(MAKE, after, n=256)  # 1024 to 1792 is free again: at 1024
    t.output(t.call(MAKE, small, n=1), "end")
    t.output(t.call(MAKE, long, n=1), "long")
    assert placed(t.program) == [0, 1024, 1792, 1024]


def test_placements_count_at_the_largest_rows():
    t = Tracer()
    x = t.input("x", (t.dim("rows", 100), 8), "float32")
    for _ in range(2):
        x = t.call(DOUBLE, x)
    t.output(t.call(DOUBLE, x))
    assert placed(t.program) == [0, aligned(100 * 8 * 4)]


# --- what verify refuses


def moved(assignment: BufferAssignment, buffer: Buffer, offset: int) -> BufferAssignment:
    return dataclasses.replace(assignment, offsets={**assignment.offsets, buffer: offset})


def test_verify_names_what_is_wrong():
    program = chain(1024, 512, 2048, 256)
    a, b, c, _ = temps(program)
    good = assign_buffers(program)
    with pytest.raises(ValueError, match=r"^verify: %1:out at 0 and %2:out at 256 overlap .* op 1"):
        moved(good, b, 256).verify(program)
    with pytest.raises(ValueError, match=r"^verify: %2:out is at 100, expected a multiple of 256"):
        moved(good, b, 100).verify(program)
    with pytest.raises(ValueError, match=r"^verify: %2:out is at -256, expected a multiple of 256"):
        moved(good, b, -256).verify(program)
    with pytest.raises(ValueError, match=r"^verify: %3:out ends at 2816, expected at most 2560"):
        moved(good, c, 768).verify(program)
    offsets = {buffer: offset for buffer, offset in good.offsets.items() if buffer is not a}
    with pytest.raises(ValueError, match=r"^verify: %1:out has no offset"):
        dataclasses.replace(good, offsets=offsets).verify(program)


def test_verify_holds_for_the_program_it_is_given():
    """A placement of the chain is wrong once an op reads an early temporary late."""
    program = chain(256, 256, 256)
    assignment = assign_buffers(program)
    first, *_, last = program.ops
    late = Op(MAKE, (last.written[0], first.written[0]), last.attrs, last.axes)
    changed = Program("late", program.buffers, [*program.ops, late])
    with pytest.raises(ValueError, match=r"^verify: .* overlap while live at op 2"):
        assignment.verify(changed)


def test_verify_sees_a_small_buffer_inside_a_large_one():
    program = chain(256, 2048, 256)
    small, large, _ = temps(program)
    good = dataclasses.replace(assign_buffers(program), arena_bytes=10**6)
    moved(good, small, 2048).verify(program)
    for offset in (0, 256, 1024, 1792):
        with pytest.raises(ValueError, match=r"^verify: .* overlap while live at op 1"):
            moved(moved(good, large, 0), small, offset).verify(program)


# --- any program


@given(recipes(max_steps=30), st.integers(1, MAX_ROWS), st.booleans())
def test_any_program_is_placed_well(recipe: Recipe, rows, fused):
    program = recipe.trace(rows, 3)
    if fused:
        program = fuse(program)
    assignment = assign_buffers(program)
    assignment.verify(program)
    assert assignment.offsets.keys() == set(temps(program))
    assert all(offset % 256 == 0 for offset in assignment.offsets.values())
    assert assignment.peak_live_bytes <= assignment.arena_bytes <= assignment.total_bytes
    assert_nothing_live_is_overwritten(program, assignment)


def assert_nothing_live_is_overwritten(program: Program, assignment: BufferAssignment) -> None:
    """Follow who wrote each 256 bytes last: every read finds its own buffer, at every op."""
    owner: dict[int, Buffer] = {}

    def units(buffer: Buffer) -> range:
        begin = assignment.offsets[buffer]
        return range(begin, begin + buffer.type.nbytes, 256)

    def is_temp(buffer: Buffer) -> bool:
        return buffer.kind is Kind.TEMP

    for op in program.ops:
        for buffer in filter(is_temp, op.read):
            assert all(owner[unit] is buffer for unit in units(buffer))
        used: set[int] = set()
        for buffer in filter(is_temp, dict.fromkeys(op.operands)):
            assert used.isdisjoint(units(buffer)), f"operands of {op} share bytes"
            used.update(units(buffer))
        for buffer in filter(is_temp, op.written):
            owner.update(dict.fromkeys(units(buffer), buffer))


@given(recipes(max_steps=30))
def test_the_same_recipe_is_placed_the_same(recipe: Recipe):
    first, second = (recipe.trace(MAX_ROWS, 3) for _ in range(2))
    offsets = [list(assign_buffers(program).offsets.values()) for program in (first, second)]
    assert offsets[0] == offsets[1]
    assert str(first) == str(second)


@given(recipes(max_steps=30), st.integers(1, MAX_ROWS), st.integers(1, MAX_ROWS))
def test_a_larger_row_count_never_needs_less(recipe: Recipe, a, b):
    low, high = (assign_buffers(recipe.trace(n, 3)).peak_live_bytes for n in sorted((a, b)))
    assert low <= high


# --- planted mistakes


@settings(max_examples=60)
@given(recipes(LOSSLESS_STEPS, min_steps=5), st.integers(1, MAX_ROWS), st.data())
def test_a_buffer_on_top_of_a_live_one_is_refused_and_shows(recipe: Recipe, rows, data):
    program = recipe.trace(MAX_ROWS, 2)
    good = assign_buffers(program)
    ranges = live_ranges(program)
    # The references cut no rows, so what the parts of rows hold shows on a GPU alone.
    cut = {b for op in program.ops if op.kernel is ATTENTION_PARTS for b in op.written}
    together = [
        (a, b)
        for a, b in itertools.permutations(ranges.keys() - cut, 2)
        if ranges[a].start <= ranges[b].end and ranges[b].start <= ranges[a].end
    ]
    assume(together)
    a, b = data.draw(st.sampled_from(together))
    shift = 256 * data.draw(st.integers(0, (a.type.nbytes - 1) // 256))
    wrong = moved(good, b, good.offsets[a] + shift)
    with pytest.raises(ValueError, match=r"^verify: "):
        wrong.verify(program)

    bound = make_arrays(program, rows, 2, seed=1)
    expected = plain_run(program, bound)
    begin = wrong.offsets[b] - wrong.offsets[a]
    assume(a.type.bind({"rows": rows, "seqs": 2}).nbytes > begin)  # the bound views overlap too
    assume(begin or expected[a].tobytes()[:64] != expected[b].tobytes()[:64])
    # Room for the moved buffer, so that the mistake shows in the results and not at the bounds.
    roomy = dataclasses.replace(wrong, arena_bytes=wrong.arena_bytes + b.type.nbytes)
    run = copies(bound)
    found = interpret(program, run, sizes={"rows": rows, "seqs": 2}, assignment=roomy)
    found.update({buffer: run[buffer] for buffer in program.of_kind(Kind.STATE)})
    assert any(not np.array_equal(found[buffer], expected[buffer]) for buffer in found)
