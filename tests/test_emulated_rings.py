"""Barriers in memory, copies and products, emulated: right kernels pass, planted races are found.

Each in every order of threads alone, also where the results are right.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import needs_compiler

from cugraphs.emulation import emulate
from cugraphs.kernel import Access, Case, Cost, Kernel, Launch, Operand
from cugraphs.nvrtc import compile_cubin

pytestmark = needs_compiler

SOURCE = Path(__file__).with_name("planted_rings.cu")
ORDERS = ("forward", "reverse", "random")
PIECES = 6

_COPY_OVER = r"race on shared memory smem .*: written here, (read|written) by thread \d+ with no b"
_NOT_THERE = r"race on shared memory smem .*: (read|written) here, written by a copy, and this th"
_EITHER = rf"{_COPY_OVER}|{_NOT_THERE}"
# The mistake, and what the message must say of it.
RINGS = {
    "kUsesBarriersAtOnce": r"a barrier is used here that thread 0 has init|read of uninitialised",
    "kCopiesUnasked": _EITHER,
    "kReadsUnasked": rf"{_NOT_THERE}|read of uninitialised",
    "kWrongParity": rf"{_NOT_THERE}|read of uninitialised|deadlock",
    "kOneLaneWaits": rf"{_NOT_THERE}|read of uninitialised",
    "kGivesBackEarly": _EITHER,
    "kGivesBackForOthers": _EITHER,
    "kOneGivesBack": rf"{_EITHER}|deadlock",
    "kWritesBehind": _EITHER,
    "kNoFence": r"written here, written by thread \d+ with no fence \(fence_shared_memory\)",
    "kOnlyReadsUnfenced": r"written here, read by thread \d+ with no fence \(fence_shared_memory\)",
    "kNoMeeting": r"race on shared memory sums|read of uninitialised shared memory sums",
    "kDoesNotWait": r"race on shared memory sums|read of uninitialised shared memory sums",
    "kWaitsForTheOther": rf"{_EITHER}|read of uninitialised",
}
PRODUCTS = {
    "kNoFence": r"read here, written by thread \d+ with no fence \(fence_shared_memory\) between",
    "kNoProductWait": r"written here, read by a product of a warp \(wgmma\) that was not waited f",
    "kOneGroupTooFew": r"written here, read by a product of a warp \(wgmma\) that was not waited f",
}


def planted(function, mistakes, threads):
    def launches(axes, dtype, *, mistake):
        name = f"{function}<{mistake}>"
        plain = Launch(name, (1, 1, 1), threads, (np.int32(PIECES),), shared_bytes=12 * 1024)
        return (replace(plain, arch="sm_90a", elsewhere=(plain,)),)

    return Kernel(
        function,
        (Operand("out", ("n",), "float32", Access.WRITE), Operand("x", ("n",), "float32")),
        reference=lambda x, *, mistake: (x,),
        cost=lambda axes, dtype, **_: Cost(0, 0),
        cases=tuple(
            Case(name, lambda rng, dtype: (np.zeros(64, np.float32),), {"mistake": name})
            for name in ("kNone", *mistakes)
        ),
        source=SOURCE,
        launches=launches,
    )


RING = planted("planted_ring", RINGS, 96)
PRODUCT = planted("planted_product", PRODUCTS, 128)


def run(kernel, mistake, **how):
    """What went in, and what came out: as many values, not all of which count."""
    x = np.random.default_rng(1).integers(-4, 5, 1024).astype(np.float32)
    return x, emulate(kernel, (x,), {"mistake": mistake}, arch="sm_90", **how)[0]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
def test_right_kernels_pass(checked, order):
    x, found = run(RING, "kNone", checked=checked, order=order)
    sums = x[: 64 * PIECES].reshape(2 * PIECES, 32).sum(0)
    np.testing.assert_array_equal(found[:64], np.tile(sums, 2))
    x, found = run(PRODUCT, "kNone", checked=checked, order=order)
    np.testing.assert_array_equal(found, 2 * 64 * np.outer(x[:64], x[64:80]).ravel())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mistake", RINGS)
def test_a_planted_race_in_a_ring_is_found(mistake, order):
    with pytest.raises(AssertionError, match=RINGS[mistake]):
        run(RING, mistake, checked=True, order=order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mistake", PRODUCTS)
def test_a_planted_race_with_a_product_is_found(mistake, order):
    with pytest.raises(AssertionError, match=PRODUCTS[mistake]):
        run(PRODUCT, mistake, checked=True, order=order)


def keeper(mistake):
    launch = Launch(f"planted_keeper<{mistake}>", (2, 1, 1), 64, (np.int32(64),), shared_bytes=128)
    return Kernel(
        "planted_keeper",
        (
            Operand("out", ("n",), "float32", Access.WRITE),
            Operand("place", ("words",), "int32", Access.UPDATE, scratch=True),
            Operand("x", ("n",), "float32"),
        ),
        reference=lambda place, x: (x,),
        cost=lambda axes, dtype: Cost(0, 0),
        source=SOURCE,
        launches=lambda axes, dtype: (
            replace(launch, programmatic=True, arch="sm_90a", elsewhere=(), meets=True),
        ),
    )


def keep(mistake, **how):
    x, place = np.arange(64, dtype=np.float32), np.full(65, -1, np.int32)
    found = emulate(keeper(mistake), (place, x), {}, arch="sm_90", **how)[0]
    np.testing.assert_array_equal(found, np.roll(x, 32))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
def test_a_clear_is_handed_on_by_a_barrier_in_memory(checked, order):
    keep("kNone", checked=checked, order=order)


@pytest.mark.parametrize("order", ORDERS)
def test_a_clear_that_is_not_handed_on_is_found(order):
    with pytest.raises(AssertionError, match=r"here, .* block \d .*, and nothing orders that"):
        keep("kNoHandOver", order=order)


@pytest.mark.parametrize("function", ["planted_ring", "planted_product", "planted_keeper"])
def test_right_kernels_compile_for_the_architecture(function):
    assert compile_cubin(SOURCE, f"{function}<0>", "sm_90a")
