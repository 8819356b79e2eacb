"""The forms of products for sm_90a on the CPU: every case that takes them, over few blocks.

Blocks then take several tiles and parts, so that rings and barriers go through many rounds.
"""

import pytest
from conftest import needs_compiler

from cugraphs.emulation import emulate
from cugraphs.emulation.emulate import bind_launches
from cugraphs.expected_results import ExpectedResults
from cugraphs.kernel import Launch
from cugraphs.kernels import LINEAR, LINEAR_ADD_RMS_NORM, LINEAR_SWIGLU, wgmma_linear, wgmma_rows
from cugraphs.testing import case_arrays, compile_launch

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

# Of those that take a form on a GPU that gates fill; here tiles are narrow.
ROWS_CASES = [
    pytest.param(case, dtype, id=f"{case.name}-{dtype}")
    for case in LINEAR_SWIGLU.cases
    for dtype in HOW
    if len(case_arrays(LINEAR_SWIGLU, case, dtype)[0]) >= wgmma_rows.MIN_ROWS
]


@pytest.mark.parametrize(("kernel", "case", "dtype"), CASES)
def test_every_case_is_within_the_tolerance(kernel, case, dtype, monkeypatch):
    monkeypatch.setattr(wgmma_linear, "MULTIPROCESSORS", 2)
    arrays = case_arrays(kernel, case, dtype)
    given = [array.copy() for array in arrays]
    found = emulate(kernel, given, case.attrs, arch="sm_90", **HOW[dtype])
    verdict = ExpectedResults(kernel, arrays, case.attrs).judge(found, given)
    assert not verdict.problem, verdict.problem


@pytest.mark.parametrize(("case", "dtype"), ROWS_CASES)
def test_every_case_of_many_rows_is_within_the_tolerance(case, dtype, narrow_tiles):
    arrays = case_arrays(LINEAR_SWIGLU, case, dtype)
    _, launches = bind_launches(LINEAR_SWIGLU, arrays, case.attrs)
    assert "linear_swiglu_rows<" in launches[0].function and launches[0].cluster == 2
    given = [array.copy() for array in arrays]
    found = emulate(LINEAR_SWIGLU, given, case.attrs, arch="sm_90", **HOW[dtype])
    verdict = ExpectedResults(LINEAR_SWIGLU, arrays, case.attrs).judge(found, given)
    assert not verdict.problem, verdict.problem


@pytest.fixture
def narrow_tiles(monkeypatch):
    """Sizes that small cases fill: several tiles, more steps than stages."""
    monkeypatch.setattr(wgmma_rows, "COLUMNS", 32)
    monkeypatch.setattr(wgmma_rows, "LEAST_SHARE", 0)


@pytest.mark.parametrize("dtype", HOW)
@pytest.mark.parametrize(("tokens", "groups"), [(65, 2), (129, 3), (256, 4)])
def test_gates_of_an_8b_are_one_tile_a_multiprocessor_and_compile_without_spills(
    tokens, groups, dtype
):
    shape = wgmma_rows.rows_shape(tokens, 4096, 28672, dtype, boxes=2)
    assert shape.groups == groups and 0.95 * 132 <= shape.tiles <= 132
    assert shape.stages >= 3
    axes = {"tokens": tokens, "in_features": 4096, "inter": 14336}
    (launch,) = LINEAR_SWIGLU.launches(axes, dtype)
    assert launch.grid == (shape.tiles, 1, 1) and launch.block == shape.threads
    compile_launch(LINEAR_SWIGLU, launch, "sm_90")


@pytest.mark.parametrize(
    ("tokens", "in_features", "columns", "dtype"),
    [
        *[(64, 4096, 28672, "bfloat16"), (257, 4096, 28672, "bfloat16")],
        *[(256, 4096, 28672, "float32"), (256, 4100, 28672, "bfloat16")],
        (256, 2048, 16384, "bfloat16"),  # half of the multiprocessors would have no tile
    ],
)
def test_sizes_that_have_no_such_form(tokens, in_features, columns, dtype):
    assert wgmma_rows.rows_shape(tokens, in_features, columns, dtype, boxes=2) is None
