"""Linear: ``out = x @ weight.T + bias``; products are summed in float32, rounded once at the store.

Batch invariance: BLAS picks its matrix kernel, and with it the order of the sum over
``in_features``, by the number of rows; some of its kernels even treat rows of one tile differently.
So with ``batch_invariant`` every row is a matrix-vector product of its own: the same call on the
same shape whatever the batch, hence the same bits. Up to three rows that is also the faster way.
On the GPU kernels of our own compute few rows, and cuBLASLt more of them. In 16-bit dtypes that is
``stream_linear.cuh``, which reads the weight at the speed of memory, and on sm_90a the forms of
``product_forms.py``. With ``batch_invariant`` it is
``linear_tiles.cuh``, whose order of operations is the same in every tile, for any number of rows
and every dtype. In float32 ``linear.cu`` computes few rows as dot products.
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
    MatrixProduct,
    Operand,
)

from .benchmark_sizes import MATRICES
from .case_arrays import Make, normal
from .launch_shapes import vector_width
from .linear_tiles import tile_launches, workspace_bytes
from .precision import quiet, store, widen
from .product_forms import own_form, own_launch
from .product_kernel import ProductKernel
from .stream_linear import stream_shape, streams

# Measured on OpenBLAS (AVX2 and AVX-512): reading the weight once per row beats its matrix-matrix
# product by 2x at 2 and 3 rows, and loses from 4 or 5 rows on.
MATVEC_MAX_ROWS = 3

# On the GPU dot products, or tiles where rows are of no whole pieces, compute so many rows.
FEW_ROWS = 4


@quiet
def reference(
    x: Array, weight: Array, bias: Array | None = None, *, batch_invariant: bool = False
) -> tuple[Array]:
    """Multiply by a weight as checkpoints store it, one output feature a row.

    Args:
        x: T [tokens, in_features].
        weight: T [out_features, in_features].
        bias: T [out_features], or None.
        batch_invariant: a row's result has the same bits whatever rows are beside it.

    Returns:
        T [tokens, out_features].
    """
    wide = widen(x)
    transposed = widen(weight).T
    if batch_invariant or len(wide) <= MATVEC_MAX_ROWS:
        # A stack of 1-row matrices: NumPy hands each one to BLAS as a matrix-vector product.
        out: Array = np.matmul(wide[:, None], transposed)[:, 0]
    else:
        out = np.matmul(wide, transposed)
    if bias is not None:
        out += widen(bias)
    return (store(out, x.dtype),)


def cost(axes: Axes, dtype: str, *, batch_invariant: bool = False) -> Cost:
    """Each matrix moves once. A bias is not counted: it is 1/in_features of the weight."""
    tokens, in_features, out_features = axes["tokens"], axes["in_features"], axes["out_features"]
    elements = tokens * in_features + in_features * out_features + tokens * out_features
    return Cost(elements * DTYPES[dtype].itemsize, 2 * tokens * in_features * out_features)


def launches(
    axes: Axes, dtype: str, *, batch_invariant: bool = False
) -> tuple[Launch | MatrixProduct, ...]:
    """Our own kernels for few rows, cuBLASLt for more; tiles if the batch must not matter.

    sm_90a has forms of its own for more of them.
    """
    if batch_invariant:
        return tuple(tile_launches(axes, dtype))
    out_features = axes["out_features"]
    elsewhere = _on_every_gpu(axes, dtype)
    form = own_form(axes["tokens"], axes["in_features"], out_features, dtype)
    if form is None:
        return elsewhere
    operands = ("out", "x", "weight", "bias")
    kernel = ProductKernel("linear", axes, dtype, out_features, operands, elsewhere)
    return (own_launch(form, kernel),)


def _on_every_gpu(axes: Axes, dtype: str) -> tuple[Launch | MatrixProduct, ...]:
    """Few rows are streamed, or are tiles or dot products where they cannot be; cuBLASLt's else."""
    tokens, in_features, out_features = axes["tokens"], axes["in_features"], axes["out_features"]
    sizes = (np.int32(tokens), np.int32(in_features), np.int32(out_features))
    if streams(tokens, in_features, dtype):
        shape = stream_shape(tokens, in_features, out_features)
        return (
            Launch(
                function=shape.function("linear_stream", dtype),
                grid=(shape.blocks, 1, 1),
                block=shape.threads,
                scalars=sizes,
                programmatic=True,
            ),
        )
    if _takes_tiles(axes, dtype, batch_invariant=False):
        return tuple(tile_launches(axes, dtype))
    if tokens > FEW_ROWS:
        return (MatrixProduct(),)
    width, threads = vector_width(dtype, in_features), 128
    rows = next(count for count in (1, 2, FEW_ROWS) if tokens <= count)
    outputs = 1 if rows == 1 else 2
    outputs_of_block = outputs * threads // 32
    return (
        Launch(
            function=f"linear<{CUDA_TYPES[dtype]}, {width}, {rows}, {outputs}, {threads}>",
            grid=(-(-out_features // outputs_of_block), 1, 1),
            block=threads,
            scalars=sizes,
            programmatic=True,
        ),
    )


def workspace(axes: Axes, dtype: str, *, batch_invariant: bool = False) -> int:
    """What cuBLASLt may use, or sums of parts need."""
    if _takes_tiles(axes, dtype, batch_invariant):
        return workspace_bytes(axes, dtype)
    return MatrixProduct.workspace_bytes if axes["tokens"] > FEW_ROWS else 0


def _takes_tiles(axes: Axes, dtype: str, batch_invariant: bool) -> bool:
    """Whether tiles compute it: tensor cores read a 16-bit weight faster than dot products do."""
    return batch_invariant or (axes["tokens"] <= FEW_ROWS and dtype != "float32")


def _inputs(tokens: int, in_features: int, out_features: int, *, bias: bool = False) -> Make:
    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        x = normal(rng, dtype, (tokens, in_features))
        weight = normal(rng, dtype, (out_features, in_features), in_features**-0.5)
        return (x, weight, normal(rng, dtype, (out_features,))) if bias else (x, weight)

    return make


def _positive(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """A sum that only grows: an accumulator of the operands' dtype would stop growing."""
    x, weight = _inputs(4, 2048, 24)(rng, dtype)
    return abs(x), abs(weight)


def _last_feature(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """All weight is on the last input feature, which a wrong loop bound drops."""
    x, weight = _inputs(3, 131, 40)(rng, dtype)
    weight[:, :-1] *= 1e-3
    weight[:, -1] += 1
    return x, weight


_INVARIANT = {"batch_invariant": True}

LINEAR = Kernel(
    name="linear",
    operands=(
        Operand("out", ("tokens", "out_features"), "T", Access.WRITE),
        Operand("x", ("tokens", "in_features"), "T"),
        Operand("weight", ("out_features", "in_features"), "T", constant=True),
        Operand("bias", ("out_features",), "T", optional=True, constant=True),
    ),
    reference=reference,
    cost=cost,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    workspace=workspace,
    cases=(
        Case("one_row", _inputs(1, 64, 48)),
        Case("one_row_odd", _inputs(1, 77, 13)),
        Case("odd", _inputs(3, 33, 7)),
        Case("one_element", _inputs(1, 1, 1)),
        Case("bias", _inputs(5, 96, 40, bias=True)),
        Case("one_row_bias", _inputs(1, 96, 40, bias=True)),
        Case("five_rows", _inputs(5, 576, 192)),
        Case("tile_and_one", _inputs(17, 128, 65)),
        Case("many_rows", _inputs(64, 256, 96)),
        # Longer than what a warp of the GPU kernel loads at once, and not a multiple of it.
        Case("one_row_long", _inputs(1, 2600, 5)),
        Case("two_rows_long", _inputs(2, 2600, 9)),
        Case("four_rows_bias", _inputs(4, 264, 17, bias=True)),
        Case("positive", _positive),
        Case("last_feature", _last_feature),
        # As many rows as share a fragment, and fewer; odd columns; teams with and without parts.
        Case("stream_one_row", _inputs(1, 512, 45, bias=True)),
        Case("stream_two_rows", _inputs(2, 2048, 33)),
        Case("stream_three_rows", _inputs(3, 1024, 37, bias=True)),
        Case("stream_four_rows", _inputs(4, 128, 40)),
        Case("stream_eight_rows", _inputs(8, 192, 530)),
        Case("stream_few_columns", _inputs(1, 1792, 9)),
        # Where such weights are taken for large: rows in registers, a stage a unit, and two.
        Case("held_three_rows", _inputs(3, 256, 45, bias=True)),
        Case("held_five_rows_two_stages", _inputs(5, 2560, 33)),
        Case("held_eight_rows", _inputs(8, 256, 50)),
        # A tile that is not full; a stage that is not; more steps than there are stages.
        Case("wgmma_nine_rows", _inputs(9, 256, 48, bias=True)),
        Case("wgmma_bias", _inputs(24, 136, 104, bias=True)),
        Case("wgmma_many_steps", _inputs(33, 1480, 40)),
        # Rows of no multiple of 16 bytes; odd columns; a part that ends within a stage.
        Case("batch_invariant", _inputs(9, 99, 33), _INVARIANT),
        Case("batch_invariant_one_row", _inputs(1, 64, 48), _INVARIANT),
        Case("batch_invariant_one_element", _inputs(1, 1, 1), _INVARIANT),
        Case("batch_invariant_bias", _inputs(2, 72, 50, bias=True), _INVARIANT),
        Case("batch_invariant_parts", _inputs(3, 2600, 70, bias=True), _INVARIANT),
        Case("batch_invariant_odd_parts", _inputs(18, 1030, 9, bias=True), _INVARIANT),
        Case("batch_invariant_last_feature", _last_feature, _INVARIANT),
        Case("batch_invariant_positive", _positive, _INVARIANT),
        # One row less, as many as and one more than each height of tiles has, and columns too.
        Case("batch_invariant_15", _inputs(15, 136, 63), _INVARIANT),
        Case("batch_invariant_16", _inputs(16, 520, 64), _INVARIANT),
        Case("batch_invariant_17", _inputs(17, 64, 65, bias=True), _INVARIANT),
        Case("batch_invariant_33", _inputs(33, 584, 130), _INVARIANT),
        Case("batch_invariant_65", _inputs(65, 200, 257, bias=True), _INVARIANT),
        Case("batch_invariant_257", _inputs(257, 72, 129), _INVARIANT),
        Case("batch_invariant_wide_32", _inputs(32, 40, 8194), _INVARIANT),
        Case("batch_invariant_wide_64", _inputs(64, 40, 8201, bias=True), _INVARIANT),
        Case("batch_invariant_wide_128", _inputs(128, 40, 8200), _INVARIANT),
    ),
    benchmarks=tuple(
        Case(
            f"8b_{matrix}_{rows}_row{'s' * (rows > 1)}{'_invariant' * invariant}",
            _inputs(rows, in_features, out_features),
            {"batch_invariant": invariant},
        )
        for matrix, (out_features, in_features) in MATRICES.items()
        for rows in (1, 16, 64, 256)
        for invariant in (False, True)
    ),
)
