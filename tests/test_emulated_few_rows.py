"""The form of decode attention for few rows on the CPU: every case that it can take, of any size.

What the launch before appends, the newest token of each row, may not be read before the wait.
"""

from dataclasses import replace

import numpy as np
import pytest
from conftest import needs_compiler
from emulated_identities.paged_cache import newest_tokens

from cugraphs.emulation import emulate
from cugraphs.emulation.emulate import bind_launches
from cugraphs.expected_results import ExpectedResults
from cugraphs.kernels import few_rows_attention
from cugraphs.kernels.paged_decode_attention import PAGED_DECODE_ATTENTION as KERNEL
from cugraphs.testing import case_arrays

pytestmark = needs_compiler
HOW = {"bfloat16": {"checked": True}, "float16": {"order": "random", "seed": 1}}
SHAPES = {"clusters": (True, 4), "spread": (False, 2)}  # and pieces of a ring that has few
# One for all tests of a shape: what the cases of a kernel launch is found once for each kernel.
KERNELS = {shape: replace(KERNEL, benchmarks=()) for shape in SHAPES}


@pytest.fixture(params=SHAPES)
def kernel(monkeypatch, request):
    """One that takes the form for any number of rows, with few warps."""
    clusters, ahead = SHAPES[request.param]
    monkeypatch.setattr(few_rows_attention, "MAX_ROWS", 1 << 20)
    rows = 1 << 20 if clusters else 0
    monkeypatch.setattr(few_rows_attention, "CLUSTERED_ROWS", {64: rows, 128: rows})
    monkeypatch.setattr(few_rows_attention, "WARPS", 2)
    monkeypatch.setattr(few_rows_attention, "WARPS_IN_CLUSTER", 2)
    monkeypatch.setattr(few_rows_attention, "LARGE_RING_ROWS", {64: 0, 128: 0})
    monkeypatch.setattr(few_rows_attention, "CLUSTER", 2)
    monkeypatch.setattr(few_rows_attention, "BLOCKS", 24)
    monkeypatch.setattr(few_rows_attention, "RING_BYTES", 2 * ahead * 16 * 128 * 2)
    return KERNELS[request.param]


def takes_form(case, dtype):
    q, cache = case_arrays(KERNEL, case, dtype)[1:3]
    _, kv_heads, block_size, head_dim = cache.shape
    axes = {"q_size": q.shape[1], "kv_heads": kv_heads, "block_size": block_size}
    axes |= {"head_dim": head_dim, "rows": 1}
    return few_rows_attention.takes_few_rows(axes, dtype) and not case.attrs["batch_invariant"]


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
    newest = newest_tokens(*(arrays[i] for i in (2, 4, 5, 6)))
    late = {"k_cache": newest, "v_cache": newest}
    found = emulate(kernel, given, case.attrs, arch="sm_90", late=late, **HOW[dtype])
    verdict = ExpectedResults(kernel, arrays, case.attrs).judge(found, given)
    assert not verdict.problem, verdict.problem


def test_the_order_of_threads_changes_no_bit(kernel):
    (case,) = (case for case in kernel.cases if case.name == "long")
    arrays = case_arrays(kernel, case, "bfloat16")
    results = []
    for order in ("forward", "reverse", "random"):
        given = [array.copy() for array in arrays]
        (found,) = emulate(kernel, given, case.attrs, arch="sm_90", order=order)
        results.append(found.tobytes())
    assert len(set(results)) == 1


def test_rows_do_not_depend_on_each_other(kernel):
    (case,) = (case for case in kernel.cases if case.name == "long")
    *arrays, row_ids, seq_lens, parts = case_arrays(kernel, case, "bfloat16")
    (all_rows,) = emulate(kernel, (*arrays, row_ids, seq_lens, parts), case.attrs, arch="sm_90")
    for row in range(len(row_ids)):
        lives = np.arange(len(row_ids)) == row
        alone = (np.where(lives, row_ids, -1), np.where(lives, seq_lens, 0), parts)
        (found,) = emulate(kernel, (*arrays, *alone), case.attrs, arch="sm_90")
        np.testing.assert_array_equal(found[row], all_rows[row])
        assert not found[~lives].any()
