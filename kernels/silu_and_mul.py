"""SwiGLU: ``out = silu(gate) * up`` with ``gate, up = x[:, :inter], x[:, inter:]``.

``silu(g) = g / (1 + exp(-g))``, in float32, one rounding at the store. Below -88 ``exp(-g)`` is
infinite in float32 and the quotient is -0, within 1e-36 of the exact value.
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
from .launch_shapes import block_threads, vector_width
from .precision import quiet, store, widen


@quiet
def reference(x: Array) -> tuple[Array]:
    """Gate the second half of each row with the SiLU of the first half.

    Args:
        x: T [tokens, 2*inter].

    Returns:
        T [tokens, inter].
    """
    wide = widen(x)
    inter = wide.shape[-1] // 2
    gate, up = wide[:, :inter], wide[:, inter:]
    out: Array = np.negative(gate)
    np.exp(out, out=out)
    out += 1
    np.divide(gate, out, out=out)
    out *= up
    return (store(out, x.dtype),)


def cost(axes: Axes, dtype: str) -> Cost:
    """Two halves in, one out; negate, exponential, add, divide, multiply: 5 flops an element."""
    elements = axes["tokens"] * axes["inter"]
    return Cost(3 * elements * DTYPES[dtype].itemsize, 5 * elements)


def launches(axes: Axes, dtype: str) -> tuple[Launch, ...]:
    """One thread a vector; a token's row is split over blocks where it is long."""
    inter = axes["inter"]
    width = vector_width(dtype, inter)
    threads = block_threads(inter // width)
    return (
        Launch(
            function=f"silu_and_mul<{CUDA_TYPES[dtype]}, {width}, {threads}>",
            grid=(axes["tokens"], -(-(inter // width) // threads), 1),
            block=threads,
            scalars=(np.int32(inter),),
            programmatic=True,
        ),
    )


def _inputs(tokens: int, inter: int, scale: float = 1.0) -> Make:
    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        return (normal(rng, dtype, (tokens, 2 * inter), scale),)

    return make


def _extreme_gates(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    gates = [-1e4, -1e3, -104, -88, -20, -1, -1e-3, -0.0, 0, 1e-3, 1, 20, 88, 104, 1e3, 1e4]
    ups = rng.uniform(-2, 2, (3, len(gates)))
    return (np.concatenate([np.tile(gates, (3, 1)), ups], axis=1).astype(dtype),)


SILU_AND_MUL = Kernel(
    name="silu_and_mul",
    operands=(
        Operand("out", ("tokens", "inter"), "T", Access.WRITE),
        Operand("x", ("tokens", "2*inter"), "T"),
    ),
    reference=reference,
    cost=cost,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        Case("one_row", _inputs(1, 64)),
        Case("odd", _inputs(7, 33)),
        Case("one_element", _inputs(1, 1)),
        Case("wide", _inputs(2, 1536)),
        Case("partial_block", _inputs(2, 2568)),
        Case("small_scale", _inputs(3, 96, 0.05)),
        Case("large_scale", _inputs(3, 96, 10.0)),
        Case("extreme_gates", _extreme_gates),
    ),
    benchmarks=tuple(
        Case(name, _inputs(rows, model.inter)) for name, model, rows in rowwise_sizes()
    ),
)
