"""Linear and residual sum for many rows: ``out = residual + x @ weight.T``, by cuBLASLt alone.

What many rows gain: the product is not written and read once more. It is added in float32 and
rounded once, so in 16-bit dtypes a result may be a unit closer than that of LINEAR and ADD (or of
LINEAR_ADD, which is for few rows).
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
    MatrixProduct,
    Operand,
)

from . import linear
from .case_arrays import Make, normal
from .precision import quiet, store, widen

# Steps of fewer rows at most leave the addition to the norm that follows, where it costs next to
# nothing. At 8,192 rows of 4,096 columns it writes and reads 128 MB less.
MIN_ROWS = 2048


@quiet
def reference(residual: Array, x: Array, weight: Array) -> tuple[Array]:
    """Multiply by a weight as checkpoints store it, and add.

    Args:
        residual: T [tokens, out_features].
        x: T [tokens, in_features].
        weight: T [out_features, in_features].

    Returns:
        T [tokens, out_features].
    """
    wide = widen(x)
    (product,) = linear.reference(wide, widen(weight))
    return (store(widen(residual) + product, x.dtype),)


def cost(axes: Axes, dtype: str) -> Cost:
    """That of the product, and of reading the residual and adding it."""
    elements = axes["tokens"] * axes["out_features"]
    return linear.cost(axes, dtype) + Cost(elements * DTYPES[dtype].itemsize, elements)


def launches(axes: Axes, dtype: str) -> tuple[MatrixProduct, ...]:
    """One product, which adds."""
    return (MatrixProduct(adds_residual=True),)


def workspace(axes: Axes, dtype: str) -> int:
    """What cuBLASLt may use."""
    return MatrixProduct.workspace_bytes


def _inputs(tokens: int, in_features: int, out_features: int, scale: float = 1.0) -> Make:
    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        residual = normal(rng, dtype, (tokens, out_features), scale)
        x = normal(rng, dtype, (tokens, in_features))
        return residual, x, normal(rng, dtype, (out_features, in_features), in_features**-0.5)

    return make


LINEAR_RESIDUAL = Kernel(
    name="linear_residual",
    operands=(
        Operand("out", ("tokens", "out_features"), "T", Access.WRITE),
        Operand("residual", ("tokens", "out_features"), "T"),
        Operand("x", ("tokens", "in_features"), "T"),
        Operand("weight", ("out_features", "in_features"), "T", constant=True),
    ),
    reference=reference,
    cost=cost,
    source=Path(__file__).with_name("linear.cu"),  # which has no launch of it
    launches=launches,
    workspace=workspace,
    cases=(
        Case("one_row", _inputs(1, 64, 48)),
        Case("odd", _inputs(3, 33, 7)),
        Case("many_rows", _inputs(300, 256, 96)),
        Case("large_residual", _inputs(17, 128, 64, 100.0)),
        Case("small_residual", _inputs(17, 128, 64, 1e-3)),
    ),
)
