"""Linear and SwiGLU, for up to 256 rows: ``silu_and_mul(x @ weight.T)``.

Above 16 rows, or where so many are too long to be streamed, the product's form is one that only
sm_90a has; elsewhere it is cuBLASLt's, and SILU_AND_MUL follows. So it is above 64 rows where that
form would leave multiprocessors idle.

Rounding: the product is rounded as LINEAR stores it, so the results are those of LINEAR followed by
SILU_AND_MUL.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import (
    DTYPES,
    WORKSPACE,
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

from . import silu_and_mul
from .case_arrays import Make, normal
from .linear import LINEAR
from .product_forms import own_form, own_launch
from .product_kernel import ProductKernel
from .silu_and_mul import SILU_AND_MUL
from .stream_linear import STREAM_DTYPES, stream_benchmarks, stream_shape, streams
from .wgmma_linear import check_wgmma
from .wgmma_rows import MAX_ROWS as MAX_FUSED_ROWS


def reference(x: Array, weight: Array) -> tuple[Array]:
    """Multiply by a weight, and gate the second half with the first half's SiLU.

    Args:
        x: T [tokens, in_features].
        weight: T [2*inter, in_features].

    Returns:
        T [tokens, inter].
    """
    (product,) = LINEAR.reference(x, weight)
    (out,) = SILU_AND_MUL.reference(product)
    return (out,)


def cost(axes: Axes, dtype: str) -> Cost:
    """x, the weight and the result move once; the flops of both."""
    tokens, in_features, inter = axes["tokens"], axes["in_features"], axes["inter"]
    elements = tokens * in_features + 2 * inter * in_features + tokens * inter
    gates = SILU_AND_MUL.cost({"tokens": tokens, "inter": inter}, dtype)
    flops = 2 * tokens * in_features * 2 * inter + gates.flops
    return Cost(elements * DTYPES[dtype].itemsize, flops)


def check(axes: Axes) -> None:
    """Refuse sizes that are neither streamed nor for what takes more rows."""
    if not streams(axes["tokens"], axes["in_features"], STREAM_DTYPES[0]):
        check_wgmma("linear_swiglu", axes, axes["inter"], max_rows=MAX_FUSED_ROWS)


def launches(axes: Axes, dtype: str) -> tuple[Launch | MatrixProduct, ...]:
    """One launch: of teams of warps that share the weight, or of blocks that do."""
    tokens, in_features, inter = axes["tokens"], axes["in_features"], axes["inter"]
    elsewhere: tuple[Launch | MatrixProduct, ...]
    if streams(tokens, in_features, dtype):
        shape = stream_shape(tokens, in_features, 2 * inter)
        stream = Launch(
            function=shape.function("linear_swiglu_stream", dtype),
            grid=(shape.blocks, 1, 1),
            block=shape.threads,
            scalars=(np.int32(tokens), np.int32(in_features), np.int32(inter)),
            programmatic=True,
        )
        elsewhere = (stream,)
    else:
        (gated,) = silu_and_mul.launches({"tokens": tokens, "inter": inter}, dtype)
        elsewhere = (
            MatrixProduct(to_workspace=True),
            replace(gated, operands=("out", WORKSPACE)),
        )
    form = own_form(tokens, in_features, 2 * inter, dtype, boxes=2)
    if form is None:
        return elsewhere
    operands = ("out", "x", "weight")
    kernel = ProductKernel("linear_swiglu", axes, dtype, inter, operands, elsewhere, boxes=2)
    return (own_launch(form, kernel),)


def workspace(axes: Axes, dtype: str) -> int:
    """Where cuBLASLt is used, its own and the product."""
    tokens = axes["tokens"]
    if streams(tokens, axes["in_features"], dtype):
        return 0
    product = MatrixProduct.result_bytes(tokens, 2 * axes["inter"], dtype)
    return product + MatrixProduct.workspace_bytes


def _inputs(tokens: int, in_features: int, inter: int) -> Make:
    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        x = normal(rng, dtype, (tokens, in_features))
        return x, normal(rng, dtype, (2 * inter, in_features), in_features**-0.5)

    return make


LINEAR_SWIGLU = Kernel(
    name="linear_swiglu",
    operands=(
        Operand("out", ("tokens", "inter"), "T", Access.WRITE),
        Operand("x", ("tokens", "in_features"), "T"),
        Operand("weight", ("2*inter", "in_features"), "T", constant=True),
    ),
    reference=reference,
    cost=cost,
    check=check,
    cuda_dtypes=STREAM_DTYPES,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    workspace=workspace,
    cases=(
        Case("one_row", _inputs(1, 256, 24)),
        Case("two_rows", _inputs(2, 2048, 17)),
        Case("three_rows", _inputs(3, 1024, 19)),
        Case("eight_rows", _inputs(8, 192, 270)),
        Case("nine_rows", _inputs(9, 1024, 21)),
        Case("sixteen_rows", _inputs(16, 320, 34)),
        Case("one_gate", _inputs(1, 1792, 1)),
        # Where such weights are taken for large: rows in registers, a stage a unit, and two.
        Case("held_seven_rows", _inputs(7, 256, 38)),
        Case("held_eight_rows_two_stages", _inputs(8, 2560, 18)),
        # Tiles and a part of one; a stage that is not full; more steps than stages; all rows.
        Case("wgmma_twelve_rows", _inputs(12, 320, 40)),
        Case("sixteen_long_rows", _inputs(16, 5184, 40)),
        Case("seventeen_rows", _inputs(17, 136, 72)),
        Case("many_steps", _inputs(40, 1352, 24)),
        Case("sixty_four_rows", _inputs(64, 192, 264)),
        # Of two, three and four groups of rows: fewer steps than stages, more, and all rows. Their
        # own form is for wider gates, or where tests say so.
        Case("seventy_rows", _inputs(70, 136, 40)),
        Case("rows_of_three_groups", _inputs(150, 840, 24)),
        Case("rows_of_four_groups", _inputs(200, 712, 40)),
        Case("two_hundred_fifty_six_rows", _inputs(256, 64, 72)),
    ),
    benchmarks=stream_benchmarks(_inputs, ("gate_up",), row_counts=(1, 16, 64, 256)),
)
