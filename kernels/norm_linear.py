"""RMSNorm and linear, for few rows: ``out = rms_norm(x, gain) @ weight.T + bias``.

Rounding: the normalised rows are rounded as RMS_NORM stores them, so the results are those of
RMS_NORM followed by LINEAR.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import Access, Array, Axes, Case, Cost, Kernel, Launch, Operand

from .case_arrays import Make, normal
from .linear import LINEAR
from .normalised_rows import check_normalised, normalised_cost, normalised_launch
from .rms_norm import RMS_NORM
from .stream_linear import STREAM_DTYPES, stream_benchmarks


def reference(
    x: Array, gain: Array, weight: Array, bias: Array | None = None, *, eps: float
) -> tuple[Array]:
    """Normalise each row, then multiply by a weight as checkpoints store it.

    Args:
        x: T [tokens, in_features].
        gain: the norm's weight, T [in_features].
        weight: T [out_features, in_features].
        bias: T [out_features], or None.
        eps: added to the mean square.

    Returns:
        T [tokens, out_features].
    """
    (normalised,) = RMS_NORM.reference(x, gain, eps=eps)
    (out,) = LINEAR.reference(normalised, weight, bias)
    return (out,)


def cost(axes: Axes, dtype: str, *, eps: float) -> Cost:
    """The product's cost, the norm's weight, and the norm's flops."""
    return normalised_cost(LINEAR.cost(axes, dtype), axes, dtype, eps)


def check(axes: Axes, *, eps: float) -> None:
    """Refuse sizes that streaming does not take."""
    check_normalised("norm_linear", axes)


def launches(axes: Axes, dtype: str, *, eps: float) -> tuple[Launch, ...]:
    """One launch, of teams of warps that share the weight; each block normalises the rows."""
    columns = axes["out_features"]
    return (normalised_launch("norm_linear", axes, dtype, eps, columns=columns, sizes=(columns,)),)


def _inputs(
    tokens: int, in_features: int, out_features: int, *, bias: bool = False, scale: float = 1.0
) -> Make:
    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        x = normal(rng, dtype, (tokens, in_features), scale)
        gain = 1 + normal(rng, dtype, (in_features,), 0.25)
        weight = normal(rng, dtype, (out_features, in_features), in_features**-0.5)
        arrays = (x, gain, weight)
        return (*arrays, normal(rng, dtype, (out_features,))) if bias else arrays

    return make


_EPS = {"eps": 1e-5}

NORM_LINEAR = Kernel(
    name="norm_linear",
    operands=(
        Operand("out", ("tokens", "out_features"), "T", Access.WRITE),
        Operand("x", ("tokens", "in_features"), "T"),
        Operand("gain", ("in_features",), "T", constant=True),
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
        Case("one_row", _inputs(1, 256, 48), _EPS),
        Case("one_row_bias", _inputs(1, 512, 45, bias=True), _EPS),
        Case("two_rows", _inputs(2, 2048, 33), _EPS),
        Case("three_rows", _inputs(3, 1024, 37, bias=True), _EPS),
        Case("four_rows", _inputs(4, 128, 40), _EPS),
        Case("five_rows_bias", _inputs(5, 2048, 21, bias=True), _EPS),
        Case("eight_rows", _inputs(8, 192, 530), _EPS),
        Case("held_vectors", _inputs(1, 4864, 3), _EPS),  # some of the last that threads hold
        Case("small_scale", _inputs(3, 256, 24, scale=1e-3), _EPS),  # shows a wrong eps
        Case("large_scale", _inputs(2, 256, 24, scale=300.0), _EPS),
    ),
    benchmarks=stream_benchmarks(_inputs, ("qkv", "lm_head"), _EPS),
)
