"""Blocks that meet in memory, in the emulation: right kernels pass, planted mistakes are found."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import needs_compiler
from planted_meetings import LAYERS, PLANTED, SOURCE, N, clear_places, expected, inputs

from cugraphs.emulation import emulate
from cugraphs.kernel import CUDA_TYPES, Access, Cost, Kernel, Launch, Operand
from cugraphs.nvrtc import compile_cubin

pytestmark = needs_compiler

ORDERS = ("forward", "reverse", "random")
_WHAT = "(looked at|put|cleared|an arrival|a wait)"
_DISORDER = rf"{_WHAT} here, .* block \d .*and nothing orders that before"
# The mistake, and what the message must say of it.
WRONG = {
    "kNoClear": r"put here, where a value was not cleared since its last use",
    "kClearsBehind": _DISORDER,
    "kDoesNotRelease": _DISORDER,
    "kDoesNotAcquire": _DISORDER,
    "kNoBarrierBefore": _DISORDER,
    "kNoBarrierAfter": _DISORDER,
    "kPlainLoad": r"race on here.*read here, written by (block|thread)",
    "kPlainStore": r"race on here|looked at here, where a value of an earlier launch",
    "kOneShort": rf"{_DISORDER}|deadlock",
    "kOneMore": r"deadlock: thread \d+ waits here for threads that never come",
    "kCountStays": _DISORDER,
    "kAllOnes": r"a value of all ones is put",
    "kReturnsEarly": r"deadlock: thread \d+ waits here for threads that never come",
}


def run(mistake="kNone", dtype="bfloat16", places=None, layers=LAYERS, **how):
    """All layers in one launch; places are used by turns."""
    places = places or clear_places()
    x, gains = inputs(dtype)
    elements = [
        {
            "here": places[layer % len(places)],
            "next_place": places[(layer + 1) % len(places)],
            "gain": gains[layer],
        }
        for layer in range(layers)
    ]
    first = (elements[0]["here"], elements[0]["next_place"], x, elements[0]["gain"])
    attrs = {"mistake": mistake}
    return emulate(PLANTED, first, attrs, arch="sm_90", stacked=elements[1:], **how)[0]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_right_layers_pass(dtype, checked, order):
    found = run(dtype=dtype, checked=checked, order=order)
    np.testing.assert_array_equal(found, expected(dtype))


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_as_many_layers_as_are_stacked(layers):
    np.testing.assert_array_equal(run(layers=layers), expected(layers=layers))


def test_launches_follow_each_other_on_the_same_places():
    places = clear_places()
    for _ in range(3):  # 6 layers use 3 places twice, so that the next launch finds the first clear
        np.testing.assert_array_equal(run(places=places, layers=6), expected(layers=6))
    assert (places[0] == -1).all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mistake", WRONG)
def test_a_planted_mistake_is_found(mistake, order):
    with pytest.raises(AssertionError, match=WRONG[mistake]):
        run(mistake, checked=True, order=order)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_right_layers_compile_for_the_architecture(dtype):
    assert compile_cubin(SOURCE, f"planted_meetings<{CUDA_TYPES[dtype]}, 0>", "sm_90a")


@pytest.mark.parametrize("order", ["forward", "random"])
def test_a_look_that_is_not_repeated_finds_nothing(order):
    assert not np.array_equal(run("kLooksOnce", order=order), expected())


@pytest.mark.parametrize("order", ORDERS)
def test_two_places_are_too_few(order):
    """What a block clears in a layer, another may still look at."""
    with pytest.raises(AssertionError, match=_DISORDER):
        run(places=clear_places(2), order=order)


def test_places_that_were_not_cleared_are_found():
    dirty = clear_places()
    dirty[0][16:] = 0
    with pytest.raises(AssertionError, match=r"put here, where a value was not cleared since"):
        run(places=dirty)
    dirty = clear_places()
    dirty[0][0] = 3
    with pytest.raises(AssertionError, match=r"an arrival at a count that was not cleared since"):
        run(places=dirty)


def test_values_are_looked_at_in_the_size_in_which_they_are_put():
    with pytest.raises(AssertionError, match=r"a place of \d bytes is used as one of \d"):
        run("kOtherSize")


def fours(dtype, off):
    launch = Launch(f"planted_fours<{CUDA_TYPES[dtype]}, {off}>", (2, 1, 1), N // 8)
    return Kernel(
        "planted_fours",
        (
            Operand("out", ("n",), "T", Access.WRITE),
            Operand("place", ("words",), "int32", Access.UPDATE, scratch=True),
            Operand("x", ("n",), "T"),
        ),
        reference=lambda place, x: (np.roll(x, N // 2),),
        cost=lambda axes, dtype: Cost(0, 0),
        source=SOURCE,
        launches=lambda axes, dtype: (
            replace(
                launch,
                scalars=(np.int32(N),),
                operands=("out", "place", "x"),
                programmatic=True,
                arch="sm_90a",
                elsewhere=(),
                meets=True,
            ),
        ),
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_four_values_are_put_at_once(dtype):
    x, place = inputs(dtype)[0], clear_places(1)[0]
    (found,) = emulate(fours(dtype, 0), (place, x), {}, arch="sm_90", checked=True)
    np.testing.assert_array_equal(found, np.roll(x, N // 2))
    rows = place.view(x.dtype)
    np.testing.assert_array_equal(rows[:N], found)
    assert (place[N * x.itemsize // 4 :] == -1).all()
    assert compile_cubin(SOURCE, f"planted_fours<{CUDA_TYPES[dtype]}, 0>", "sm_90a")
    with pytest.raises(AssertionError, match=rf"misaligned store of {4 * x.itemsize} bytes of pl"):
        emulate(fours(dtype, 2), (place, x), {}, arch="sm_90")


def polling(function):
    operands = (Operand("out", ("n",), "float32", Access.WRITE), Operand("x", ("n",), "float32"))
    launch = Launch(function, (2, 1, 1), 64, (np.int32(N // 64),), shared_bytes=512)
    return Kernel(
        "planted_polls",
        operands,
        reference=lambda x: (x,),
        cost=lambda axes, dtype: Cost(0, 0),
        source=SOURCE,
        launches=lambda axes, dtype: (
            replace(launch, operands=("out", "x"), arch="sm_90a", elsewhere=(), cluster=2),
        ),
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
def test_a_warp_polls_while_others_wait_for_it(checked, order):
    x, how = np.arange(N, dtype=np.float32), {"checked": checked, "order": order}
    (found,) = emulate(polling("planted_polls<true>"), (x,), {}, arch="sm_90", **how)
    np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("order", ORDERS)
def test_a_warp_that_polls_for_nothing_is_a_deadlock(order):
    x = np.arange(N, dtype=np.float32)
    with pytest.raises(AssertionError, match=r"deadlock: thread \d+ waits here for threads that"):
        emulate(polling("planted_polls<false>"), (x,), {}, arch="sm_90", order=order)


def test_a_launch_that_meets_has_an_architecture_and_blocks_in_x_alone():
    plain = Launch("f", (8, 1, 1), 64)
    with pytest.raises(ValueError, match=r"f meets with arch '', clusters of 1 and a grid of"):
        replace(plain, meets=True)
    meets = replace(plain, meets=True, arch="sm_90a", elsewhere=(plain,))
    with pytest.raises(ValueError, match=r"f meets with arch 'sm_90a', .* expected an arch"):
        replace(meets, grid=(4, 2, 1))
    with pytest.raises(ValueError, match=r"f meets with arch 'sm_90a', clusters of 4"):
        replace(meets, cluster=4)


def test_a_card_with_fewer_multiprocessors_is_elsewhere():
    plain = Launch("f", (8, 1, 1), 64)
    meets = replace(plain, function="g", meets=True, arch="sm_90a", elsewhere=(plain,))
    assert meets.on("sm_90") == meets.on("sm_90", 8) == (meets,)
    assert meets.on("sm_90", 7) == meets.on("sm_100", 132) == (plain,)


def test_a_stack_says_which_operands_are_not_in_it():
    plain = Launch("f", (8, 1, 1), 64)
    for operands in (None, ("x", "gain")):
        with pytest.raises(ValueError, match=r"f has a stack of gain and operands .*, expected"):
            replace(plain, stack=("gain",), operands=operands)
