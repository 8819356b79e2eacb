"""How ``wgmma_rows.cuh`` shares a product among blocks, for 65 to 256 rows of 16-bit types.

Knows sizes and dtypes, not the kernels' text. The choices are the best of those tried on an H200,
over the shapes of Llama's 1B and 8B.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cugraphs.kernel import CUDA_TYPES, Axes, Launch, MatrixProduct
from cugraphs.tensor_map import ROW_BYTES, TensorMap

from .stream_linear import STREAM_DTYPES
from .wgmma_linear import WGMMA_ARCH

MIN_ROWS, MAX_ROWS = 65, 256
MULTIPROCESSORS = 132

_CLUSTER = 2  # blocks that share the rows of x
_GROUP_ROWS = 64  # of x, that a product of wgmma has
_ALIGNED = 8  # elements of a row, which begins at a multiple of 16 bytes
_DEPTH = 64  # elements of a row in a stage
_ALIGNMENT, _BARRIER_BYTES = 1024, 16  # of a stage's barriers
_SHARED_BYTES = 227 << 10  # of a block: all of a multiprocessor
_COLUMNS = (224, 200)  # of a tile
_LEAST_FULL = 0.9  # of what blocks could compute in their turns, where it is faster than cuBLASLt


@dataclass(frozen=True)
class RowsShape:
    """A launch: blocks take tiles of so many columns.

    Args:
        columns: of a tile.
        groups: of 64 rows.
        tiles: of all columns.
    """

    columns: int
    groups: int
    tiles: int

    @property
    def parts(self) -> int:
        """Of in_features."""
        return 1

    @property
    def threads(self) -> int:
        """Of a block: a warpgroup for one group of rows, or for two where there are four."""
        return 128 * (2 if self.groups == 4 else self.groups)

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
        return (self.groups * _GROUP_ROWS + self.columns) * ROW_BYTES


def rows_shape(
    tokens: int, in_features: int, columns: int, dtype: str, *, boxes: int = 1
) -> RowsShape | None:
    """The shape for these sizes, or None where there is none or cuBLASLt is as fast.

    Args:
        tokens: rows of x.
        in_features: of the weight.
        columns: rows of the weight.
        dtype: of both.
        boxes: into which the rows of a tile are cut.
    """
    if dtype not in STREAM_DTYPES or not MIN_ROWS <= tokens <= MAX_ROWS:
        return None
    if in_features % _ALIGNED or columns % (boxes * _ALIGNED):
        return None
    groups = -(-tokens // _GROUP_ROWS)
    shapes = [
        RowsShape(width, groups, -(-columns // (width * _CLUSTER)) * _CLUSTER)
        for width in _COLUMNS
        if width % (8 * boxes) == 0
    ]
    shape = min(shapes, key=lambda s: -(-s.tiles // MULTIPROCESSORS) * s.columns)
    steps = -(-in_features // _DEPTH)
    turns = -(-shape.tiles // MULTIPROCESSORS)
    is_full = columns >= _LEAST_FULL * turns * MULTIPROCESSORS * shape.columns
    return shape if is_full and steps >= shape.stages else None


def rows_launch(
    function: str,
    shape: RowsShape,
    axes: Axes,
    dtype: str,
    out_features: int,
    *,
    operands: tuple[str, ...],
    elsewhere: tuple[Launch | MatrixProduct, ...],
    boxes: int = 1,
) -> Launch:
    """A launch of a kernel around the products; arguments as for ``wgmma_linear.wgmma_launch``."""
    tokens, in_features = axes["tokens"], axes["in_features"]

    def rows(operand: str, count: int, of_box: int) -> TensorMap:
        row_bytes = 2 * in_features
        return TensorMap(
            operand,
            dtype,
            shape=(in_features, count, 1, 1),
            strides_bytes=(row_bytes, row_bytes, row_bytes),
            box=(_DEPTH, of_box, 1, 1),
        )

    numbers = (shape.columns, shape.stages, shape.groups)
    return Launch(
        function=f"{function}<{CUDA_TYPES[dtype]}, {', '.join(map(str, numbers))}>",
        grid=(min(shape.tiles, MULTIPROCESSORS), 1, 1),
        block=shape.threads,
        scalars=(np.int32(tokens), np.int32(in_features), np.int32(out_features)),
        operands=operands,
        shared_bytes=shape.shared_bytes,
        programmatic=True,
        arch=WGMMA_ARCH,
        elsewhere=elsewhere,
        tensor_maps=(
            rows("x", tokens, -(-tokens // (8 * _CLUSTER)) * 8),
            rows("weight", boxes * out_features, shape.columns // boxes),
        ),
        cluster=_CLUSTER,
    )
