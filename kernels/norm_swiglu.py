"""RMSNorm, linear and SwiGLU, for few rows: ``silu_and_mul(rms_norm(x, gain) @ weight.T)``.

Rounding: the normalised rows and the product are rounded as RMS_NORM and LINEAR store them, so the
results are those of RMS_NORM, LINEAR and SILU_AND_MUL, one after the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import DTYPES, Access, Array, Axes, Case, Cost, Kernel, Launch, Operand

from .case_arrays import Make, normal
from .linear import LINEAR
from .rms_norm import RMS_NORM
from .silu_and_mul import SILU_AND_MUL
from .stream_linear import (
    MAX_NORM_ROWS,
    STREAM_DTYPES,
    check_streams,
    normalised_bytes,
    stream_benchmarks,
    stream_shape,
)


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
    (product,) = LINEAR.reference(normalised, weight)
    (out,) = SILU_AND_MUL.reference(product)
    return (out,)


def cost(axes: Axes, dtype: str, *, eps: float) -> Cost:
    """x, both weights and the result move once; the flops of all three."""
    tokens, in_features, inter = axes["tokens"], axes["in_features"], axes["inter"]
    elements = tokens * in_features + in_features + 2 * inter * in_features + tokens * inter
    norm = RMS_NORM.cost({"tokens": tokens, "hidden": in_features}, dtype, eps=eps)
    gates = SILU_AND_MUL.cost({"tokens": tokens, "inter": inter}, dtype)
    products = 2 * tokens * in_features * 2 * inter
    return Cost(elements * DTYPES[dtype].itemsize, norm.flops + products + gates.flops)


def check(axes: Axes, *, eps: float) -> None:
    """Refuse sizes that streaming does not take."""
    check_streams("norm_swiglu", axes, max_rows=MAX_NORM_ROWS, normalised=True)


def launches(axes: Axes, dtype: str, *, eps: float) -> tuple[Launch, ...]:
    """One launch, of teams of warps that share the weight; each block normalises the rows."""
    tokens, in_features, inter = axes["tokens"], axes["in_features"], axes["inter"]
    shape = stream_shape(tokens, in_features, 2 * inter)
    return (
        Launch(
            function=shape.function("norm_swiglu", dtype),
            grid=(shape.blocks, 1, 1),
            block=shape.threads,
            scalars=(np.int32(tokens), np.int32(in_features), np.int32(inter), np.float32(eps)),
            shared_bytes=normalised_bytes(tokens, in_features),
            programmatic=True,
        ),
    )


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
