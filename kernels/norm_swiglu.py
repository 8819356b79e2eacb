"""RMSNorm, linear and SwiGLU, for few rows: ``silu_and_mul(rms_norm(x, gain) @ weight.T)``.

Rounding: the normalised rows and the product are rounded as RMS_NORM and LINEAR store them, so the
results are those of RMS_NORM, LINEAR and SILU_AND_MUL, one after the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import Access, Array, Axes, Case, Cost, Kernel, Launch, Operand

from .case_arrays import Make, normal
from .linear_swiglu import LINEAR_SWIGLU
from .normalised_rows import check_normalised, normalised_cost, normalised_launch
from .rms_norm import RMS_NORM
from .stream_linear import STREAM_DTYPES, stream_benchmarks


def reference(x: Array, gain: Array, weight: Array, *, eps: float) -> tuple[Array]:
    """Normalise each row, multiply by a weight, gate the second half with the first half's SiLU.

    Args:
        x: T [tokens, in_features].
        gain: the norm's weight, T [in_features].
        weight: T [2*inter, in_features].
        eps: added to the mean square.

    Returns:
        T [tokens, inter].
    """
    (normalised,) = RMS_NORM.reference(x, gain, eps=eps)
    (out,) = LINEAR_SWIGLU.reference(normalised, weight)
    return (out,)


def cost(axes: Axes, dtype: str, *, eps: float) -> Cost:
    """x, both weights and the result move once; the flops of all three."""
    return normalised_cost(LINEAR_SWIGLU.cost(axes, dtype), axes, dtype, eps)


def check(axes: Axes, *, eps: float) -> None:
    """Refuse sizes that streaming does not take."""
    check_normalised("norm_swiglu", axes)


def launches(axes: Axes, dtype: str, *, eps: float) -> tuple[Launch, ...]:
    """One launch, of teams of warps that share the weight; each block normalises the rows."""
    inter = axes["inter"]
    return (normalised_launch("norm_swiglu", axes, dtype, eps, columns=2 * inter, sizes=(inter,)),)


def _inputs(tokens: int, in_features: int, inter: int, *, scale: float = 1.0) -> Make:
    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        x = normal(rng, dtype, (tokens, in_features), scale)
        gain = 1 + normal(rng, dtype, (in_features,), 0.25)
        return x, gain, normal(rng, dtype, (2 * inter, in_features), in_features**-0.5)

    return make


_EPS = {"eps": 1e-5}

NORM_SWIGLU = Kernel(
    name="norm_swiglu",
    operands=(
        Operand("out", ("tokens", "inter"), "T", Access.WRITE),
        Operand("x", ("tokens", "in_features"), "T"),
        Operand("gain", ("in_features",), "T", constant=True),
        Operand("weight", ("2*inter", "in_features"), "T", constant=True),
    ),
    reference=reference,
    cost=cost,
    check=check,
    cuda_dtypes=STREAM_DTYPES,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        Case("one_row", _inputs(1, 256, 24), _EPS),
        Case("one_row_odd", _inputs(1, 512, 23), _EPS),
        Case("two_rows", _inputs(2, 2048, 17), _EPS),
        Case("three_rows", _inputs(3, 1024, 19), _EPS),
        Case("four_rows", _inputs(4, 128, 20), _EPS),
        Case("five_rows", _inputs(5, 2048, 11), _EPS),
        Case("eight_rows", _inputs(8, 192, 270), _EPS),
        Case("one_gate", _inputs(1, 1792, 1), _EPS),
        Case("small_scale", _inputs(3, 256, 12, scale=1e-3), _EPS),  # shows a wrong eps
        Case("large_scale", _inputs(2, 256, 12, scale=300.0), _EPS),
    ),
    benchmarks=stream_benchmarks(_inputs, ("gate_up",), _EPS),
)
