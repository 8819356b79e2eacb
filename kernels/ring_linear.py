"""How ``ring_linear.cuh`` shares a weight among warps, for one or two rows, on sm_90a.

Knows sizes and dtypes, not the kernels' text. Blocks are of two kinds, by their shared memory, and
kernels take turns: beside a large block exactly one small one fits, and two large ones never do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cugraphs.kernel import CUDA_TYPES, Launch

from .stream_linear import normalised_bytes, stream_shape

RING_ARCH = "sm_90a"
RING_ROWS = 2
WARPS = 8
MAX_PIECE = 2048  # elements of the weight that are copied at a time
LEAST_STAGES, MAX_STAGES = 3, 6  # pieces of a warp's ring

# A multiprocessor has 228 KB, of which each block takes 1 KB more than it asks for.
LARGE_BYTES = 114 << 10
SMALL_BYTES = 110 << 10  # 1 KB is left for barriers and the sums of squares, in either kind
BLOCKS = 132  # one for each multiprocessor of an H200
_STEP = 256  # elements of a warp's load
_BYTES = 2  # of an element
_BARRIER_BYTES = 8  # of a piece


@dataclass(frozen=True)
class RingShape:
    """One launch.

    Args:
        groups: rows of the weight in a unit.
        piece: elements of the weight that are copied at a time.
        stages: pieces of a warp's ring.
        normalised: the block makes the rows of x itself.
        shared_bytes: dynamic shared memory of a block.
    """

    groups: int
    piece: int
    stages: int
    normalised: bool
    shared_bytes: int

    def function(self, name: str, dtype: str) -> str:
        """The C++ name of a kernel of this shape."""
        numbers = f"{WARPS}, {self.groups}, {self.piece}, {self.stages}"
        shared = str(self.normalised).lower()
        return f"{name}<RingLinear<{CUDA_TYPES[dtype]}, {numbers}, {shared}>>"


def ring_shape(tokens: int, in_features: int, *, pairs: bool, normalised: bool) -> RingShape | None:
    """The launch for these sizes; None where there is none.

    Args:
        tokens: rows of x.
        in_features: of the weight.
        pairs: two rows of the weight give a result.
        normalised: the block normalises the rows; such a block is small, others are large.
    """
    if tokens > RING_ROWS or in_features % _STEP:
        return None
    room = SMALL_BYTES if normalised else LARGE_BYTES
    ring = room - tokens * in_features * _BYTES
    for piece in range(MAX_PIECE, 0, -_STEP):
        stages = ring // (WARPS * (piece * _BYTES + _BARRIER_BYTES))
        if in_features % piece == 0 and stages >= LEAST_STAGES:
            return RingShape(1 + pairs, piece, min(stages, MAX_STAGES), normalised, room)
    return None


def few_row_launch(
    name: str,
    dtype: str,
    sizes: tuple[int, int, int],
    scalars: tuple[np.generic, ...],
    *,
    pairs: bool,
    normalised: bool,
) -> Launch:
    """What a kernel of few rows launches: StreamLinear, and on sm_90a RingLinear where it fits.

    Args:
        name: of the function.
        dtype: of the operands.
        sizes: tokens, in_features and rows of the weight.
        scalars: of the function.
        pairs: two rows of the weight give a result.
        normalised: the block normalises the rows.
    """
    tokens, in_features, _ = sizes
    shape = stream_shape(*sizes)
    streamed = Launch(
        function=f"{name}<{shape.product(dtype, normalised)}>",
        grid=(shape.blocks, 1, 1),
        block=shape.threads,
        scalars=scalars,
        shared_bytes=normalised_bytes(tokens, in_features) if normalised else 0,
        programmatic=True,
    )
    ring = ring_shape(tokens, in_features, pairs=pairs, normalised=normalised)
    if ring is None:
        return streamed
    return Launch(
        function=ring.function(name, dtype),
        grid=(BLOCKS, 1, 1),
        block=32 * WARPS,
        scalars=scalars,
        shared_bytes=ring.shared_bytes,
        programmatic=True,
        beside=True,
        arch=RING_ARCH,
        elsewhere=(streamed,),
    )
