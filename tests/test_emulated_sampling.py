"""Sampling of few rows on the CPU: every case in the form of sm_90a, of any number of rows."""

from dataclasses import replace

import pytest
from conftest import needs_compiler

from cugraphs.emulation import emulate
from cugraphs.emulation.emulate import bind_launches
from cugraphs.expected_results import ExpectedResults
from cugraphs.kernels import sample
from cugraphs.testing import case_arrays

pytestmark = needs_compiler
KERNEL = replace(sample.SAMPLE, benchmarks=())
HOW = {
    "bfloat16": {"checked": True},
    "float16": {"order": "random", "seed": 1},
    "float32": {"order": "reverse"},
}
LARGE = ("large_vocab", "far_tail", "one_row", "few_rows_nearly_flat")  # too slow to be checked


@pytest.fixture(autouse=True)
def any_rows(monkeypatch):
    monkeypatch.setattr(sample, "MAX_FEW_ROWS", 1 << 20)


@pytest.mark.parametrize("dtype", HOW)
@pytest.mark.parametrize("case", KERNEL.cases, ids=lambda case: case.name)
def test_every_case_has_the_tokens_of_the_reference(case, dtype):
    arrays = case_arrays(KERNEL, case, dtype)
    _, (launch,) = bind_launches(KERNEL, arrays, case.attrs)
    assert launch.arch == "sm_90a"
    given = [array.copy() for array in arrays]
    how = {} if case.name in LARGE else HOW[dtype]
    found = emulate(KERNEL, given, case.attrs, arch="sm_90", **how)
    verdict = ExpectedResults(KERNEL, arrays, case.attrs).judge(found, given)
    assert not verdict.problem, verdict.problem


@pytest.mark.parametrize("name", ["all_filters", "several_chunks", "top_k_of_many", "far_peak"])
def test_a_row_has_the_same_token_among_few_as_among_many(name):
    (case,) = (case for case in KERNEL.cases if case.name == name)
    arrays = case_arrays(KERNEL, case, "bfloat16")
    (few,) = emulate(KERNEL, [a.copy() for a in arrays], case.attrs, arch="sm_90")
    (many,) = emulate(KERNEL, [a.copy() for a in arrays], case.attrs)
    assert few.tolist() == many.tolist()
