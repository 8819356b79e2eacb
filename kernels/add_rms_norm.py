"""Residual addition and RMSNorm: ``sum = a + b; out = rms_norm(sum, weight)``.

Rounding: ``sum`` is rounded at its store, and the norm reads the rounded ``sum``; ``out`` is
rounded at its own store. So the results are bitwise those of ADD followed by RMS_NORM.
"""

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
from .launch_shapes import row_shape, vector_width
from .precision import quiet, store, widen
from .rms_norm import normalised


@quiet
def reference(a: Array, b: Array, weight: Array, *, eps: float) -> tuple[Array, Array]:
    """Add two arrays and normalise the sum.

    Args:
        a: T [tokens, hidden].
        b: T [tokens, hidden].
        weight: T [hidden].
        eps: added to the mean square.

    Returns:
        ``sum`` and ``out``, both T [tokens, hidden].
    """
    total = store(widen(a) + widen(b), a.dtype)
    return total, store(normalised(widen(total), widen(weight), eps), a.dtype)


def cost(axes: Axes, dtype: str, *, eps: float) -> Cost:
    """Two arrays in, two out, the weight once; 1 + 4 flops an element."""
    elements = axes["tokens"] * axes["hidden"]
    return Cost((4 * elements + axes["hidden"]) * DTYPES[dtype].itemsize, 5 * elements)


def launches(axes: Axes, dtype: str, *, eps: float) -> tuple[Launch, ...]:
    """One block a token, of the width and threads that RMS_NORM has, for the same bits."""
    hidden = axes["hidden"]
    width = vector_width(dtype, hidden)
    threads, held = row_shape(hidden // width)
    return (
        Launch(
            function=f"add_rms_norm<{CUDA_TYPES[dtype]}, {width}, {threads}, {held}>",
            grid=(axes["tokens"], 1, 1),
            block=threads,
            scalars=(np.int32(hidden), np.float32(eps)),
            programmatic=True,
        ),
    )


def _inputs(tokens: int, hidden: int, scale: float = 1.0) -> Make:
    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        a = normal(rng, dtype, (tokens, hidden), scale)
        b = normal(rng, dtype, (tokens, hidden), scale)
        return a, b, 1 + normal(rng, dtype, (hidden,), 0.25)

    return make


def _zero_sum(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    a, b, weight = _inputs(3, 64)(rng, dtype)
    b[1] = -a[1]
    return a, b, weight


ADD_RMS_NORM = Kernel(
    name="add_rms_norm",
    operands=(
        Operand("sum", ("tokens", "hidden"), "T", Access.WRITE),
        Operand("out", ("tokens", "hidden"), "T", Access.WRITE),
        Operand("a", ("tokens", "hidden"), "T"),
        Operand("b", ("tokens", "hidden"), "T"),
        Operand("weight", ("hidden",), "T", constant=True),
    ),
    reference=reference,
    cost=cost,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        Case("one_row", _inputs(1, 64), {"eps": 1e-5}),
        Case("odd", _inputs(7, 33), {"eps": 1e-6}),
        Case("smollm2", _inputs(5, 576), {"eps": 1e-5}),
        Case("wide", _inputs(2, 4096), {"eps": 1e-5}),
        # Vectors that a thread holds: some of the second, and many.
        Case("partial_vectors", _inputs(2, 2568), {"eps": 1e-5}),
        Case("hidden_16384", _inputs(2, 16384), {"eps": 1e-5}),
        Case("small_scale", _inputs(5, 96, 1e-3), {"eps": 1e-5}),  # shows a wrong eps
        Case("large_scale", _inputs(5, 96, 300.0), {"eps": 1e-5}),
        Case("zero_sum", _zero_sum, {"eps": 1e-5}),
    ),
    benchmarks=tuple(
        Case(name, _inputs(rows, model.hidden), {"eps": 1e-5})
        for name, model, rows in rowwise_sizes()
    ),
)
