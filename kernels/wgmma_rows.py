"""How ``wgmma_rows.cuh`` shares a product among blocks, for 65 to 256 rows of 16-bit types.

Knows sizes and dtypes, not the kernels' text. The choices are the best of those tried on an H200,
over the shapes of Llama's 8B.
"""

from __future__ import annotations

from .launch_shapes import MULTIPROCESSORS
from .stream_linear import STREAM_DTYPES
from .wgmma_tiles import ALIGNED, TilesShape

MIN_ROWS, MAX_ROWS = 65, 256
COLUMNS = 224  # of a tile: as many as registers hold the sums of

_CLUSTER = 2  # blocks that share the rows of x
_GROUP_ROWS = 64  # of x, that a product of wgmma has
# Multiprocessors without a tile leave the others slower than cuBLASLt's smaller tiles. So much of
# what all of them could compute is needed.
LEAST_SHARE = 0.9


class RowsShape(TilesShape):
    """A launch: each block has one tile, over all of in_features, of whole groups of 64 rows."""

    suffix = "rows"
    cluster = _CLUSTER
    settles = False

    @property
    def blocks(self) -> int:
        """One a tile."""
        return self.tiles

    @property
    def groups(self) -> int:
        """Of rows of x."""
        return self.rows // _GROUP_ROWS

    @property
    def threads(self) -> int:
        """A warpgroup for one group of rows, or for two where there are four."""
        return 128 * (2 if self.groups == 4 else self.groups)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Groups in place of rows."""
        return self.columns, self.stages, self.groups


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
    if in_features % ALIGNED or columns % (boxes * ALIGNED):
        return None
    tiles = -(-columns // (COLUMNS * _CLUSTER)) * _CLUSTER
    turns = -(-tiles // MULTIPROCESSORS)
    if columns < LEAST_SHARE * turns * MULTIPROCESSORS * COLUMNS:
        return None
    rows = -(-tokens // _GROUP_ROWS) * _GROUP_ROWS
    return RowsShape(columns=COLUMNS, parts=1, tiles=tiles, rows=rows)
