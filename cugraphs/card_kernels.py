"""Kernels that show what a card can do, and compute nothing that anyone wants.

Their times are the ceilings that other kernels are compared with. Knows declarations only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import (
    DTYPES,
    Access,
    Array,
    Axes,
    Case,
    Cost,
    Kernel,
    Launch,
    MatrixProduct,
    Operand,
)

_THREADS = 256

# ------------------------------------------------------------------------------------------ read


def _sums(x: Array, *, blocks: int) -> tuple[Array]:
    """Each block's sum; block b reads the vectors of 256 threads at b, b + blocks, and so on."""
    width = blocks * _THREADS * 4
    padded = np.zeros(-(-len(x) // width) * width, np.float64)
    padded[: len(x)] = x
    sums = padded.reshape(-1, blocks, _THREADS * 4).sum(axis=(0, 2))
    return (sums.astype(np.float32),)


def _read_cost(axes: Axes, dtype: str, *, blocks: int) -> Cost:
    return Cost(4 * axes["elements"], axes["elements"])


def _read_launches(axes: Axes, dtype: str, *, blocks: int) -> tuple[Launch, ...]:
    return (
        Launch(
            function=f"read_bandwidth<{_THREADS}>",
            grid=(blocks, 1, 1),
            block=_THREADS,
            scalars=(np.int64(axes["elements"] // 4),),
        ),
    )


def _whole_numbers(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """Small whole numbers, whose float32 sums are exact in any order."""
    return (rng.integers(-8, 8, 40_000).astype(np.float32),)


READ_BANDWIDTH = Kernel(
    name="read_bandwidth",
    operands=(
        Operand("out", ("blocks",), "float32", Access.WRITE),
        Operand("x", ("elements",), "float32"),
    ),
    reference=_sums,
    cost=_read_cost,
    cases=(Case("several_rounds", _whole_numbers, {"blocks": 3}),),
    source=Path(__file__).with_name("read_bandwidth.cu"),
    launches=_read_launches,
)

# ------------------------------------------------------------------------------------------ copy


def _same(x: Array) -> tuple[Array]:
    """A copy."""
    return (x.copy(),)


def _copy_cost(axes: Axes, dtype: str) -> Cost:
    return Cost(8 * axes["elements"], 0)


def _copy_launches(axes: Axes, dtype: str) -> tuple[Launch, ...]:
    vectors = axes["elements"] // 4
    return (
        Launch(
            function=f"copy_bandwidth<{_THREADS}>",
            grid=(-(-vectors // (4 * _THREADS)), 1, 1),
            block=_THREADS,
            scalars=(np.int64(vectors),),
        ),
    )


COPY_BANDWIDTH = Kernel(
    name="copy_bandwidth",
    operands=(
        Operand("out", ("elements",), "float32", Access.WRITE),
        Operand("x", ("elements",), "float32"),
    ),
    reference=_same,
    cost=_copy_cost,
    cases=(Case("several_blocks", _whole_numbers),),
    source=Path(__file__).with_name("copy_bandwidth.cu"),
    launches=_copy_launches,
)

# ----------------------------------------------------------------------------------------- empty


def _nothing(x: Array) -> tuple[Array, ...]:
    """Return nothing."""
    return ()


def _no_cost(axes: Axes, dtype: str) -> Cost:
    return Cost(0, 0)


def _empty_launches(axes: Axes, dtype: str) -> tuple[Launch, ...]:
    return (Launch(function="empty", grid=(axes["blocks"], 1, 1), block=_THREADS),)


EMPTY = Kernel(
    name="empty",
    operands=(Operand("x", ("blocks",), "int32"),),
    reference=_nothing,
    cost=_no_cost,
    cases=(Case("three_blocks", lambda rng, dtype: (np.zeros(3, np.int32),)),),
    source=Path(__file__).with_name("empty.cu"),
    launches=_empty_launches,
)

# --------------------------------------------------------------------------------------- product


def _product(x: Array, weight: Array) -> tuple[Array]:
    """Return ``x @ weight.T``."""
    return ((x.astype(np.float32) @ weight.astype(np.float32).T).astype(x.dtype),)


def _product_cost(axes: Axes, dtype: str) -> Cost:
    tokens, in_features, out_features = axes["tokens"], axes["in_features"], axes["out_features"]
    elements = tokens * in_features + in_features * out_features + tokens * out_features
    return Cost(elements * DTYPES[dtype].itemsize, 2 * tokens * in_features * out_features)


def _product_launches(axes: Axes, dtype: str) -> tuple[MatrixProduct, ...]:
    return (MatrixProduct(),)


def _product_workspace(axes: Axes, dtype: str) -> int:
    return MatrixProduct.workspace_bytes


MATRIX_PRODUCT = Kernel(
    name="matrix_product",
    operands=(
        Operand("out", ("tokens", "out_features"), "T", Access.WRITE),
        Operand("x", ("tokens", "in_features"), "T"),
        Operand("weight", ("out_features", "in_features"), "T"),
    ),
    reference=_product,
    cost=_product_cost,
    launches=_product_launches,
    workspace=_product_workspace,
)
