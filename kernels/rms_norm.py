"""RMSNorm: ``out = x / sqrt(mean(x**2, axis=-1) + eps) * weight``.

Rounding: all of it in float32, one rounding at the store. Hugging Face's Llama uses the same order
but also rounds the normalised ``x`` to the operands' dtype before it multiplies by the weight; for
float32 the two agree.

Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
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


@quiet
def reference(x: Array, weight: Array, *, eps: float) -> tuple[Array]:
    """Normalise each row to a root mean square of 1, then scale each column.

    Args:
        x: T [tokens, hidden].
        weight: T [hidden].
        eps: added to the mean square.

    Returns:
        T [tokens, hidden].
    """
    return (store(normalised(widen(x), widen(weight), eps), x.dtype),)


def normalised(x: Array, weight: Array, eps: float) -> Array:
    """The formula on operands that are wide already; the result is not rounded.

    Args:
        x: float32 or float64 [tokens, hidden].
        weight: as ``x`` [hidden].
        eps: added to the mean square.

    Returns:
        As ``x`` [tokens, hidden].
    """
    rms = np.vecdot(x, x)  # one dot product a row: no array of squares
    rms /= x.shape[-1]
    rms += eps
    np.sqrt(rms, out=rms)
    out: Array = x / rms[:, None]
    out *= weight
    return out


def cost(axes: Axes, dtype: str, *, eps: float) -> Cost:
    """Moves x, out and the weight once; square, sum, scale and weight: 4 flops an element."""
    elements = axes["tokens"] * axes["hidden"]
    return Cost((2 * elements + axes["hidden"]) * DTYPES[dtype].itemsize, 4 * elements)


def launches(axes: Axes, dtype: str, *, eps: float) -> tuple[Launch, ...]:
    """One block a token."""
    hidden = axes["hidden"]
    width = vector_width(dtype, hidden)
    threads, held = row_shape(hidden // width)
    return (
        Launch(
            function=f"rms_norm<{CUDA_TYPES[dtype]}, {width}, {threads}, {held}>",
            grid=(axes["tokens"], 1, 1),
            block=threads,
            scalars=(np.int32(hidden), np.float32(eps)),
            programmatic=True,
        ),
    )


def _inputs(tokens: int, hidden: int, scale: float = 1.0) -> Make:
    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        x = normal(rng, dtype, (tokens, hidden), scale)
        return x, 1 + normal(rng, dtype, (hidden,), 0.25)

    return make


def _zero_row(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    x, weight = _inputs(3, 64)(rng, dtype)
    x[1] = 0
    return x, weight


RMS_NORM = Kernel(
    name="rms_norm",
    operands=(
        Operand("out", ("tokens", "hidden"), "T", Access.WRITE),
        Operand("x", ("tokens", "hidden"), "T"),
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
        Case("one_element", _inputs(3, 1), {"eps": 1e-5}),
        # The mean square is below eps: only here does a wrong eps show.
        Case("small_scale", _inputs(5, 96, 1e-3), {"eps": 1e-5}),
        Case("small_scale_small_eps", _inputs(5, 96, 1e-3), {"eps": 1e-6}),
        Case("large_scale", _inputs(5, 96, 300.0), {"eps": 1e-5}),
        Case("zero_row", _zero_row, {"eps": 1e-5}),
    ),
    benchmarks=tuple(
        Case(name, _inputs(rows, model.hidden), {"eps": 1e-5})
        for name, model, rows in rowwise_sizes()
    ),
)
