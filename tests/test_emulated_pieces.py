"""The form of decode attention for sm_90a on the CPU: every case that it can take."""

import pytest
from conftest import needs_compiler

from cugraphs.emulation import emulate
from cugraphs.emulation.emulate import bind_launches
from cugraphs.expected_results import ExpectedResults
from cugraphs.kernels import PAGED_DECODE_ATTENTION as KERNEL
from cugraphs.kernels.paged_cases import Heads, decode_case
from cugraphs.testing import case_arrays

pytestmark = needs_compiler
HOW = {"bfloat16": {"checked": True}, "float16": {"order": "random", "seed": 1}}
LARGEST = 1 << 21  # elements of K and V: larger ones take too long, and reach no other code


def takes_pieces(case, dtype):
    arrays = case_arrays(KERNEL, case, dtype)
    _, (launch,) = bind_launches(KERNEL, arrays, case.attrs)
    return bool(launch.arch) and arrays[2].size <= LARGEST


CASES = [
    pytest.param(case, dtype, id=f"{case.name}-{dtype}")
    for case in KERNEL.cases
    for dtype in HOW
    if takes_pieces(case, dtype)
]


def emulated(case, dtype, **how):
    arrays = case_arrays(KERNEL, case, dtype)
    given = [array.copy() for array in arrays]
    found = emulate(KERNEL, given, case.attrs, arch="sm_90", **how)
    verdict = ExpectedResults(KERNEL, arrays, case.attrs).judge(found, given)
    assert not verdict.problem, verdict.problem
    return found


@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_every_case_is_within_the_tolerance(case, dtype):
    emulated(case, dtype, **HOW[dtype])


def test_the_order_of_blocks_and_threads_changes_no_bit():
    """Whichever block of a row is the last one, and folds its parts."""
    case = decode_case("", Heads(8, 2, 128), [700, 0, 130, 2000])
    orders = ("forward", "reverse", "random")
    forward, *others = (emulated(case, "bfloat16", order=order)[0] for order in orders)
    for other in others:
        assert other.tobytes() == forward.tobytes()
