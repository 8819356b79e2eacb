"""The functions of kernels/ptx.cuh compile everywhere, and in emulation do what PTX says."""

from pathlib import Path

import numpy as np
import pytest
from conftest import needs_compiler

from cugraphs.emulation import emulate
from cugraphs.kernel import CUDA_TYPES, DTYPES, Access, Cost, Kernel, Launch, Operand
from cugraphs.nvrtc import ARCHITECTURES, compile_cubin

pytestmark = needs_compiler

SOURCE = Path(__file__).with_name("ptx_kernels.cu")
HALVES = ("float16", "bfloat16")


def kernel_of(operands, function, **launch):
    """A declaration that launches one warp of `function`, which may hold {T}."""
    return Kernel(
        "ptx",
        operands,
        reference=lambda *arrays: (),
        cost=lambda axes, dtype: Cost(0, 0),
        source=SOURCE,
        launches=lambda axes, dtype: (
            Launch(function.replace("{T}", CUDA_TYPES[dtype]), (1, 1, 1), 32, **launch),
        ),
    )


def both(kernel, *arrays):
    """The result of a plain and of a checked run, which are the same."""
    plain, checked = (emulate(kernel, arrays, {}, checked=how)[0] for how in (False, True))
    np.testing.assert_array_equal(plain, checked)
    return plain


FUNCTIONS = (
    "copies",
    "powers",
    "waits",
    *(f"product<{CUDA_TYPES[dtype]}>" for dtype in HALVES),
    *(f"matrices<__half, {m}, {t}>" for m in (2, 4) for t in ("false", "true")),
)


@pytest.mark.parametrize("arch", [*ARCHITECTURES, "sm_90a"])
def test_every_function_compiles(arch):
    for function in FUNCTIONS:
        assert compile_cubin(SOURCE, function, arch).spill_bytes == 0


@pytest.mark.parametrize("valid", [0, 5, 16])
def test_cp_async_copies_what_is_valid_and_fills_the_rest_with_zeros(valid):
    kernel = kernel_of(
        (Operand("out", ("n",), "float32", Access.WRITE), Operand("x", ("n",), "float32")),
        "copies",
        scalars=(np.int32(valid),),
    )
    x = np.arange(1, 129, dtype=np.float32)
    expected = np.where(np.arange(128) % 64 < 4 * valid, x, 0)
    np.testing.assert_array_equal(both(kernel, x), expected)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("matrices", [2, 4])
def test_ldmatrix_gives_each_lane_a_pair_of_a_row(matrices, transposed):
    kernel = kernel_of(
        (
            Operand("out", ("lanes", "matrices", "pair"), "T", Access.UPDATE),
            Operand("x", ("all", "rows", "columns"), "T"),
        ),
        f"matrices<{{T}}, {matrices}, {str(transposed).lower()}>",
    )
    x = np.arange(256).reshape(4, 8, 8).astype(np.float16)
    out = np.zeros((32, matrices, 2), np.float16)
    emulate(kernel, (out, x), {}, checked=True)
    for lane in range(32):
        for m in range(matrices):
            matrix = x[m].T if transposed else x[m]
            first = 2 * (lane % 4)
            np.testing.assert_array_equal(out[lane, m], matrix[lane // 4, first : first + 2])


@pytest.mark.parametrize("dtype", HALVES)
def test_mma_multiplies_and_adds(dtype):
    kernel = kernel_of(
        (
            Operand("out", ("m", "n"), "float32", Access.WRITE),
            Operand("a", ("m", "k"), "T"),
            Operand("b", ("n", "k"), "T"),
            Operand("start", ("m", "n"), "float32"),
        ),
        "product<{T}>",
    )
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in ((16, 16), (8, 16)))
    start = rng.standard_normal((16, 8)).astype(np.float32)
    expected = start + a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(both(kernel, a, b, start), expected, rtol=1e-5, atol=1e-5)


def test_exp2_is_right_to_two_units_and_zero_far_below_zero():
    kernel = kernel_of(
        (Operand("out", ("n",), "float32", Access.WRITE), Operand("x", ("n",), "float32")),
        "powers",
    )
    x = np.append(np.linspace(-126, 30, 254), [-127, -3e38]).astype(np.float32)
    found, exact = both(kernel, x), np.exp2(x.astype(np.float64))
    np.testing.assert_allclose(found[:254], exact[:254], rtol=2.0**-22)
    assert not found[254:].any()


def test_programmatic_launches_run():
    kernel = kernel_of(
        (Operand("out", ("n",), "float32", Access.WRITE), Operand("x", ("n",), "float32")),
        "waits",
        programmatic=True,
    )
    x = np.arange(32, dtype=np.float32)
    np.testing.assert_array_equal(both(kernel, x), x)
