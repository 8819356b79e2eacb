"""What an identity is, and what most of them are written with: runs, cases, equal bits.

An identity takes the kernels by name and raises AssertionError where it does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cugraphs.emulation import emulate
from cugraphs.expected_results import ExpectedResults
from cugraphs.kernel import Access, Array, Case, Kernel
from cugraphs.testing import case_arrays

Kernels = Mapping[str, Kernel]
Identity = Callable[[Kernels], None]

# Larger inputs than this take seconds a run, and reach no code that smaller ones do not.
MAX_ELEMENTS = 500_000


def run(
    kernel: Kernel, arrays: Sequence[Array], attrs: Mapping[str, Any], **how: Any
) -> list[Array]:
    """All that the kernel writes: WRITE operands, then the UPDATE ones."""
    given = [array.copy() for array in arrays]
    written = emulate(kernel, given, attrs, **how)
    num_updated = sum(operand.access is Access.UPDATE for operand in kernel.operands)
    return [*written, *given[:num_updated]]


def assert_same_bits(what: str, actual: Sequence[Array], expected: Sequence[Array]) -> None:
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype and a.shape == e.shape, f"{what}: other shapes or dtypes"
        a_bits, e_bits = np.ascontiguousarray(a).view(np.uint8), np.ascontiguousarray(e)
        differ = np.count_nonzero(a_bits != e_bits.view(np.uint8))
        assert not differ, f"{what}: {differ} bytes differ, expected the same bits"


def small_cases(kernel: Kernel) -> list[Case]:
    return [
        case
        for case in kernel.cases
        if sum(array.size for array in case_arrays(kernel, case, "float32")) <= MAX_ELEMENTS
    ]


def case_named(kernel: Kernel, name: str) -> Case:
    return next(case for case in kernel.cases if case.name == name)


def package_of(kernel: Kernel) -> str:
    """Where the modules are that the kernel's module imports."""
    assert kernel.launches is not None
    return kernel.launches.__module__.rpartition(".")[0]


def assert_right_on_sm_90(
    kernel: Kernel, case: Case, arrays: Sequence[Array], **options: Any
) -> None:
    """What runs on sm_90 is within the tolerance of the reference, checked and in reverse order."""
    expected = ExpectedResults(kernel, arrays, case.attrs)
    for how in ({"checked": True}, {"order": "reverse"}):
        given = [array.copy() for array in arrays]
        found = emulate(kernel, given, case.attrs, arch="sm_90", **options, **how)
        problem = expected.judge(found, given).problem
        assert not problem, f"{kernel.name} {case.name} {how}: {problem}"
