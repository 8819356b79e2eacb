"""Kernels that move rows of activations, on a GPU at sizes of real models.

Their cases are small; here every thread of a large grid has its part, and a row is computed alone
and among a thousand.
"""

import numpy as np
import pytest

from cugraphs.expected_results import ExpectedResults
from cugraphs.kernel import Access
from cugraphs.kernels import ADD, ADD_RMS_NORM, EMBEDDING, RMS_NORM, ROPE_APPEND, SILU_AND_MUL
from cugraphs.testing import case_arrays

pytestmark = pytest.mark.gpu

KERNELS = [EMBEDDING, ADD, RMS_NORM, ADD_RMS_NORM, SILU_AND_MUL, ROPE_APPEND]


def run(kernel, arrays, attrs):
    """The written operands, in declaration order."""
    from cugraphs.gpu_runs import run_on_gpu

    given = [array.copy() for array in arrays]
    produced = run_on_gpu(kernel, given, attrs)
    updated = [a for o, a in zip(kernel.supplied, given, strict=True) if o.access is Access.UPDATE]
    return [*produced, *updated], (produced, given)


def rows(kernel, arrays, count):
    """The inputs of the first rows."""
    return [
        array[:count] if operand.shape[0] == "tokens" else array
        for operand, array in zip(kernel.supplied, arrays, strict=True)
    ]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_thousand_rows_are_right_and_each_has_the_bits_that_it_has_alone(kernel):
    (case,) = (case for case in kernel.benchmarks if case.name == "8b_1024_rows")
    arrays = case_arrays(kernel, case, "bfloat16")
    found, (produced, given) = run(kernel, arrays, case.attrs)
    assert not ExpectedResults(kernel, arrays, case.attrs).judge(produced, given).problem
    for count in (1, 3, 130):
        fewer, _ = run(kernel, rows(kernel, arrays, count), case.attrs)
        for operand, few, all_ in zip(kernel.operands, fewer, found, strict=False):
            if operand.access is Access.WRITE:
                np.testing.assert_array_equal(few.view(np.uint16), all_[:count].view(np.uint16))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_rows_of_the_widest_model_are_right(kernel):
    (case,) = (case for case in kernel.benchmarks if case.name == "70b_64_rows")
    arrays = case_arrays(kernel, case, "bfloat16")
    _, (produced, given) = run(kernel, arrays, case.attrs)
    assert not ExpectedResults(kernel, arrays, case.attrs).judge(produced, given).problem
