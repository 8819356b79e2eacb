"""How ``wgmma_linear.cuh`` shares a weight among blocks, for 9 to 64 rows of 16-bit types.

Knows sizes and dtypes, not the kernels' text. The choices are the best of those tried on an H200,
over the shapes of Llama's 1B and 8B.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cugraphs.kernel import CUDA_TYPES, Axes, Launch, MatrixProduct
from cugraphs.tensor_map import ROW_BYTES, TensorMap

from .stream_linear import STREAM_DTYPES

MIN_ROWS, MAX_ROWS = 9, 64
WGMMA_ARCH = "sm_90a"

_ALIGNED = 8  # elements of a row, which begins at a multiple of 16 bytes
_DEPTH = 64  # elements of a row in a stage
MULTIPROCESSORS = 132
_THREADS = 192
_ALIGNMENT, _BARRIER_BYTES = 1024, 16  # of a stage's barriers
_SHARED_BYTES = 227 << 10  # of a block: all of a multiprocessor
_COLUMNS = (224, 192, 128, 96, 64, 48, 32, 16)  # of a tile
MAX_PARTS = 8
_ROWS = (16, 32, 64)  # of x, that a stage has room for
# A product alone, that a block takes several tiles of, cuBLASLt computes as fast.
MAX_COLUMNS = MULTIPROCESSORS * _COLUMNS[0]
# A stage costs what is longer: its weights from memory, or all from the L2 cache. Sums of parts
# are written and read. In the time that 128 bytes take from the L2 cache.
_MEMORY_COST = 1.9
_LEAST_COST = 93  # to copy, multiply and give back, whatever the size
_PART_COST = 0.1 / 64


@dataclass(frozen=True)
class WgmmaShape:
    """A launch: blocks take tiles of so many columns, over a part of in_features each.

    Args:
        columns: of a tile.
        parts: of in_features.
        tiles: of all columns.
        rows: of x, that a stage has room for.
    """

    columns: int
    parts: int
    tiles: int
    rows: int

    @property
    def stages(self) -> int:
        """As many as shared memory holds."""
        return (_SHARED_BYTES - _ALIGNMENT) // (self._stage_bytes + _BARRIER_BYTES)

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        return self.stages * (self._stage_bytes + _BARRIER_BYTES) + _ALIGNMENT

    @property
    def _stage_bytes(self) -> int:
        return (self.rows + self.columns) * ROW_BYTES


def takes_wgmma(tokens: int, in_features: int, out_features: int, dtype: str) -> bool:
    """Whether there is a form for these sizes, and it is the best that sm_90a has."""
    aligned = in_features % _ALIGNED == 0 and out_features % _ALIGNED == 0
    return MIN_ROWS <= tokens <= MAX_ROWS and aligned and dtype in STREAM_DTYPES


def check_wgmma(name: str, axes: Axes, out_features: int, *, max_rows: int = MAX_ROWS) -> None:
    """Refuse sizes that there is no form for.

    Args:
        name: of the kernel.
        axes: its sizes.
        out_features: of a row, as the kernel stores it.
        max_rows: that the kernel is for.

    Raises:
        ValueError: too many rows, or rows of no whole vectors.
    """
    if axes["tokens"] > max_rows:
        raise ValueError(
            f"{name}: tokens is {axes['tokens']}, expected at most {max_rows}; use the kernels "
            "that it stands for"
        )
    for what, size in (("in_features", axes["in_features"]), ("a row's results", out_features)):
        if size % _ALIGNED:
            raise ValueError(f"{name}: {what} is {size}, expected a multiple of {_ALIGNED}")


def wgmma_shape(
    tokens: int, in_features: int, columns: int, *, max_parts: int = 1, boxes: int = 1
) -> WgmmaShape:
    """The shape whose blocks have least to do.

    Args:
        tokens: rows of x.
        in_features: of the weight.
        columns: rows of the weight.
        max_parts: into which in_features may be cut.
        boxes: into which the rows of a tile are cut.
    """
    depths = -(-in_features // _DEPTH)
    candidates = [
        WgmmaShape(width, parts, -(-columns // width), _rows_of_stage(tokens, width))
        for width in _COLUMNS
        for parts in (1, 2, 4, 8)
        if parts <= min(max_parts, depths) and width % (8 * boxes) == 0
    ]

    def cost(shape: WgmmaShape) -> float:
        turns = -(-shape.tiles * shape.parts // MULTIPROCESSORS)
        loaded = max(shape.columns * _MEMORY_COST, shape.columns + tokens, _LEAST_COST)
        parts_cost = shape.parts * columns * tokens * _PART_COST if shape.parts > 1 else 0
        return turns * -(-depths // shape.parts) * loaded + parts_cost

    return min(candidates, key=cost)


def _rows_of_stage(tokens: int, columns: int) -> int:
    """Rows of x that there is room for: with the tile's they are as many as wgmma reads."""
    return next(rows for rows in _ROWS if rows >= tokens and rows + columns >= MAX_ROWS)


def wgmma_launch(
    function: str,
    shape: WgmmaShape,
    axes: Axes,
    dtype: str,
    out_features: int,
    *,
    operands: tuple[str, ...],
    elsewhere: tuple[Launch | MatrixProduct, ...],
    boxes: int = 1,
) -> Launch:
    """A launch of a kernel around the products.

    Args:
        function: its C++ name without template arguments.
        shape: of the launch.
        axes: ``tokens`` and ``in_features`` among them.
        dtype: of x and the weight.
        out_features: of a row, as the kernel stores it.
        operands: that it takes, ``x`` and ``weight`` among them.
        elsewhere: what runs on other architectures.
        boxes: of so many times as many rows is the weight; each is copied for itself.
    """
    tokens, in_features = axes["tokens"], axes["in_features"]
    sizes = (tokens, in_features, out_features, *((shape.parts,) if boxes == 1 else ()))

    def rows(operand: str, count: int, of_box: int) -> TensorMap:
        row_bytes = 2 * in_features
        return TensorMap(
            operand,
            dtype,
            shape=(in_features, count, 1, 1),
            strides_bytes=(row_bytes, row_bytes, row_bytes),
            box=(_DEPTH, of_box, 1, 1),
        )

    return Launch(
        function=f"{function}<{CUDA_TYPES[dtype]}, {shape.columns}, {shape.stages}, {shape.rows}>",
        grid=(min(shape.tiles * shape.parts, MULTIPROCESSORS), 1, 1),
        block=_THREADS,
        scalars=tuple(map(np.int32, sizes)),
        operands=operands,
        shared_bytes=shape.shared_bytes,
        programmatic=True,
        settles=True,
        arch=WGMMA_ARCH,
        elsewhere=elsewhere,
        tensor_maps=(
            rows("x", tokens, -(-tokens // 8) * 8),
            rows("weight", boxes * out_features, shape.columns // boxes),
        ),
    )
