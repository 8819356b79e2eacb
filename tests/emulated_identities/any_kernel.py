"""Identities that any kernel can be asked: orders of threads, bits of the reference, roundings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from cugraphs.kernel import CUDA_TYPES, DTYPES, Access, Case, Kernel
from cugraphs.testing import ORDERS, case_arrays
from emulated_identities.identity import Identity, Kernels, assert_same_bits, run, small_cases

MAX_SHARE_NEXT_TO_TIE = 0.03


def orders_agree(name: str, dtypes: Sequence[str] = ("float32",)) -> Identity:
    """A kernel's bits do not depend on which thread comes first.

    ``dtypes``: one for each form that the kernel has.
    """

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        for case, dtype in itertools.product(small_cases(kernel), dtypes):
            arrays = case_arrays(kernel, case, dtype)
            first, *others = (run(kernel, arrays, case.attrs, order=order) for order in ORDERS)
            for order, other in zip(ORDERS[1:], others, strict=True):
                assert_same_bits(f"{name} {case.name} {dtype} in {order} order", other, first)

    check.__name__ = "orders_agree"
    return check


def reference_bits(name: str) -> Identity:
    """A kernel whose every operation is rounded on its own has the bits of its reference.

    But for the sign of a zero, which NumPy's subtraction and ours may give differently.
    """

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        for case in small_cases(kernel):
            for dtype in CUDA_TYPES:
                arrays = case_arrays(kernel, case, dtype)
                found = run(kernel, arrays, case.attrs)
                given = [array.copy() for array in arrays]
                expected = [*kernel.reference(*given, **case.attrs)]
                expected += [
                    array
                    for operand, array in zip(kernel.supplied, given, strict=False)
                    if operand.access is Access.UPDATE
                ]
                for a, e in zip(found, expected, strict=True):
                    same = (a == e) | (np.isnan(a) & np.isnan(e))
                    assert same.all(), f"{name} {case.name} {dtype}: not its reference's bits"

    check.__name__ = "reference_bits"
    return check


def rounded_once(name: str, max_share: float = MAX_SHARE_NEXT_TO_TIE) -> Identity:
    """Half-precision results are the reference's, but for the few that lie next to a tie.

    The reference rounds once, at the store. Sums in another order move a float32 by some 2^-22,
    which changes the rounding of about one result in a hundred; a second rounding to the operands'
    dtype changes a quarter of them and more, and is within the tolerance where it is averaged.
    """

    def check(kernels: Kernels) -> None:
        assert_rounded_once(kernels[name], small_cases(kernels[name]), max_share)

    check.__name__ = "rounded_once"
    return check


def assert_rounded_once(
    kernel: Kernel, cases: Sequence[Case], max_share: float, arch: str = ""
) -> None:
    for dtype in ("float16", "bfloat16"):
        num_different, num_elements = 0, 0
        for case in cases:
            arrays = case_arrays(kernel, case, dtype)
            given = [array.copy() for array in arrays]
            expected = [*kernel.reference(*given, **case.attrs), *given]
            found = run(kernel, arrays, case.attrs, arch=arch)
            updated = [None] * len(kernel.produced) + [*arrays]
            for a, e, before in zip(found, expected, updated, strict=False):
                if a.dtype != DTYPES[dtype]:
                    continue
                touched = np.ones(e.shape, bool) if before is None else e != before
                num_different += np.count_nonzero(touched & (a != e))
                num_elements += np.count_nonzero(touched)
        share = num_different / num_elements
        assert share <= max_share, (
            f"{kernel.name} {cases[0].name} {dtype}: {share:.1%} of the results differ from the "
            f"reference's, expected at most {max_share:.0%}: something is rounded more than once"
        )
