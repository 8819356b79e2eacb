"""How ``linear_tiles.cuh`` cuts a matrix product into tiles and parts.

Knows sizes and dtypes, not the kernels' text. What decides a result's bits, the number of parts,
follows from the weight's shape and dtype alone; the tiles may follow from the number of rows too.

The choices are the best of those tried on an H200, over the shapes of Llama's 1B and 8B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cugraphs.kernel import CUDA_TYPES, DTYPES, WORKSPACE, Axes, Launch, MatrixProduct

from .launch_shapes import MAX_LOAD_BYTES, vector_width

_DEPTH_BYTES = 128  # of a row in a stage; parts of in_features are cut at multiples of it
_SUM_THREADS = 128
_ALIGNED = 8  # elements of 16 bits in 16 bytes

# A weight with few rows fills the GPU only if in_features is cut too.
_MIN_BLOCKS = 128  # about as many as a large GPU has multiprocessors
_MAX_PARTS = 4
_MIN_PART_DEPTHS = 4


@dataclass(frozen=True)
class Tiles:
    """A block's tile of the result, and a warp's share of it.

    Args:
        rows: of a block.
        columns: of a block.
        warp_rows: of a warp; a multiple of 16.
        warp_columns: of a warp; a multiple of 16.
        stages: of both operands' tiles in shared memory; at most 99 KB in all.
    """

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    stages: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.rows // self.warp_rows * (self.columns // self.warp_columns) * 32

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        return (self.rows + self.columns) * _DEPTH_BYTES * self.stages

    def count(self, tokens: int, out_features: int) -> int:
        """Tiles of the whole result."""
        return -(-tokens // self.rows) * -(-out_features // self.columns)


# By the most rows that they are for: for few output features, and for more than _WIDE of them.
_WIDE = 8192
_NARROW_TILES = {
    16: Tiles(16, 64, 16, 16, 8),
    32: Tiles(32, 64, 32, 16, 6),
    64: Tiles(64, 64, 32, 32, 6),
    256: Tiles(64, 128, 64, 32, 4),
}
_WIDE_TILES = {
    16: Tiles(16, 64, 16, 16, 8),
    32: Tiles(32, 128, 32, 32, 4),
    64: Tiles(64, 128, 64, 32, 4),
    128: Tiles(128, 128, 64, 64, 3),
    256: Tiles(64, 128, 64, 32, 4),
}
_LARGE_TILES = Tiles(128, 128, 64, 64, 3)
# Without tensor cores, or where rows are copied element by element, these two do.
_FEW_PLAIN, _MANY_PLAIN = _NARROW_TILES[16], _NARROW_TILES[64]


def parts_of(axes: Axes, dtype: str) -> int:
    """Into how many parts in_features is cut: the same for any number of rows."""
    depths = -(-axes["in_features"] * DTYPES[dtype].itemsize // _DEPTH_BYTES)
    column_tiles = -(-axes["out_features"] // _NARROW_TILES[16].columns)
    parts = 1
    while (
        parts < _MAX_PARTS
        and parts * column_tiles < _MIN_BLOCKS
        and depths >= 2 * parts * _MIN_PART_DEPTHS
    ):
        parts *= 2
    return parts


def workspace_bytes(axes: Axes, dtype: str) -> int:
    """What the sums of the parts need."""
    parts = parts_of(axes, dtype)
    if parts == 1:
        return 0
    return 4 * parts * min(axes["tokens"], _tokens_together(axes, parts)) * axes["out_features"]


def tile_launches(axes: Axes, dtype: str) -> Iterator[Launch]:
    """The products; where there are parts, each followed by the sum over them."""
    tokens, in_features, out_features = axes["tokens"], axes["in_features"], axes["out_features"]
    parts = parts_of(axes, dtype)
    aligned = vector_width(dtype, in_features) * DTYPES[dtype].itemsize == MAX_LOAD_BYTES
    together = tokens if parts == 1 else _tokens_together(axes, parts)
    for first in range(0, tokens, together):
        count = min(together, tokens - first)
        tiles = _tiles_for(count, out_features, plain=dtype == "float32" or not aligned)
        sizes = (first, count, in_features, out_features)
        yield _tile_launch(tiles, sizes, dtype, parts, aligned=aligned)
        if parts == 1:
            continue
        width = vector_width("float32", out_features)
        vectors = count * out_features // width
        yield Launch(
            function=f"linear_sum<{CUDA_TYPES[dtype]}, {width}, {_SUM_THREADS}>",
            grid=(-(-vectors // _SUM_THREADS), 1, 1),
            block=_SUM_THREADS,
            scalars=tuple(map(np.int32, (first, count, out_features, parts))),
            operands=("out", WORKSPACE, "bias"),
            programmatic=True,
        )


MAX_FEW_ROWS = _NARROW_TILES[16].rows


def few_rows_parts(in_features: int) -> int:
    """Parts of a row that another launch adds up; 1 where rows are not aligned or short."""
    if in_features % _ALIGNED:
        return 1
    depths = -(-in_features * 2 // _DEPTH_BYTES)
    return next(parts for parts in (_MAX_PARTS, 2, 1) if depths >= parts)


def few_rows_tiles(axes: Axes, dtype: str, parts: int) -> Launch:
    """The products of at most ``MAX_FEW_ROWS`` rows of a 16-bit type, as sums of parts.

    Four parts are for narrow matrices the best of those tried on an H200, where what adds them is
    a launch that there would be anyway.
    """
    tokens, in_features, out_features = axes["tokens"], axes["in_features"], axes["out_features"]
    return _tile_launch(_NARROW_TILES[16], (0, tokens, in_features, out_features), dtype, parts)


def _tile_launch(
    tiles: Tiles, sizes: tuple[int, int, int, int], dtype: str, parts: int, *, aligned: bool = True
) -> Launch:
    """One launch; ``sizes`` are the first token, tokens, in_features and out_features."""
    arguments = (
        *(tiles.rows, tiles.columns, tiles.warp_rows, tiles.warp_columns),
        *(tiles.stages, str(aligned).lower()),
    )
    return Launch(
        function=f"linear_tiles<{CUDA_TYPES[dtype]}, {', '.join(map(str, arguments))}>",
        grid=(tiles.count(sizes[1], sizes[3]), parts, 1),
        block=tiles.threads,
        scalars=tuple(map(np.int32, sizes)),
        operands=("out", WORKSPACE, "x", "weight", "bias"),
        shared_bytes=tiles.shared_bytes,
        programmatic=True,
    )


def _tokens_together(axes: Axes, parts: int) -> int:
    """Tokens of one launch where the sums of the parts take no more than cuBLASLt's workspace."""
    tile = _LARGE_TILES.rows
    row_bytes = 4 * parts * axes["out_features"]
    return max(1, MatrixProduct.workspace_bytes // (row_bytes * tile)) * tile


def _tiles_for(tokens: int, out_features: int, *, plain: bool) -> Tiles:
    if plain:
        return _FEW_PLAIN if tokens <= _FEW_PLAIN.rows else _MANY_PLAIN
    tiles = _WIDE_TILES if out_features > _WIDE else _NARROW_TILES
    return next((tile for most, tile in tiles.items() if tokens <= most), _LARGE_TILES)
