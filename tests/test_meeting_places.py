"""Places in which blocks meet: how many there are, who gets which, and that they begin clear."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from planted_meetings import PLANTED, N, clear_places, expected, inputs, reference

from cugraphs import step_profile
from cugraphs.bucketed_step import ProgramMemory
from cugraphs.buffer_assignment import assign_buffers
from cugraphs.cpu_device import CpuDevice
from cugraphs.executable import PlannedProgram
from cugraphs.fusion import fuse
from cugraphs.fusion_rules import HERE, NEXT_PLACE, Rule
from cugraphs.joined_ops import joined_ops
from cugraphs.kernel import ArrayType, Dim
from cugraphs.meeting_places import LEAST_LAYERS, MeetingPlaces, num_places, places_of
from cugraphs.program import Buffer, Kind
from cugraphs.step_signature import StepSignature
from cugraphs.trace import Tracer


def in_plain_words(x, gain, *, mistake):
    """One layer."""
    return reference(None, None, x, gain, mistake=mistake)


# The same without places, which a rule replaces.
PLAIN = replace(
    PLANTED,
    name="plain",
    operands=tuple([operand for operand in PLANTED.operands if not operand.scratch]),
    reference=in_plain_words,
)
RULE = Rule(
    run=(PLAIN,),
    fused=PLANTED,
    operands=((0, "out"), HERE, NEXT_PLACE, (0, "x"), (0, "gain")),
    links=(),
    place_words=lambda axes: 16 + 2 * axes["n"],
)


def trace(layers):
    t = Tracer("layers")
    x = t.input("x", (N,), "bfloat16")
    for layer in range(layers):
        gain = t.weight(f"gain.{layer}", (N,), "bfloat16")
        x = t.call(PLAIN, x, gain, mistake="kNone")
    t.output(x, "out")
    return t.program


@pytest.mark.parametrize("layers", range(LEAST_LAYERS, 130))
def test_three_layers_in_a_row_have_three_places_over_the_end_of_a_step_too(layers):
    places = [layer % num_places(layers) for layer in range(layers)]
    for layer in range(layers):
        assert len({places[(layer + i) % layers] for i in range(3)}) == 3


@pytest.mark.parametrize(("layers", "places"), [(3, 3), (16, 4), (28, 4), (32, 4), (80, 4)])
def test_models_take_few_places(layers, places):
    assert num_places(layers) == places


@pytest.mark.parametrize("layers", [3, 5, 7, 16])
def test_each_layer_clears_the_place_of_the_next_and_the_last_that_of_the_first(layers):
    program = fuse(trace(layers), [RULE])
    assert [op.kernel for op in program.ops] == [PLANTED] * layers
    own = [op.operands[1] for op in program.ops]
    assert [op.operands[2] for op in program.ops] == [*own[1:], own[0]]
    assert list(places_of([program])) == [
        f"meeting_place.planted_meetings.{i}" for i in range(num_places(layers))
    ]
    assert all(b.type.shape == (16 + 2 * N,) for b in own)
    assert len({b.id for b in program.buffers}) == len(program.buffers)
    launches = [op.kernel.launches(op.axes, "bfloat16", **op.attrs)[0] for op in program.ops]
    assert joined_ops(program, launches) == [range(layers)]


def test_places_of_one_name_are_alike():
    one, other = fuse(trace(3), [RULE]), fuse(trace(3), [RULE])
    assert [*places_of([one, other])] == [f"meeting_place.planted_meetings.{i}" for i in range(3)]
    wide = Buffer(99, "meeting_place.planted_meetings.0", ArrayType((5,), "int32"), Kind.STATE)
    other.buffers.append(wide)
    with pytest.raises(
        AssertionError, match=r"meeting_place.planted_meetings.0 is int32\[5\] and int32"
    ):
        places_of([one, other])


def test_two_kernels_of_a_program_have_places_of_their_own():
    plain = replace(PLAIN, name="plain_too")
    other = replace(PLANTED, name="planted_too")
    wide = replace(RULE, run=(plain,), fused=other, place_words=lambda axes: 16 + 4 * axes["n"])
    t = Tracer("layers")
    x = t.input("x", (N,), "bfloat16")
    for layer in range(8):
        gain = t.weight(f"gain.{layer}", (N,), "bfloat16")
        x = t.call(PLAIN if layer < 4 else plain, x, gain, mistake="kNone")
    t.output(x, "out")
    program = fuse(t.program, [RULE, wide])
    assert [op.kernel for op in program.ops] == [PLANTED] * 4 + [other] * 4
    first, second = (
        {b for op in ops for b in op.operands[1:3]} for ops in (program.ops[:4], program.ops[4:])
    )
    assert len(first) == len(second) == num_places(4) and not first & second
    assert places_of([program]) == {b.name: b.type for b in (*first, *second)}
    assert len(places_of([program])) == 2 * num_places(4)
    with pytest.raises(AssertionError, match=r"two rules give .* places of the same names"):
        fuse(t.program, [RULE, replace(RULE, run=(plain,))])


def test_fewer_layers_are_not_fused():
    program = fuse(trace(LEAST_LAYERS - 1), [RULE])
    assert [op.kernel for op in program.ops] == [PLAIN] * 2 and not places_of([program])


def executable(layers, device):
    program = fuse(trace(layers), [RULE])
    planned = PlannedProgram(program, assign_buffers(program))
    weights = dict(zip((f"gain.{i}" for i in range(layers)), inputs()[1], strict=False))
    memory = ProgramMemory([planned], device, weights, {}, poison=True, debug=True)
    return memory, memory.executable(planned)


def run(bound):
    bound.inputs({})["x"][...] = inputs()[0]
    return bound.run({})["out"]


def test_places_are_there_and_clear_without_anybody_giving_them():
    memory, bound = executable(5, CpuDevice())
    for place in memory.places.arrays.values():
        place[3:9] = 5
    for _ in range(2):
        np.testing.assert_array_equal(run(bound), expected(layers=5))
        for place in memory.places.arrays.values():
            np.testing.assert_array_equal(place, clear_places(1)[0])
    assert len(memory.places.arrays) == num_places(5)


class Interrupted(CpuDevice):
    """Its third op puts into a place, and is interrupted once."""

    interrupts = False

    def bind(self, program, arrays, **how):
        ops = super().bind(program, arrays, **how)
        place = arrays[program.ops[2].operands[1]]

        def third(after_ours):
            assert (place == -1).all()
            if self.interrupts:
                place[5] = 7
                self.interrupts = False
                raise KeyboardInterrupt
            return ops[2](after_ours)

        return [*ops[:2], third, *ops[3:]]


def test_a_step_that_was_not_queued_to_its_end_leaves_no_place_that_is_not_clear():
    device = Interrupted()
    memory, bound = executable(5, device)
    run(bound)
    device.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        run(bound)
    assert any((place == 7).any() for place in memory.places.arrays.values())
    np.testing.assert_array_equal(run(bound), expected(layers=5))


def test_a_profile_that_was_interrupted_leaves_none_that_is_believed_clear(monkeypatch):
    device = Interrupted()
    device.capture = lambda run: SimpleNamespace(launch=run)
    monkeypatch.setattr(step_profile, "CudaDevice", Interrupted)
    monkeypatch.setattr(step_profile, "replay_ms", lambda device, graph, replays: [1.0])
    memory, bound = executable(5, device)
    step = step_profile.ProfiledStep(SimpleNamespace(device=device), bound, {})
    run(bound)
    assert step._op_us(range(5)) == 1e3 / 20
    device.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        step._op_us(range(5))
    assert any((place == 7).any() for place in memory.places.arrays.values())
    np.testing.assert_array_equal(run(bound), expected(layers=5))


@pytest.mark.parametrize("at", ["while they are cleared", "in the step", "behind the step"])
def test_after_an_interrupt_the_next_step_clears_and_those_behind_it_do_not(at):
    cleared = []

    def clear():
        cleared.append(at)
        if at == "while they are cleared" and len(cleared) == 1:
            raise KeyboardInterrupt

    places = MeetingPlaces({}, clear)
    if at == "behind the step":
        places.__enter__()  # the call of __exit__ is what is interrupted
    else:
        with pytest.raises(KeyboardInterrupt), places:
            raise KeyboardInterrupt
    for _ in range(3):
        with places:
            assert len(cleared) == 2


def test_places_are_not_of_a_steps_signature():
    program = fuse(trace(4), [RULE])
    program.dims["rows"] = Dim("rows", 8)
    program.buffers.append(Buffer(99, "wanted", ArrayType((Dim("rows", 8),), "int32"), Kind.INPUT))
    planned = {8: PlannedProgram(program, assign_buffers(program))}
    signature = StepSignature.of("layers", "rows", planned)
    assert not signature.state and [*signature.inputs] == ["x", "wanted"]
