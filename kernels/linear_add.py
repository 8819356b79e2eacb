"""Linear and residual addition, for few rows: ``out = residual + (x @ weight.T + bias)``.

Rounding: the product is rounded as LINEAR stores it, the sum at its own store, so the results are
those of LINEAR followed by ADD.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import DTYPES, Access, Array, Axes, Case, Cost, Kernel, Launch, Operand

from .add import ADD
from .case_arrays import Make, normal
from .linear import LINEAR
from .stream_linear import (
    MAX_ADD_ROWS,
    STREAM_DTYPES,
    check_streams,
    stream_benchmarks,
    stream_shape,
)


def reference(residual: Array, x: Array, weight: Array, bias: Array | None = None) -> tuple[Array]:
    """Multiply by a weight as checkpoints store it, and add to the residual stream.

    Args:
        residual: T [tokens, out_features].
        x: T [tokens, in_features].
        weight: T [out_features, in_features].
        bias: T [out_features], or None.

    Returns:
        T [tokens, out_features].
    """
    (product,) = LINEAR.reference(x, weight, bias)
    (out,) = ADD.reference(residual, product)
    return (out,)


def cost(axes: Axes, dtype: str) -> Cost:
    """The product's cost, and one more array in and addition an element."""
    elements = axes["tokens"] * axes["out_features"]
    return LINEAR.cost(axes, dtype) + Cost(elements * DTYPES[dtype].itemsize, elements)


def check(axes: Axes) -> None:
    """Refuse sizes that streaming does not take."""
    check_streams("linear_add", axes, max_rows=MAX_ADD_ROWS)


def launches(axes: Axes, dtype: str) -> tuple[Launch, ...]:
    """One launch, of teams of warps that share the weight."""
    tokens, in_features, out_features = axes["tokens"], axes["in_features"], axes["out_features"]
    shape = stream_shape(tokens, in_features, out_features)
    return (
        Launch(
            function=shape.function("linear_add", dtype),
            grid=(shape.blocks, 1, 1),
            block=shape.threads,
            scalars=(np.int32(tokens), np.int32(in_features), np.int32(out_features)),
            programmatic=True,
        ),
    )


def _inputs(tokens: int, in_features: int, out_features: int, *, bias: bool = False) -> Make:
    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        residual = normal(rng, dtype, (tokens, out_features))
        x = normal(rng, dtype, (tokens, in_features))
        weight = normal(rng, dtype, (out_features, in_features), in_features**-0.5)
        arrays = (residual, x, weight)
        return (*arrays, normal(rng, dtype, (out_features,))) if bias else arrays

    return make


LINEAR_ADD = Kernel(
    name="linear_add",
    operands=(
        Operand("out", ("tokens", "out_features"), "T", Access.WRITE),
        Operand("residual", ("tokens", "out_features"), "T"),
        Operand("x", ("tokens", "in_features"), "T"),
        Operand("weight", ("out_features", "in_features"), "T", constant=True),
        Operand("bias", ("out_features",), "T", optional=True, constant=True),
    ),
    reference=reference,
    cost=cost,
    check=check,
    cuda_dtypes=STREAM_DTYPES,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        Case("one_row", _inputs(1, 256, 48)),
        Case("one_row_bias", _inputs(1, 512, 45, bias=True)),
        # One row less than a fragment holds of so many pieces, and as many.
        Case("two_rows", _inputs(2, 2048, 33)),
        Case("three_rows", _inputs(3, 1024, 37, bias=True)),
        Case("four_rows", _inputs(4, 128, 40)),
        Case("five_rows_bias", _inputs(5, 2048, 21, bias=True)),
        Case("eight_rows", _inputs(8, 192, 530)),
        Case("one_column", _inputs(1, 1792, 1)),
    ),
    benchmarks=stream_benchmarks(_inputs, ("o", "down")),
)
