"""How ``wgmma_rows.cuh`` shares a product among blocks, for 65 to 256 rows of 16-bit types.

Knows sizes and dtypes, not the kernels' text. The choices are the best of those tried on an H200,
over the shapes of Llama's 8B.
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
COLUMNS = 224  # of a tile: as many as registers hold the sums of

_CLUSTER = 2  # blocks that share the rows of x
_GROUP_ROWS = 64  # of x, that a product of wgmma has
_ALIGNED = 8  # elements of a row, which begins at a multiple of 16 bytes
_DEPTH = 64  # elements of a row in a stage
_ALIGNMENT, _BARRIER_BYTES = 1024, 16  # of a stage's barriers
_SHARED_BYTES = 227 << 10  # of a block: all of a multiprocessor
# Multiprocessors without a tile leave the others slower than cuBLASLt's smaller tiles. So much of
# what all of them could compute is needed.
LEAST_SHARE = 0.9


@dataclass(frozen=True)
class RowsShape:
    """A launch: each block has a tile of so many columns, over all of in_features.

    Args:
        columns: of a tile.
        groups: of 64 rows.
        tiles: of all columns, for whole clusters.
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
        boxes: of so many times as many rows is the weight.
    """
    if dtype not in STREAM_DTYPES or not MIN_ROWS <= tokens <= MAX_ROWS:
        return None
    if in_features % _ALIGNED or columns % (boxes * _ALIGNED):
        return None
    tiles = -(-columns // (COLUMNS * _CLUSTER)) * _CLUSTER
    turns = -(-tiles // MULTIPROCESSORS)
    if columns < LEAST_SHARE * turns * MULTIPROCESSORS * COLUMNS:
        return None
    return RowsShape(COLUMNS, -(-tokens // _GROUP_ROWS), tiles)


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
    """A launch of a kernel around the products.

    Args:
        function: its C++ name without template arguments.
        shape: of the launch.
        axes: ``tokens`` and ``in_features`` among them.
        dtype: of x and the weight.
        out_features: of a row, as the kernel stores it.
        operands: that it takes, ``x`` and ``weight`` among them.
        elsewhere: what runs on other architectures.
        boxes: as for :func:`rows_shape`; each is copied for itself.
    """
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
        grid=(shape.tiles, 1, 1),
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
