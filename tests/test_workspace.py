"""Scratch memory of launches: declared by the kernel, supplied everywhere, guarded in tests."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cugraphs.compiler import plan_arena, plan_program
from cugraphs.emulation import emulate
from cugraphs.kernel import WORKSPACE, Access, Case, Cost, Kernel, Launch, MatrixProduct, Operand
from cugraphs.kernels import LINEAR
from cugraphs.testing import assert_kernel

SOURCE = """
// Sums of rows in two launches: partial sums of 32 columns, then the sum of those, in order.
__global__ void partial_sums(float* __restrict__ workspace, const float* __restrict__ x,
                             int columns, int parts) {
  const long long row = blockIdx.x;
  float sum = 0.0f;
  const int begin = blockIdx.y * 32, end = min(begin + 32, columns);
  if (threadIdx.x == 0) {
    for (int i = begin; i < end; ++i) sum += x[row * columns + i];
    workspace[row * parts + blockIdx.y] = sum;
  }
}

__global__ void row_sums(float* __restrict__ out, const float* __restrict__ workspace, int parts) {
  float sum = 0.0f;
  if (threadIdx.x == 0) {
    for (int i = 0; i < parts; ++i) sum += workspace[blockIdx.x * parts + i];
    out[blockIdx.x] = sum;
  }
}
"""


def parts_of(axes):
    return -(-axes["columns"] // 32)


def launches(axes, dtype):
    rows, parts = axes["rows"], parts_of(axes)
    scalars = (np.int32(axes["columns"]), np.int32(parts))
    partial = Launch("partial_sums", (rows, parts, 1), 32, scalars, (WORKSPACE, "x"))
    return partial, Launch("row_sums", (rows, 1, 1), 32, scalars[1:], ("out", WORKSPACE))


@pytest.fixture
def row_sums(tmp_path):
    """A kernel whose two launches hand each other partial sums in the workspace."""
    source = tmp_path / "row_sums.cu"
    source.write_text(SOURCE)
    return Kernel(
        name="row_sums",
        operands=(
            Operand("out", ("rows",), "float32", Access.WRITE),
            Operand("x", ("rows", "columns"), "float32"),
        ),
        reference=lambda x: (x.sum(axis=1, dtype=np.float64).astype(x.dtype),),
        cost=lambda axes, dtype: Cost(0, 0),
        cases=(
            Case("small", lambda rng, dtype: (rng.integers(-9, 9, (3, 70)).astype(np.float32),)),
        ),
        source=source,
        launches=launches,
        workspace=lambda axes, dtype: 4 * axes["rows"] * parts_of(axes),
    )


def test_launches_share_the_workspace(row_sums):
    assert_kernel(row_sums, stages=["compile", "emulate"])


def test_what_an_earlier_op_left_is_not_to_be_read(row_sums):
    reader = dataclasses.replace(row_sums, launches=lambda *args: launches(*args)[1:])
    with pytest.raises(AssertionError, match="uninitialised"):
        emulate(reader, [np.ones((2, 40), np.float32)], {}, checked=True)


def test_writes_beyond_the_workspace_are_found(row_sums):
    small = dataclasses.replace(row_sums, workspace=lambda axes, dtype: 4)
    with pytest.raises(AssertionError, match="workspace"):
        emulate(small, [np.ones((1, 64), np.float32)], {}, checked=True)
    with pytest.raises(AssertionError, match=r"around workspace were overwritten"):
        emulate(small, [np.ones((1, 64), np.float32)], {})


def test_no_operand_takes_its_name():
    operands = (Operand("workspace", ("n",), "float32", Access.WRITE), Operand("x", ("n",), "T"))
    with pytest.raises(ValueError, match="named 'workspace'"):
        Kernel("k", operands, reference=lambda x: (x,), cost=lambda axes, dtype: Cost(0, 0))


def test_one_arena_region_serves_the_most_demanding_op(row_sums):
    def step(t, rows, columns):
        x = t.input("x", (t.dim("rows", rows), columns), "float32")
        t.output(t.call(row_sums, x), "out")

    def two(t):
        step(t, 2, 100)

    def many(t):
        step(t, 5, 70)

    planned = [plan_program("two", two), plan_program("many", many)]
    assert plan_arena(planned, workspace=True).regions[WORKSPACE].nbytes == 4 * 5 * 3
    assert WORKSPACE not in plan_arena(planned).regions


def test_a_matrix_product_by_the_library_has_its_workspace():
    axes = {"tokens": 64, "in_features": 32, "out_features": 16}
    assert LINEAR.workspace_bytes(axes, "float32", {}) == MatrixProduct.workspace_bytes
    assert LINEAR.workspace_bytes({**axes, "tokens": 1}, "float32", {}) == 0
