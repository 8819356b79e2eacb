"""The forms of decode attention for sm_90a on the CPU: every case that they can take.

One finds the newest tokens in the cache once it has waited, one appends them and never reads them.
"""

import pytest
from conftest import needs_compiler
from emulated_identities.paged_cache import newest_tokens

from cugraphs.emulation import emulate
from cugraphs.emulation.emulate import bind_launches
from cugraphs.expected_results import ExpectedResults
from cugraphs.kernels import PAGED_DECODE_ATTENTION, ROPE_APPEND_ATTENTION
from cugraphs.kernels.paged_cases import Heads, decode_case
from cugraphs.testing import case_arrays

pytestmark = needs_compiler
HOW = {"bfloat16": {"checked": True}, "float16": {"order": "random", "seed": 1}}
LARGEST = 1 << 21  # elements of K and V: larger ones take too long, and reach no other code


def named(kernel, arrays):
    return dict(zip((operand.name for operand in kernel.supplied), arrays, strict=True))


def takes_pieces(kernel, case, dtype):
    arrays = case_arrays(kernel, case, dtype)
    _, (launch,) = bind_launches(kernel, arrays, case.attrs)
    return bool(launch.arch) and named(kernel, arrays)["k_cache"].size <= LARGEST


CASES = [
    pytest.param(kernel, case, dtype, id=f"{kernel.name}-{case.name}-{dtype}")
    for kernel in (PAGED_DECODE_ATTENTION, ROPE_APPEND_ATTENTION)
    for case in kernel.cases
    for dtype in HOW
    if takes_pieces(kernel, case, dtype)
]


def emulated(kernel, case, dtype, **how):
    arrays = case_arrays(kernel, case, dtype)
    given = [array.copy() for array in arrays]
    names = ("k_cache", "block_tables", "row_ids", "seq_lens")
    newest = newest_tokens(*(named(kernel, arrays)[name] for name in names))
    late = {"k_cache": newest, "v_cache": newest}
    found = emulate(kernel, given, case.attrs, arch="sm_90", late=late, **how)
    verdict = ExpectedResults(kernel, arrays, case.attrs).judge(found, given)
    assert not verdict.problem, verdict.problem
    return found


@pytest.mark.parametrize(("kernel", "case", "dtype"), CASES)
def test_every_case_is_within_the_tolerance(kernel, case, dtype):
    emulated(kernel, case, dtype, **HOW[dtype])


def test_the_order_of_blocks_and_threads_changes_no_bit():
    """Whichever block of a row is the last one, and folds its parts."""
    case = decode_case("", Heads(8, 2, 128), [700, 0, 130, 2000])
    orders = ("forward", "reverse", "random")
    forward, *others = (
        emulated(PAGED_DECODE_ATTENTION, case, "bfloat16", order=order)[0] for order in orders
    )
    for other in others:
        assert other.tobytes() == forward.tobytes()
