"""Programs bound to one shared arena: the same memory for the same name, no interference."""

import types
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_programs import MAX_ROWS, Recipe, assert_same_bits, make_arrays, plain_run, recipes
from tiny_kernels import ACCUMULATE, DOUBLE, MAKE

from cugraphs.arena import Arena, numpy_bytes
from cugraphs.buffer_assignment import assign_buffers
from cugraphs.compiler import plan_arena, plan_program
from cugraphs.cpu_device import CpuDevice
from cugraphs.executable import MAX_BINDINGS, Executable, PlannedProgram, pieces_of
from cugraphs.interpreter import TEMPORARIES
from cugraphs.kernel import DTYPES, ArrayType
from cugraphs.kernels import ADD, LINEAR, RMS_NORM
from cugraphs.program import Kind, Program
from cugraphs.trace import Tracer

WIDTH = 64


def decode_step(max_rows: int, depth: int = 3):
    """``out`` is x scaled by powers of two, added up; ``deep`` the last of them."""

    def step(t: Tracer) -> None:
        x = t.input("x", (t.dim("rows", max_rows), WIDTH), "float32")
        total = x
        for _ in range(depth):
            x = t.call(DOUBLE, x)
            total = t.call(ADD, total, x)
        t.output(x, "deep")
        t.output(total, "out")

    return step


def allocated(plans) -> Arena:
    arena = plan_arena(plans)
    arena.allocate(numpy_bytes)
    return arena


def on_cpu(planned: PlannedProgram, arena: Arena, weights=(), state=(), **options) -> Executable:
    device = CpuDevice()
    return Executable(
        planned, arena, device, staging(device, arena), dict(weights), dict(state), **options
    )


def staging(device, arena: Arena):
    inputs = ArrayType((arena.regions["inputs"].nbytes,), "uint8")
    return device.stage(arena.view("inputs", inputs))


class RecordingDevice(CpuDevice):
    """Keeps the arrays of the last program that was bound."""

    def bind(self, program, arrays, *, workspace, poison):
        self.arrays = dict(arrays)
        return super().bind(program, arrays, workspace=workspace, poison=poison)


def whole_arena(arena: Arena) -> np.ndarray:
    first = next(iter(arena.regions.values()))
    raw = arena.view(first.name, ArrayType((first.nbytes,), "uint8"))
    return raw.base if isinstance(raw.base, np.ndarray) else raw


# --- planning


def test_a_planned_program_is_fused_and_verified():
    def step(t: Tracer) -> None:
        x = t.input("x", (t.dim("rows", 4), 8), "float32")
        total = t.call(ADD, x, x)
        t.output(t.call(ADD, total, t.call(RMS_NORM, total, t.weight("w", (8,), "float32"), eps=1)))

    planned = plan_program("decode_4", step)
    assert planned.program.name == "decode_4"
    assert [op.kernel.name for op in planned.program.ops] == ["add_rms_norm", "add"]
    assert planned.assignment == assign_buffers(planned.program)


def test_one_arena_is_sized_for_the_largest_of_each():
    plans = [plan_program(f"d{n}", decode_step(n)) for n in (1, 8, 4)]
    arena = plan_arena(plans)
    row_bytes = WIDTH * 4
    assert {name: region.nbytes for name, region in arena.regions.items()} == {
        "inputs": 8 * row_bytes,
        "outputs/deep": 8 * row_bytes,
        "outputs/out": 8 * row_bytes,
        TEMPORARIES: max(plan.assignment.arena_bytes for plan in plans),
    }
    assert plan_arena(plans[:2]).nbytes == arena.nbytes  # a smaller program adds no byte
    assert plan_arena([]).regions[TEMPORARIES].nbytes == 0


# --- running


def test_results_by_hand_at_every_row_count():
    planned = plan_program("decode", decode_step(8))
    executable = on_cpu(planned, allocated([planned]), poison=True)
    for rows in (3, 8, 1, 8, 0, 3):
        sizes = {"rows": rows}
        x = executable.inputs(sizes)["x"]
        x[...] = np.arange(rows)[:, None] + 1
        outputs = executable.run(sizes)
        assert outputs["deep"].shape == outputs["out"].shape == (rows, WIDTH)
        assert (outputs["deep"] == 8 * x).all()
        assert (outputs["out"] == (1 + 2 + 4 + 8) * x).all()


def test_programs_share_inputs_outputs_and_temporaries():
    plans = [plan_program(f"d{n}", decode_step(n)) for n in (2, 8)]
    arena = allocated(plans)
    small, large = (on_cpu(plan, arena) for plan in plans)
    two, eight = small.bind({"rows": 2}), large.bind({"rows": 8})
    for name in ("deep", "out"):
        assert two.outputs[name].ctypes.data == eight.outputs[name].ctypes.data
    (two_in,), (eight_in,) = two.inputs, eight.inputs
    assert two_in["x"].ctypes.data == eight_in["x"].ctypes.data
    eight_in["x"][...] = 5
    assert (two_in["x"] == 5).all()
    assert (small.run({"rows": 2})["out"] == 75).all()


def test_everything_a_bound_program_touches_is_the_arena_a_weight_or_state():
    def step(t: Tracer) -> None:
        x = t.input("x", (t.dim("rows", 4), 8), "float32")
        y = t.call(LINEAR, x, t.weight("w", (8, 8), "float32"))
        t.output(t.call(ACCUMULATE, t.state("total", (8,), "float32"), t.call(DOUBLE, y)))

    planned = plan_program("step", step)
    arena = allocated([planned])
    fixed = {"w": np.eye(8, dtype=np.float32), "total": np.zeros(8, np.float32)}
    device = RecordingDevice()
    executable = Executable(planned, arena, device, staging(device, arena), fixed, fixed)
    memory = whole_arena(arena)
    for rows in (1, 3, 4):
        bound = executable.bind({"rows": rows})
        assert device.arrays.keys() == set(planned.program.buffers)
        for array in (*device.arrays.values(), *bound.inputs[0].values(), *bound.outputs.values()):
            in_arena = np.shares_memory(array, memory)
            assert in_arena or any(array is known for known in fixed.values())
            assert array.flags.c_contiguous
            assert not in_arena or array.ctypes.data % 256 == 0


class ToldDevice(CpuDevice):
    """Keeps what each op is told of the launch before it; ops leave a launch of ours."""

    def bind(self, program, arrays, *, workspace, poison):
        self.told = []

        def queue(index, after_ours):
            self.told.append((index, after_ours))
            return True

        return [partial(queue, index) for index in range(len(program.ops))]

    def capture(self, run):
        run()
        return types.SimpleNamespace(launch=lambda: self.told.append("graph"))


def test_an_op_follows_ours_only_within_one_stretch_of_launches():
    def step(t: Tracer) -> None:
        x = t.input("x", (t.dim("rows", 4), 8), "float32")
        other = t.input("y", (t.dim("seqs", 4), 8), "float32")
        doubled = t.call(DOUBLE, t.call(DOUBLE, x))
        t.output(t.call(DOUBLE, t.call(DOUBLE, other)), "other")
        t.output(t.call(DOUBLE, doubled), "deep")

    planned = plan_program("step", step)
    assert pieces_of(planned.program, "rows") == [(0, 2), (4, 5)]
    arena, device = allocated([planned]), ToldDevice()
    executable = Executable(planned, arena, device, staging(device, arena), {}, {})
    sizes = {"rows": 3, "seqs": 2}
    stretch = [(0, False), *((index, True) for index in range(1, 5))]
    for _ in range(2):  # nothing of ours is before the first op of a step
        executable.run(sizes)
        assert device.told == stretch
        device.told.clear()
    executable.capture_pieces("rows", sizes)
    assert device.told == [(0, False), (1, True), (4, False)]
    device.told.clear()
    executable.run(sizes)
    assert device.told == ["graph", (2, False), (3, True), "graph"]
    device.told.clear()
    executable.capture(sizes)
    assert device.told == stretch


def test_bindings_are_kept_and_their_number_is_bounded():
    planned = plan_program("decode", decode_step(2 * MAX_BINDINGS))
    executable = on_cpu(planned, allocated([planned]))
    first = executable.bind({"rows": 1})
    for rows in range(2, MAX_BINDINGS + 1):
        executable.bind({"rows": rows})
    assert executable.bind({"rows": 1}) is first
    second = executable.bind({"rows": 2})
    for rows in range(MAX_BINDINGS + 1, 2 * MAX_BINDINGS):  # all but the last used one go
        executable.bind({"rows": rows})
    assert executable.bind({"rows": 2}) is second
    assert executable.bind({"rows": 1}) is not first


def test_a_run_leaves_temporaries_and_stale_outputs_poisoned():
    planned = plan_program("decode", decode_step(8))
    arena = allocated([planned])
    executable = on_cpu(planned, arena, {}, {}, poison=True)
    executable.inputs({"rows": 8})["x"][...] = 1
    executable.run({"rows": 8})
    temporaries = ArrayType((planned.assignment.arena_bytes,), "uint8")
    assert (arena.view(TEMPORARIES, temporaries) == 0xFF).all()

    forgetful = PlannedProgram(
        Program("nothing", planned.program.buffers, [], planned.program.dims), planned.assignment
    )
    outputs = on_cpu(forgetful, arena, poison=True).run({"rows": 2})
    assert np.isnan(outputs["out"]).all() and np.isnan(outputs["deep"]).all()


# --- any programs over one arena


def by_name(program: Program, arrays, kind: Kind):
    return {buffer.name: arrays[buffer] for buffer in program.of_kind(kind)}


@given(
    st.lists(recipes(), min_size=2, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, MAX_ROWS), st.integers(1, 4)), max_size=6),
)
def test_programs_in_one_arena_do_not_disturb_each_other(chosen: list[Recipe], runs):
    maxima = (MAX_ROWS, 3, MAX_ROWS // 2)
    programs = [recipe.trace(n, 4) for recipe, n in zip(chosen, maxima, strict=False)]
    plans = [PlannedProgram(program, assign_buffers(program)) for program in programs]
    arena = allocated(plans)
    fixed = [make_arrays(program, 1, 1, seed=7) for program in programs]
    executables = [
        on_cpu(
            plan,
            arena,
            by_name(plan.program, arrays, Kind.WEIGHT),
            by_name(plan.program, arrays, Kind.STATE),
            poison=True,
        )
        for plan, arrays in zip(plans, fixed, strict=True)
    ]
    for seed, (pick, rows, seqs) in enumerate(runs):
        index = pick % len(plans)
        program, executable, rows = programs[index], executables[index], min(rows, maxima[index])
        bound = make_arrays(program, rows, seqs, seed)
        kept = program.of_kind(Kind.WEIGHT, Kind.STATE)
        bound.update((buffer, fixed[index][buffer]) for buffer in kept)
        expected = plain_run(program, bound)
        sizes = {"rows": rows, "seqs": seqs}
        inputs = executable.inputs(sizes)
        for buffer in program.of_kind(Kind.INPUT):
            inputs[buffer.name][...] = bound[buffer]
        outputs = executable.run(sizes)
        assert outputs.keys() == {buffer.name for buffer in program.of_kind(Kind.OUTPUT)}
        for buffer in program.of_kind(Kind.OUTPUT):
            assert_same_bits(outputs[buffer.name], expected[buffer], buffer)
        for buffer in program.of_kind(Kind.STATE):
            assert_same_bits(bound[buffer], expected[buffer], buffer)


# --- what does not fit


@pytest.fixture
def planned():
    def step(t: Tracer) -> None:
        x = t.input("x", (t.dim("rows", 4), 8), "float32")
        y = t.call(LINEAR, x, t.weight("w", (8, 8), "float32"))
        t.output(t.call(ACCUMULATE, t.state("total", (8,), "float32"), y))

    return plan_program("step", step)


def test_arrays_that_do_not_fit_are_named(planned):
    arena = allocated([planned])
    w, total = np.zeros((8, 8), np.float32), np.zeros(8, np.float32)
    on_cpu(planned, arena, {"w": w, "more": w}, {"total": total})
    for weights, state, message in (
        ({}, {"total": total}, "bind: no array is given for weight 'w'"),
        ({"w": w}, {}, "bind: no array is given for state 'total'"),
        ({"w": w[:7]}, {"total": total}, r"bind: weight 'w' is float32\[7, 8\], expected float32"),
        ({"w": w}, {"total": total.astype(DTYPES["bfloat16"])}, r"bind: state 'total' is bfloat16"),
        ({"w": w.T}, {"total": total}, r"bind: weight 'w' has strides \[4, 32\], expected a C-con"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            on_cpu(planned, arena, weights, state)


def test_an_arena_that_was_not_planned_for_the_program(planned):
    fixed = {"w": np.zeros((8, 8), np.float32), "total": np.zeros(8, np.float32)}
    with pytest.raises(ValueError, match=r"^Arena: nothing is allocated yet"):
        on_cpu(planned, plan_arena([planned]), fixed, fixed).bind({"rows": 1})
    small, large = (plan_program("decode", decode_step(n)) for n in (2, 8))
    with pytest.raises(ValueError, match=r"^Arena: float32\[8, 64\] at 0 of region 'inputs' ends "):
        on_cpu(large, allocated([small])).bind({"rows": 8})
    with pytest.raises(ValueError, match=r"^bind: axis 'rows' is 5, expected 0 to 4"):
        on_cpu(planned, allocated([planned]), fixed, fixed).bind({"rows": 5})


def test_a_program_that_needs_no_temporaries():
    def step(t: Tracer) -> None:
        t.output(t.call(MAKE, t.input("x", (2,), "float32"), n=3))

    planned = plan_program("step", step)
    executable = on_cpu(planned, allocated([planned]), poison=True)
    executable.inputs({})["x"][...] = 1, 2
    assert executable.run({})["out"].tolist() == [1, 2, 1]
