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
