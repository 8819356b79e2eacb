"""How ``wgmma_linear.cuh`` shares a weight among blocks, for 9 to 64 rows of 16-bit types.

Knows sizes and dtypes, not the kernels' text. The choices are the best of those tried on an H200,
over the shapes of Llama's 1B and 8B.
"""

from __future__ import annotations

from cugraphs.kernel import Axes

from .launch_shapes import MULTIPROCESSORS
from .stream_linear import STREAM_DTYPES
from .wgmma_tiles import ALIGNED, DEPTH, TilesShape

MIN_ROWS, MAX_ROWS = 9, 64
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


class WgmmaShape(TilesShape):
    """A launch: blocks take tiles by turns."""

    suffix = "wgmma"
    cluster = 1
    settles = True

    @property
    def blocks(self) -> int:
        """One a multiprocessor, or fewer."""
        return min(self.tiles * self.parts, MULTIPROCESSORS)

    @property
    def threads(self) -> int:
        """Four warps that multiply, two that copy."""
        return 192


def takes_wgmma(tokens: int, in_features: int, out_features: int, dtype: str) -> bool:
    """Whether there is a form for these sizes, and it is the best that sm_90a has."""
    aligned = in_features % ALIGNED == 0 and out_features % ALIGNED == 0
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
        if size % ALIGNED:
            raise ValueError(f"{name}: {what} is {size}, expected a multiple of {ALIGNED}")


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
    depths = -(-in_features // DEPTH)
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
