"""Neighbouring ops that are one launch: which they are, how it is packed, that it is the same."""

import ctypes
import sys
import types
from dataclasses import replace

import numpy as np
import pytest
from conftest import needs_compiler
from device_arrays import OnDevice
from planted_meetings import BLOCKS, LAYERS, PLANTED, WORDS, N, clear_places, expected, inputs

from cugraphs import launch
from cugraphs.cuda_device import CudaDevice
from cugraphs.emulation import emulate
from cugraphs.emulation.emulate import bind_launches
from cugraphs.interpreter import interpret
from cugraphs.joined_ops import joined_ops, queued_launches
from cugraphs.kernel import (
    DTYPES,
    MAX_STACK,
    NOTHING,
    Access,
    ArrayType,
    Launch,
    MatrixProduct,
    Operand,
    running_on,
)
from cugraphs.kernel_loading import launched_functions
from cugraphs.launch import PreparedLaunch, prepare
from cugraphs.pricing import price_step
from cugraphs.program import Buffer, Kind
from cugraphs.trace import Tracer

PLACES = 3


def trace(layers=LAYERS, *, mistakes=(), rows=(), ends=None):
    """Layers, one after the other; some of another scalar, or with a row of their own."""
    t = Tracer("layers")
    x = t.input("x", (N,), "bfloat16")
    places = [t.state(f"place.{i}", (WORDS,), "int32") for i in range(PLACES)]
    for layer in range(layers):
        if layer in rows:
            x = t.input(f"x.{layer}", (N,), "bfloat16")
        gain = t.weight(f"gain.{layer}", (N,), "bfloat16")
        of_layer = (places[layer % PLACES], places[(layer + 1) % PLACES], x, gain)
        mistake = "kNone" if layer not in mistakes else "kLooksOnce"
        x = t.call(PLANTED, *of_layer, mistake=mistake)
        if layer == ends:
            t.output(x, "early")
    t.output(x, "out")
    return t.program


def launches_of(program):
    found = []
    for op in program.ops:
        (one,) = op.kernel.launches(op.axes, "bfloat16", **op.attrs)
        found.append(one)
    return found


def joined(program, launches=None):
    return [len(run) for run in joined_ops(program, launches or launches_of(program))]


def test_layers_that_go_on_with_what_the_one_before_left_are_joined():
    assert joined(trace(5)) == [5]
    assert joined(trace(1)) == [1]
    runs = joined_ops(trace(3), launches_of(trace(3)))
    assert runs == [range(3)]


def test_no_more_are_joined_than_a_stack_holds():
    assert joined(trace(2 * MAX_STACK + 3)) == [MAX_STACK, MAX_STACK, 3]


@pytest.mark.parametrize(
    "change",
    [{"mistakes": (2,)}, {"rows": (2,)}, {"ends": 1}],
    ids=["another_scalar", "another_row", "a_result_that_is_wanted"],
)
def test_layers_that_do_not_go_on_are_not_joined(change):
    assert joined(trace(5, **change)) == ([2, 1, 2] if "mistakes" in change else [2, 3])


def test_a_result_that_another_op_reads_too_is_not_handed_on():
    t = Tracer("two")
    x = t.input("x", (N,), "bfloat16")
    places = [t.state(f"place.{i}", (WORDS,), "int32") for i in range(PLACES)]
    gain = t.weight("gain", (N,), "bfloat16")
    first = t.call(PLANTED, places[0], places[1], x, gain, mistake="kNone")
    second = t.call(PLANTED, places[1], places[2], first, gain, mistake="kNone")
    t.output(second, "second")
    t.output(t.call(PLANTED, places[2], places[0], first, gain, mistake="kNone"), "third")
    assert joined(t.program) == [1, 1, 1]


def test_what_is_not_of_the_stack_must_be_the_same():
    program = trace(4)
    own_gain = [
        replace(one, operands=("out", "x", "gain"), stack=("here",)) for one in launches_of(program)
    ]
    assert joined(program, own_gain) == [1, 1, 1, 1]


def with_cache(cache, here, next_place, x, gain, *, mistake):
    """A layer's reference, which nobody runs."""
    raise NotImplementedError


def give_caches(program, size, dtype, caches):
    """Make it the same layers with a cache each, which they update; returns their launches."""
    out, *others = PLANTED.operands
    cache = Operand("cache", (size,), dtype, Access.UPDATE)
    kernel = replace(PLANTED, operands=(out, cache, *others), reference=with_cache)
    program.ops[:] = [
        replace(op, kernel=kernel, operands=(op.operands[0], buffer, *op.operands[1:]))
        for op, buffer in zip(program.ops, caches, strict=True)
    ]
    return [replace(one, stack=(*one.stack, "cache")) for one in launches_of(program)]


@pytest.mark.parametrize(
    ("caches", "runs"), [("abcd", [4]), ("abbc", [2, 2]), ("abca", [3, 1]), ("aaaa", [1] * 4)]
)
def test_what_one_layer_updates_no_later_one_has(caches, runs):
    """A layer's cache, say, of which a later one would read what was there before."""
    program = trace(4)
    type_ = ArrayType((WORDS,), "int32")
    made = {name: Buffer(100 + i, name, type_, Kind.STATE) for i, name in enumerate("abcd")}
    launches = give_caches(program, "words", "int32", [made[name] for name in caches])
    assert joined(program, launches) == runs


def test_what_one_layer_updates_no_later_one_reads_under_another_name():
    program = trace(3)
    states = [Buffer(100 + i, str(i), ArrayType((N,), "bfloat16"), Kind.STATE) for i in range(3)]
    launches = give_caches(program, "n", "T", states)
    assert joined(program, launches) == [3]
    assert program.ops[2].kernel.operands[-1].name == "gain"
    program.ops[2] = replace(program.ops[2], operands=(*program.ops[2].operands[:-1], states[0]))
    assert joined(program, launches) == [2, 1]


@pytest.mark.parametrize(
    ("places", "runs"),
    [
        ([(0, 1), (1, 2), (2, 0), (0, 1)], [4]),
        ([(0, 1), (2, 0), (0, 1), (1, 2)], [1, 3]),  # the first clears what nobody uses next
        ([(0, 1), (1, 0), (0, 1), (1, 2)], [1, 1, 2]),  # two by turns: cleared while it is read
        ([(0, 1), (1, 2), (2, 1), (1, 0)], [2, 2]),
    ],
)
def test_layers_are_joined_where_each_clears_the_place_of_the_next(places, runs):
    program = trace(4)
    states = list(program.of_kind(Kind.STATE))
    here, following = (
        [operand.name for operand in PLANTED.operands].index(n) for n in ("here", "next_place")
    )
    for index, (own, other) in enumerate(places):
        operands = list(program.ops[index].operands)
        operands[here], operands[following] = states[own], states[other]
        program.ops[index] = replace(program.ops[index], operands=tuple(operands))
    assert joined(program) == runs


def test_launches_without_a_stack_or_of_others_are_not_joined():
    program = trace(3)
    assert joined(program, [None] * 3) == [1, 1, 1]
    alone = [replace(one, stack=(), operands=None) for one in launches_of(program)]
    assert joined(program, alone) == [1, 1, 1]


def test_a_step_is_priced_by_what_is_queued():
    program = trace(5, rows=(2,))
    queued = queued_launches(program, {}, "sm_90")
    assert [len(parts) for parts in queued] == [1, 0, 1, 0, 0]
    assert price_step(program, {}, context=0, arch="sm_90").launches == 2
    assert [len(parts) for parts in queued_launches(program, {}, "sm_90", BLOCKS - 1)] == [1] * 5


@needs_compiler
def test_joined_layers_are_what_the_program_says():
    program = trace()
    x, gains = inputs()
    arrays = {b: a for b, a in zip(program.of_kind(Kind.STATE), clear_places(), strict=True)}
    (given,) = program.of_kind(Kind.INPUT)
    arrays[given] = x
    arrays |= dict(zip(program.of_kind(Kind.WEIGHT), gains, strict=True))
    (out,) = interpret(program, arrays).values()
    np.testing.assert_array_equal(out, expected())
    (run,) = joined_ops(program, launches_of(program))
    first, *others = [program.ops[index] for index in run]
    names = [operand.name for operand in PLANTED.operands]
    stacked = [
        {n: arrays[b] for n, b in zip(names, op.operands, strict=True) if n not in ("out", "x")}
        for op in others
    ]
    own = [arrays[buffer] for buffer in first.read]
    (found,) = emulate(PLANTED, own, first.attrs, arch="sm_90", stacked=stacked)
    np.testing.assert_array_equal(found, out)


# ----------------------------------------------------------------------------------- on a device


@pytest.fixture
def card(monkeypatch):
    """What is asked of the card; its multiprocessors, and blocks on each, can be changed."""
    pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings (extra dev)")
    found = types.SimpleNamespace(multiprocessors=132, on_each=1, asked=[])
    monkeypatch.setattr(launch, "_function", lambda *args: 77)
    monkeypatch.setattr(launch, "device_arch", lambda: "sm_90")
    monkeypatch.setattr(launch, "device_multiprocessors", lambda: found.multiprocessors)

    def occupancy(function, block, shared_bytes):
        found.asked.append((int(function), block, shared_bytes))
        return (found.error, found.on_each)

    from cuda.bindings import driver

    found.error = driver.CUresult.CUDA_SUCCESS
    monkeypatch.setattr(driver, "cuOccupancyMaxActiveBlocksPerMultiprocessor", occupancy)
    launch._plan.cache_clear()
    yield found
    launch._plan.cache_clear()


def prepared(layer, kernel=PLANTED):
    """One layer; its operands lie at addresses that tell which they are."""
    x, gains = inputs()
    arrays = (x, *clear_places(2), x, gains[0])
    on_device = [OnDevice(array, 1 << 20 | layer << 12 | i << 8) for i, array in enumerate(arrays)]
    how = {"stream": 5, "cublaslt": None, "workspace": None}
    return prepare(kernel, on_device, {"mistake": "kNone"}, **how)


def at(layer, operand):
    return 1 << 20 | layer << 12 | operand << 8


def test_the_driver_finds_the_stack_first_then_the_first_x_and_the_last_out(card):
    one = PreparedLaunch.join([prepared(layer)[0] for layer in range(3)])
    assert one.declared == prepared(0)[0].declared
    where = (ctypes.c_uint64 * 4).from_address(one._arguments)
    words = (ctypes.c_uint64 * (3 * MAX_STACK + 1)).from_address(where[0])
    elements = [at(layer, operand) for layer in range(3) for operand in (4, 1, 2)]
    assert [*words] == [*elements, *[0] * (3 * (MAX_STACK - 3)), 3]
    out, x = (ctypes.c_uint64.from_address(address).value for address in where[1:3])
    assert (out, x) == (at(2, 0), at(0, 3))
    assert ctypes.c_int32.from_address(where[3]).value == N


def test_a_layer_alone_has_a_stack_of_one(card):
    (one,) = prepared(5)
    where = (ctypes.c_uint64 * 4).from_address(one._arguments)
    words = (ctypes.c_uint64 * (3 * MAX_STACK + 1)).from_address(where[0])
    assert [*words][:4] == [at(5, 4), at(5, 1), at(5, 2), 0] and words[3 * MAX_STACK] == 1


def test_blocks_that_meet_are_launched_all_at_once(card):
    from cuda.bindings import driver

    seen = []

    def launched(config, function, arguments, extra):
        seen.append([attribute.id for attribute in config.attrs])
        return (0,)

    (one,) = prepared(0)
    one._form.launch = launched
    one()
    one(True)
    ids = driver.CUlaunchAttributeID
    meets, early = (
        ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
        ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
    )
    assert seen == [[meets], [meets, early]]


@pytest.mark.parametrize("poison", [False, True])
def test_a_device_queues_joined_layers_with_the_first_and_ruins_nothing_before_the_last(
    card, monkeypatch, poison
):
    events = []
    device = object.__new__(CudaDevice)
    device._build, device.cublaslt, device.stream = (), None, types.SimpleNamespace(ptr=5)
    monkeypatch.setattr(device, "_poison", lambda arrays: events.append(len(arrays)))
    program = trace(5, mistakes=(4,))
    dtypes = {"bfloat16": DTYPES["bfloat16"], "int32": np.int32}
    arrays = {
        b: OnDevice(np.empty(b.type.shape, dtypes[b.type.dtype]), 1 << 20 | b.id << 12)
        for b in program.buffers
    }
    ops = device.bind(program, arrays, workspace=None, poison=poison)
    assert len(ops) == 5

    def launched(config, function, arguments, extra):
        where = ctypes.c_uint64.from_address(arguments).value
        events.append(f"{ctypes.c_int64.from_address(where + 8 * 3 * MAX_STACK).value} layers")
        return (0,)

    for each in (ops[0], ops[4]):
        each.args[1][0]._form.launch = launched
    after_ours = True
    for each in ops:
        after_ours = each(after_ours)
    assert [event for event in events if event] == (
        ["4 layers", 1, "1 layers", 1] if poison else ["4 layers", "1 layers"]
    )
    assert after_ours or poison


def with_another(axes, dtype, *, mistake):
    (one,) = PLANTED.launches(axes, dtype, mistake=mistake)
    return (replace(one, elsewhere=(Launch("apart", (1, 1, 1), 32),)),)


def test_a_card_that_has_no_room_for_all_blocks_runs_something_else(card):
    kernel = replace(PLANTED, launches=with_another)
    assert [part.label for part in prepared(0, kernel)] == [
        "planted_meetings<__nv_bfloat16, kNone>"
    ]
    launch._plan.cache_clear()
    card.multiprocessors = BLOCKS - 1
    assert [part.label for part in prepared(0, kernel)] == ["apart"]


def test_a_context_that_has_no_room_for_all_blocks_runs_something_else(card):
    kernel = replace(PLANTED, launches=with_another)
    (one,) = prepared(0, kernel)
    assert card.asked == [(77, one.declared.block, one.declared.shared_bytes)]
    launch._plan.cache_clear()
    card.on_each = 0
    assert [part.label for part in prepared(0, kernel)] == ["apart"]


@pytest.fixture
def context(monkeypatch):
    """What the driver answers for the current context, on a card of 132 multiprocessors."""
    driver = pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings (extra dev)")
    found = types.SimpleNamespace(multiprocessors=132, error=driver.CUresult.CUDA_SUCCESS)
    success = found.error
    cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(Device=lambda: found))
    found.id = 0

    def resource(context, kind):
        assert (context, kind) == (55, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
        if found.error is None:
            raise RuntimeError('Function "cuCtxGetDevResource" not found')
        if found.error:
            return found.error, None
        return success, types.SimpleNamespace(
            sm=types.SimpleNamespace(smCount=found.multiprocessors)
        )

    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(launch, "_multiprocessors", lambda device: 132)
    monkeypatch.setattr(driver, "cuCtxGetCurrent", lambda: (success, 55))
    monkeypatch.setattr(driver, "cuCtxGetDevResource", resource)
    return found


@pytest.mark.parametrize("count", [64, 132, 200])
def test_multiprocessors_are_those_of_the_context(context, count):
    context.multiprocessors = count
    assert launch.device_multiprocessors() == min(count, 132)


@pytest.mark.parametrize("error", ["CUDA_ERROR_NOT_SUPPORTED", None])
def test_a_driver_that_knows_no_parts_of_a_device_has_all_of_it(context, error):
    from cuda.bindings import driver

    context.error = error and getattr(driver.CUresult, error)
    assert launch.device_multiprocessors() == 132


def test_a_driver_that_does_not_say_how_many_blocks_run_at_once_is_told_of(card):
    from cuda.bindings import driver

    card.error = driver.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(RuntimeError, match="the driver answers with CUDA_ERROR_INVALID_VALUE"):
        prepared(0, replace(PLANTED, launches=with_another))


def test_what_runs_elsewhere_may_be_for_one_architecture_too():
    anywhere = Launch("anywhere", (1, 1, 1), 32)
    narrow = replace(anywhere, function="narrow", arch="sm_90a", elsewhere=(anywhere,))
    wide = replace(narrow, function="wide", grid=(99, 1, 1), meets=True, elsewhere=(narrow,))
    assert wide.on("sm_90", 99) == (wide,) and wide.on("sm_90", 98) == (narrow,)
    assert running_on("sm_100", [wide]) == running_on("", [wide]) == [anywhere]
    (inner,) = wide.renamed(["a", "b"], {"a": "first"}).elsewhere
    assert inner.operands == inner.elsewhere[0].operands == ("first", NOTHING)
    product = replace(narrow, elsewhere=(MatrixProduct(),))
    with pytest.raises(ValueError, match="narrow has tensor maps or a product of cuBLASLt elsewhe"):
        product.renamed([], {})


def test_what_is_loaded_ahead_is_what_the_card_runs():
    t = Tracer("one")
    x, gain = (t.input(name, (N,), "bfloat16") for name in ("x", "gain"))
    places = [t.state(f"place.{i}", (WORDS,), "int32") for i in range(2)]
    kernel = replace(PLANTED, launches=with_another)
    t.output(t.call(kernel, *places, x, gain, mistake="kNone"), "out")
    sizes = [(t.program, {})]
    for multiprocessors, wanted in ((None, "planted"), (BLOCKS, "planted"), (BLOCKS - 1, "apart")):
        ((function, _),) = launched_functions(sizes, "sm_90", multiprocessors).items()
        assert function[1].startswith(wanted)
    _, found = bind_launches(
        kernel, (*clear_places(2), *inputs()[:1], inputs()[1][0]), {"mistake": "kNone"}
    )
    assert [part.function for part in running_on("", found)] == ["apart"]
