"""The forms of products for sm_90a on the CPU: every case that takes them, over few blocks.

Blocks then take several tiles and parts, so that rings and barriers go through many rounds.
"""

import pytest
from conftest import needs_compiler

from cugraphs.emulation import emulate
from cugraphs.emulation.emulate import bind_launches
from cugraphs.expected_results import ExpectedResults
from cugraphs.kernel import Launch
from cugraphs.kernels import LINEAR, LINEAR_ADD_RMS_NORM, LINEAR_SWIGLU, wgmma_linear
from cugraphs.testing import case_arrays

pytestmark = needs_compiler
KERNELS = (LINEAR, LINEAR_ADD_RMS_NORM, LINEAR_SWIGLU)
HOW = {"bfloat16": {"checked": True}, "float16": {"order": "random", "seed": 1}}


def takes_form(kernel, case, dtype):
    _, launches = bind_launches(kernel, case_arrays(kernel, case, dtype), case.attrs)
    return any(isinstance(each, Launch) and each.arch == "sm_90a" for each in launches)


CASES = [
    pytest.param(kernel, case, dtype, id=f"{kernel.name}-{case.name}-{dtype}")
    for kernel in KERNELS
    for case in kernel.cases
    for dtype in HOW
    if takes_form(kernel, case, dtype)
]


@pytest.mark.parametrize(("kernel", "case", "dtype"), CASES)
def test_every_case_is_within_the_tolerance(kernel, case, dtype, monkeypatch):
    monkeypatch.setattr(wgmma_linear, "MULTIPROCESSORS", 2)
    arrays = case_arrays(kernel, case, dtype)
    given = [array.copy() for array in arrays]
    found = emulate(kernel, given, case.attrs, arch="sm_90", **HOW[dtype])
    verdict = ExpectedResults(kernel, arrays, case.attrs).judge(found, given)
    assert not verdict.problem, verdict.problem
