"""Sampling and log-probabilities of few rows on the CPU: every case in the form of sm_90a.

It takes any number of rows here; a row must have the bits that it has among many.
"""

from dataclasses import replace

import numpy as np
import pytest
from conftest import needs_compiler
from emulated_identities.sampling import LOGPROBS_CASES_OF_RANKS, SAMPLE_CASES_OF_RANKS

from cugraphs.emulation import emulate
from cugraphs.emulation.emulate import bind_launches
from cugraphs.expected_results import ExpectedResults
from cugraphs.kernels import logprobs, sample
from cugraphs.testing import case_arrays

pytestmark = needs_compiler
KERNELS = [replace(kernel, benchmarks=()) for kernel in (sample.SAMPLE, logprobs.LOGPROBS)]
HOW = {
    "bfloat16": {"checked": True},
    "float16": {"order": "random", "seed": 1},
    "float32": {"order": "reverse"},
}
# Already checked, in bfloat16 too, by the identity `few_rows_are_right`.
CHECKED = {"sample": SAMPLE_CASES_OF_RANKS, "logprobs": LOGPROBS_CASES_OF_RANKS}
LARGE = ("large_vocab", "far_tail", "one_row", "few_rows_nearly_flat")  # too slow to be checked


@pytest.fixture(autouse=True)
def any_rows(monkeypatch):
    for module in (sample, logprobs):
        monkeypatch.setattr(module, "MAX_FEW_ROWS", 1 << 20)


def few_and_many(kernel, case, dtype, **how):
    """What the form for few rows returns and leaves, and what the one for many does."""
    arrays = case_arrays(kernel, case, dtype)
    _, (launch,) = bind_launches(kernel, arrays, case.attrs)
    assert launch.arch == "sm_90a" and launch.cluster > 1
    few, many = ([array.copy() for array in arrays] for _ in range(2))
    found = emulate(kernel, few, case.attrs, arch="sm_90", **how)
    return arrays, (found, few), (emulate(kernel, many, case.attrs), many)


@pytest.mark.parametrize("dtype", HOW)
@pytest.mark.parametrize(
    ("kernel", "case"),
    [(kernel, case) for kernel in KERNELS for case in kernel.cases],
    ids=lambda value: value.name,
)
def test_every_case_is_right_and_has_the_bits_of_many_rows(kernel, case, dtype):
    how = {} if case.name in LARGE else HOW[dtype]
    if case.name in CHECKED[kernel.name] and "checked" in how:
        how = {}
    arrays, (found, left), (of_many, left_of_many) = few_and_many(kernel, case, dtype, **how)
    verdict = ExpectedResults(kernel, arrays, case.attrs).judge(found, left)
    assert not verdict.problem, verdict.problem
    for one, other in zip((*found, *left), (*of_many, *left_of_many), strict=True):
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
