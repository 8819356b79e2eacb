"""How ``linear_tiles.cuh`` cuts a matrix product into tiles and parts.

Knows sizes and dtypes; not the kernels' text. What decides a result's bits, the number of parts,
follows from the weight's shape alone; the rest (tiles, and whether parts run side by side) may
follow from the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cugraphs.kernel import CUDA_TYPES, DTYPES, WORKSPACE, Axes, Launch

from .launch_shapes import vector_width

_CHUNK_BYTES = 16
_PART_BYTES = 128  # parts of in_features are cut at multiples of it
_SUM_THREADS = 128


@dataclass(frozen=True)
class Tiles:
    """A block's tile of the result, a warp's share of it, and how deep x and weight are staged.

    Args:
        rows: of a block.
        columns: of a block.
        warp_rows: of a warp; a multiple of 16.
        warp_columns: of a warp; a multiple of 8.
        chunks: of 16 bytes in a row of a stage: 4 or 8.
        stages: in shared memory.
    """

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    chunks: int
    stages: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.rows // self.warp_rows * (self.columns // self.warp_columns) * 32

    @property
    def shared_bytes(self) -> int:
        """Of a block: all stages of both tiles."""
        return (self.rows + self.columns) * self.chunks * _CHUNK_BYTES * self.stages

    def count(self, tokens: int, out_features: int) -> int:
        """Tiles of the whole result."""
        return -(-tokens // self.rows) * -(-out_features // self.columns)


FEW = Tiles(16, 64, 16, 16, 8, 8)


def tile_launches(
    axes: Axes, dtype: str, tiles: Tiles, parts: int, *, apart: bool
) -> tuple[Launch, ...]:
    """The launches for these tiles, with parts side by side or one after the other."""
    tokens, in_features, out_features = axes["tokens"], axes["in_features"], axes["out_features"]
    aligned = vector_width(dtype, in_features) * DTYPES[dtype].itemsize == _CHUNK_BYTES
    apart = apart and parts > 1
    arguments = (
        *(tiles.rows, tiles.columns, tiles.warp_rows, tiles.warp_columns),
        *(tiles.chunks, tiles.stages),
        *("true" if flag else "false" for flag in (aligned, parts > 1 and not apart)),
    )
    products = Launch(
        function=f"linear_tiles<{CUDA_TYPES[dtype]}, {', '.join(map(str, arguments))}>",
        grid=(tiles.count(tokens, out_features), 1, parts if apart else 1),
        block=tiles.threads,
        scalars=tuple(map(np.int32, (tokens, in_features, out_features, parts))),
        operands=("out", WORKSPACE, "x", "weight", "bias"),
        shared_bytes=tiles.shared_bytes,
    )
    if not apart:
        return (products,)
    width = vector_width("float32", out_features)
    vectors = tokens * out_features // width
    total = Launch(
        function=f"linear_sum<{CUDA_TYPES[dtype]}, {width}, {_SUM_THREADS}>",
        grid=(-(-vectors // _SUM_THREADS), 1, 1),
        block=_SUM_THREADS,
        scalars=tuple(map(np.int32, (tokens, out_features, parts))),
        operands=("out", WORKSPACE, "bias"),
        programmatic=True,
    )
    return products, total
