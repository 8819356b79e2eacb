"""What the launches of ``wgmma_linear.cuh`` and ``wgmma_rows.cuh`` have in common.

A block has tiles of a weight's rows, and a ring of stages that fills a multiprocessor's shared
memory: 64 elements of each row of x and of the tile in each, copied by tensor maps. Knows sizes and
dtypes, not the kernels' text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cugraphs.kernel import CUDA_TYPES, Launch
from cugraphs.tensor_map import ROW_BYTES, TensorMap

from .launch_shapes import SM90_SHARED_BYTES
from .product_kernel import ProductKernel

ALIGNED = 8  # elements of a row, which begins at a multiple of 16 bytes
DEPTH = 64  # elements of a row in a stage

_ALIGNMENT, _BARRIER_BYTES = 1024, 16  # of a stage's two barriers


@dataclass(frozen=True)
class TilesShape(ABC):
    """A launch: blocks have tiles of so many columns, over a part of in_features each.

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

    suffix: ClassVar[str]  # of the kernels' names
    cluster: ClassVar[int]  # blocks that share the rows of x
    settles: ClassVar[bool]  # as of a Launch

    @property
    @abstractmethod
    def blocks(self) -> int:
        """Of the launch."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Of a block."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The kernels' template arguments."""
        return self.columns, self.stages, self.rows

    @property
    def stages(self) -> int:
        """As many as shared memory holds."""
        return (SM90_SHARED_BYTES - _ALIGNMENT) // (self._stage_bytes + _BARRIER_BYTES)

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        return self.stages * (self._stage_bytes + _BARRIER_BYTES) + _ALIGNMENT

    @property
    def _stage_bytes(self) -> int:
        return (self.rows + self.columns) * ROW_BYTES

    def launch(self, kernel: ProductKernel) -> Launch:
        """The launch of a kernel whose product has this shape."""
        tokens, in_features = kernel.axes["tokens"], kernel.axes["in_features"]
        dtype, out_features, boxes = kernel.dtype, kernel.out_features, kernel.boxes
        sizes = (tokens, in_features, out_features, *((self.parts,) if boxes == 1 else ()))
        x_rows = -(-tokens // (8 * self.cluster)) * 8  # that a block copies
        arguments = ", ".join([CUDA_TYPES[dtype], *map(str, self.numbers)])
        return Launch(
            function=f"{kernel.name}_{self.suffix}<{arguments}>",
            grid=(self.blocks, 1, 1),
            block=self.threads,
            scalars=tuple(map(np.int32, sizes)),
            operands=kernel.operands,
            shared_bytes=self.shared_bytes,
            programmatic=True,
            settles=self.settles,
            arch="sm_90a",
            elsewhere=kernel.elsewhere,
            tensor_maps=(
                _rows("x", dtype, tokens, in_features, x_rows),
                _rows("weight", dtype, boxes * out_features, in_features, self.columns // boxes),
            ),
            cluster=self.cluster,
        )


def _rows(operand: str, dtype: str, rows: int, elements: int, box_rows: int) -> TensorMap:
    """A matrix, of which a copy takes 64 elements of so many rows."""
    row_bytes = 2 * elements
    return TensorMap(
        operand,
        dtype,
        shape=(elements, rows, 1, 1),
        strides_bytes=(row_bytes, row_bytes, row_bytes),
        box=(DEPTH, box_rows, 1, 1),
    )
