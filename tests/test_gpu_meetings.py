"""Blocks that meet in memory on a GPU: several layers in one launch, eager and captured."""

from functools import partial

import numpy as np
import pytest
from device_arrays import copy_to
from planted_meetings import LAYERS, PLANTED, THREADS, expected, inputs

from cugraphs.bucketed_step import ProgramMemory
from cugraphs.buffer_assignment import assign_buffers
from cugraphs.executable import PlannedProgram
from cugraphs.launch import PreparedLaunch
from cugraphs.program import Kind
from cugraphs.trace import Tracer

pytestmark = pytest.mark.gpu

REPLAYS = 300


def layers_on(device, dtype):
    """All layers in one program, a block on each multiprocessor; and its weights on the device."""
    n = device.multiprocessors * THREADS
    t = Tracer("layers")
    x = t.input("x", (n,), dtype)
    places = [t.state(f"place.{i}", (16 + 2 * n,), "int32") for i in range(3)]
    for layer in range(LAYERS):
        gain = t.weight(f"gain.{layer}", (n,), dtype)
        own = (places[layer % 3], places[(layer + 1) % 3])
        x = t.call(PLANTED, *own, x, gain, mistake="kNone")
    t.output(x, "out")
    return PlannedProgram(t.program, assign_buffers(t.program)), n


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_joined_layers_give_the_same_bits_in_every_replay(device, dtype):
    planned, n = layers_on(device, dtype)
    x, gains = inputs(dtype, n)
    weights = {f"gain.{i}": copy_to(device, gain) for i, gain in enumerate(gains)}
    clear = np.full(16 + 2 * n, -1, np.int32)
    state = {b.name: copy_to(device, clear) for b in planned.program.of_kind(Kind.STATE)}
    memory = ProgramMemory([planned], device, weights, state)
    bound = memory.executable(planned)
    launches = [one for op in bound.bind({}).ops if isinstance(op, partial) for one in op.args[1]]
    assert len(launches) == 1 and isinstance(launches[0], PreparedLaunch)

    def run():
        # The layers are no multiple of the places, so that the first finds one that is not clear.
        device.poison(state)
        bound.inputs({})["x"][...] = x
        return device.read(bound.run({})["out"])

    wanted = expected(dtype, n=n).tobytes()
    for _ in range(10):
        assert run().tobytes() == wanted
    bound.capture({})
    for _ in range(REPLAYS):
        assert run().tobytes() == wanted


def test_layers_that_are_launched_one_by_one_give_the_same_bits(device):
    from cugraphs.gpu_runs import run_on_gpu

    n = device.multiprocessors * THREADS
    x, gains = inputs("bfloat16", n)
    clear = np.full(16 + 2 * n, -1, np.int32)
    for gain in gains:
        places = (clear.copy(), clear.copy())
        (x,) = run_on_gpu(PLANTED, (*places, x, gain), {"mistake": "kNone"}, how="captured")
    assert x.tobytes() == expected(n=n).tobytes()
