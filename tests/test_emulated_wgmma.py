"""The form of prefill attention for sm_90a on the CPU: every case that it can take, of any size.

A few blocks take all tiles, so that rings and barriers go through many rounds.
"""

from dataclasses import replace

import pytest
from conftest import needs_compiler

from cugraphs.emulation import emulate
from cugraphs.emulation.emulate import bind_launches
from cugraphs.expected_results import ExpectedResults
from cugraphs.kernels import paged_prefill_attention
from cugraphs.testing import case_arrays

pytestmark = needs_compiler
KERNEL = paged_prefill_attention.PAGED_PREFILL_ATTENTION
HOW = {"bfloat16": {"checked": True}, "float16": {"order": "random", "seed": 1}}
# One for all tests: what the cases of a kernel launch is found once for each kernel.
FEW_BLOCKS = replace(KERNEL, benchmarks=())


@pytest.fixture
def kernel(monkeypatch):
    """One that launches the form for any number of tokens, over two blocks."""
    monkeypatch.setattr(paged_prefill_attention, "WGMMA_MIN_TOKENS", 0)
    monkeypatch.setattr(paged_prefill_attention, "MULTIPROCESSORS", 2)
    return FEW_BLOCKS


def takes_form(case, dtype):
    _, _, _, head_dim = (cache := case_arrays(KERNEL, case, dtype)[1]).shape
    fits = paged_prefill_attention.takes_wgmma(dtype, head_dim, cache.shape[2])
    return fits and not case.attrs.get("batch_invariant")


CASES = [
    pytest.param(case, dtype, id=f"{case.name}-{dtype}")
    for case in KERNEL.cases
    for dtype in HOW
    if takes_form(case, dtype)
]


@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_every_case_is_within_the_tolerance(kernel, case, dtype):
    arrays = case_arrays(kernel, case, dtype)
    _, (launch,) = bind_launches(kernel, arrays, case.attrs)
    assert launch.arch == "sm_90a"
    given = [array.copy() for array in arrays]
    found = emulate(kernel, given, case.attrs, arch="sm_90", **HOW[dtype])
    verdict = ExpectedResults(kernel, arrays, case.attrs).judge(found, given)
    assert not verdict.problem, verdict.problem


def test_the_order_of_threads_and_the_number_of_blocks_change_no_bit(kernel, monkeypatch):
    (case,) = (case for case in kernel.cases if case.name == "many_tokens")
    arrays = case_arrays(kernel, case, "bfloat16")
    results = []
    for blocks, order in ((2, "forward"), (2, "reverse"), (3, "random"), (132, "forward")):
        monkeypatch.setattr(paged_prefill_attention, "MULTIPROCESSORS", blocks)
        given = [array.copy() for array in arrays]
        (found,) = emulate(kernel, given, case.attrs, arch="sm_90", order=order)
        results.append(found.tobytes())
    assert len(set(results)) == 1
