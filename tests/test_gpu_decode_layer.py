"""All layers of a decode step of one row in one launch on a GPU, at the sizes of a 1B, 3B and 8B.

Their K and V are of several lengths. The launches of each layer, which steps of two rows have, are
the other side; NumPy is for both.
"""

from dataclasses import replace

import numpy as np
import pytest
from decode_layers import layers_of, plain_layers
from device_arrays import copy_to

from cugraphs.bucketed_step import ProgramMemory
from cugraphs.buffer_assignment import assign_buffers
from cugraphs.executable import PlannedProgram
from cugraphs.fusion import fuse
from cugraphs.fusion_rules import RULES
from cugraphs.interpreter import interpret
from cugraphs.joined_ops import queued_runs
from cugraphs.kernel import MAX_STACK
from cugraphs.kernels.benchmark_sizes import MODELS
from cugraphs.kernels.decode_layer import DECODE_LAYER, layer_case
from cugraphs.kernels.launch_shapes import MULTIPROCESSORS
from cugraphs.kernels.paged_cases import Heads
from cugraphs.launch import device_arch
from cugraphs.program import Kind

pytestmark = pytest.mark.gpu

REPLAYS = 200
SIZES = {"rows": 1}
ONE_ROW = next(rule for rule in RULES if rule.fused is DECODE_LAYER)


def runner_of(device, program, arrays):
    """The program on the device, with copies of its weights and of its state; and what runs it."""
    weights, state = (
        {b.name: copy_to(device, arrays[b]) for b in program.of_kind(kind) if b in arrays}
        for kind in (Kind.WEIGHT, Kind.STATE)
    )
    planned = PlannedProgram(program, assign_buffers(program))
    executable = ProgramMemory([planned], device, weights, state).executable(planned)

    def run():
        inputs = executable.inputs(SIZES)
        for buffer in program.of_kind(Kind.INPUT):
            inputs[buffer.name][...] = arrays[buffer]
        return device.read(executable.run(SIZES)["out"])

    return executable, run


def assert_close(found, expected):
    """Rows whose sums were added in another order; roundings carry that on from layer to layer."""
    wide = expected.astype(np.float64)
    assert np.linalg.norm(found.astype(np.float64) - wide) < 0.02 * np.linalg.norm(wide)


def model_case(name, length):
    sizes = MODELS[name]
    return layer_case(f"{name}_{length}", sizes.heads, length, sizes.hidden, sizes.inter)


CASES = [
    *((model_case("1b", length), 3) for length in (1, 130, 2900)),
    (model_case("3b", 2500), 3),
    (model_case("8b", 700), 3),
    # More than one launch takes: the second goes on where the first ends, with its places.
    (layer_case("many_layers", Heads(4, 2, 64), 300), MAX_STACK + 4),
    # A place has more counts than a block has threads.
    (layer_case("many_kv_heads", Heads(128, 128, 64), 37), 5),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("case", "count"), CASES, ids=[f"{c.name}-{n}" for c, n in CASES])
def test_layers_in_one_launch_give_the_same_bits_in_every_replay(
    device, case, count, dtype, monkeypatch
):
    if device.multiprocessors < MULTIPROCESSORS:
        pytest.skip("fewer multiprocessors than the launch has blocks")
    layers, _ = layers_of(case, count, dtype)
    program, arrays = plain_layers(layers, case.attrs)
    joined = fuse(program, [replace(ONE_ROW, worth=None)])
    apart = fuse(program, [rule for rule in RULES if rule is not ONE_ROW])
    assert sum(op.kernel is DECODE_LAYER for op in joined.ops) == count
    assert all(op.kernel is not DECODE_LAYER for op in apart.ops)
    if device_arch() == "sm_90":
        runs = queued_runs(joined, SIZES, "sm_90", device.multiprocessors)
        assert max(len(run) for run, _ in runs) == min(count, MAX_STACK)

    executable, run = runner_of(device, joined, arrays)
    first = run()
    assert all(run().tobytes() == first.tobytes() for _ in range(10))
    if device.has_graphs:
        executable.capture(SIZES)
    assert all(run().tobytes() == first.tobytes() for _ in range(REPLAYS))
    with monkeypatch.context() as patch:
        patch.setattr("cugraphs.joined_ops.MAX_STACK", 1)
        assert runner_of(device, joined, arrays)[1]().tobytes() == first.tobytes()
    if count > MAX_STACK:
        return  # a rounding that differs has become a tenth of the row by then
    assert_close(first, runner_of(device, apart, arrays)[1]())
    (expected,) = interpret(program, arrays, sizes=SIZES).values()
    assert_close(first, expected)
