"""How ``held_rows.cuh`` shares a weight among blocks, for 3 to 8 rows of 16-bit types on sm_90a.

Knows sizes and dtypes, not the kernels' text. The choices are the best of those tried on an H200,
over the shapes of Llama's 1B and 8B.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cugraphs.kernel import CUDA_TYPES, Launch

from .launch_shapes import MULTIPROCESSORS
from .stream_linear import STREAM_DTYPES

MIN_ROWS = 3  # fewer are streamed through registers
MAX_ROWS = 8
_THREADS = 256
_WARP_STEP = 256  # elements of k that a block's warps multiply in a step
_MAX_STEPS = 8  # in a stage
_MAX_DEPTHS = 2  # stages of a unit, all of whose x is in registers
MAX_PARTS = 8  # of in_features, where another launch adds their sums
_COLUMNS = 8  # of a unit
_PITCH = 64  # bytes between rows in a stage
_STAGES = 6
_LARGE = 4096  # rows and columns of a weight from which it is faster than streaming
_BARRIER_BYTES = 8  # of a stage
_LEAST_BYTES = 116 << 10  # of shared memory, so that no two blocks lie on one multiprocessor


@dataclass(frozen=True)
class HeldShape:
    """One launch.

    Args:
        steps: of a stage.
        depths: stages of a unit.
        parts: of in_features, each with blocks of its own.
        stages: in the ring.
        blocks: of a part.
    """

    steps: int
    depths: int
    parts: int
    stages: int
    blocks: int

    def function(self, name: str, dtype: str) -> str:
        """The C++ name of a kernel of this shape."""
        element = CUDA_TYPES[dtype]
        numbers = (self.steps, self.depths, self.stages)
        return f"{name}<{element}, HeldRows<{', '.join([element, *map(str, numbers)])}>>"

    def launch(self, name: str, dtype: str, elsewhere: Launch) -> Launch:
        """A kernel of this shape, in place of one with the same operands and scalars."""
        return replace(
            elsewhere,
            function=self.function(name, dtype),
            grid=(self.blocks, self.parts, 1),
            block=_THREADS,
            shared_bytes=max(
                self.stages * (_stage_bytes(self.steps) + _BARRIER_BYTES), _LEAST_BYTES
            ),
            arch="sm_90a",
            elsewhere=(elsewhere,),
        )


def held_shape(
    tokens: int, in_features: int, columns: int, dtype: str, *, max_parts: int = 1
) -> HeldShape | None:
    """The launch for these sizes, or None where there is none.

    Args:
        tokens: rows of x.
        in_features: of the weight.
        columns: rows of the weight.
        dtype: of both.
        max_parts: into which in_features may be cut.
    """
    if dtype not in STREAM_DTYPES or not MIN_ROWS <= tokens <= MAX_ROWS:
        return None
    if min(in_features, columns) < _LARGE:
        return None
    for parts in range(1, max_parts + 1):
        for depths in range(1, _MAX_DEPTHS + 1):
            steps, rest = divmod(in_features, parts * depths * _WARP_STEP)
            if rest == 0 and 1 <= steps <= _MAX_STEPS:
                units = -(-columns // _COLUMNS)
                return HeldShape(
                    steps=steps,
                    depths=depths,
                    parts=parts,
                    stages=_STAGES,
                    blocks=min(MULTIPROCESSORS // parts, units),
                )
    return None


def _stage_bytes(steps: int) -> int:
    return _COLUMNS * (2 * steps * _WARP_STEP + _PITCH)
