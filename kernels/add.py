"""Residual addition: ``out = a + b``, added in float32 and rounded once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import (
    CUDA_TYPES,
    DTYPES,
    Access,
    Array,
    Axes,
    Case,
    Cost,
    Kernel,
    Launch,
    Operand,
)

from .benchmark_sizes import rowwise_sizes
from .case_arrays import Make, normal
from .launch_shapes import block_threads, vector_width
from .precision import quiet, store, widen


@quiet
def reference(a: Array, b: Array) -> tuple[Array]:
    """Add two arrays.

    Args:
        a: T [tokens, hidden].
        b: T [tokens, hidden].

    Returns:
        T [tokens, hidden].
    """
    return (store(widen(a) + widen(b), a.dtype),)


def cost(axes: Axes, dtype: str) -> Cost:
    """Two arrays in, one out; one addition an element."""
    elements = axes["tokens"] * axes["hidden"]
    return Cost(3 * elements * DTYPES[dtype].itemsize, elements)


def launches(axes: Axes, dtype: str) -> tuple[Launch, ...]:
    """One thread a vector of the flat arrays."""
    elements = axes["tokens"] * axes["hidden"]
    width = vector_width(dtype, axes["hidden"])
    threads = block_threads(elements // width)
    return (
        Launch(
            function=f"add<{CUDA_TYPES[dtype]}, {width}, {threads}>",
            grid=(-(-(elements // width) // threads), 1, 1),
            block=threads,
            scalars=(np.int64(elements),),
            programmatic=True,
        ),
    )


def _inputs(tokens: int, hidden: int, scale: float = 1.0) -> Make:
    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        a = normal(rng, dtype, (tokens, hidden))
        return a, normal(rng, dtype, (tokens, hidden), scale)

    return make


def _cancelling(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    a = normal(rng, dtype, (3, 64))
    return a, (-1.01 * a).astype(dtype)


ADD = Kernel(
    name="add",
    operands=(
        Operand("out", ("tokens", "hidden"), "T", Access.WRITE),
        Operand("a", ("tokens", "hidden"), "T"),
        Operand("b", ("tokens", "hidden"), "T"),
    ),
    reference=reference,
    cost=cost,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        Case("one_row", _inputs(1, 64)),
        Case("odd", _inputs(7, 33)),
        Case("wide", _inputs(3, 4096)),
        Case("one_element", _inputs(1, 1)),
        Case("small_and_large", _inputs(5, 576, 1e-3)),
        Case("cancelling", _cancelling),
    ),
    benchmarks=tuple(
        Case(name, _inputs(rows, model.hidden)) for name, model, rows in rowwise_sizes()
    ),
)
