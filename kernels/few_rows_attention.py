"""Decode attention of few rows on sm_90a: when there is a form of its own, and its launch.

Knows sizes and dtypes, not the kernel's text (``attend_few_rows.cuh``).
"""

from __future__ import annotations

import numpy as np

from cugraphs.kernel import COUNTERS, CUDA_TYPES, DTYPES, NUM_COUNTERS, WORKSPACE, Axes, Launch

MAX_ROWS = 2
MAX_GROUP = 8  # query heads of a KV head
HEAD_DIMS = (64, 128)
PIECE_TOKENS = 16
RANKS = 16  # blocks that share a row and KV head: with 8 of these, nearly an H200's multiprocessors
WARPS = 8
RING_BYTES = 64 << 10  # of shared memory: room is left for the next kernel's blocks


def takes_few_rows(axes: Axes, dtype: str) -> bool:
    """Whether the form is for these sizes: few rows, and a piece of 16 tokens lies in one place."""
    head_dim, kv_heads = axes["head_dim"], axes["kv_heads"]
    is_whole = axes["block_size"] % PIECE_TOKENS == 0 and head_dim in HEAD_DIMS
    is_small = axes["rows"] <= MAX_ROWS and axes["rows"] * kv_heads <= NUM_COUNTERS
    fits = axes["q_size"] <= MAX_GROUP * kv_heads * head_dim
    return DTYPES[dtype].itemsize == 2 and is_whole and is_small and fits


def few_rows_launch(
    axes: Axes,
    dtype: str,
    operands: tuple[str, ...],
    scalars: tuple[np.generic, ...],
    elsewhere: tuple[Launch, ...],
) -> Launch:
    """A block for each part of each row and KV head.

    Args:
        axes: of the kernel.
        dtype: of it.
        operands: their names.
        scalars: kv_heads, group, block_size, max_blocks and the scale.
        elsewhere: what runs on other architectures.
    """
    head_dim = axes["head_dim"]
    piece_bytes = PIECE_TOKENS * head_dim * DTYPES[dtype].itemsize
    ahead = RING_BYTES // (WARPS * 2 * piece_bytes)
    return Launch(
        function=(
            f"paged_decode_attention_few_rows<{CUDA_TYPES[dtype]}, {head_dim}, {WARPS}, {ahead}>"
        ),
        grid=(RANKS, axes["kv_heads"], axes["rows"]),
        block=32 * WARPS,
        scalars=scalars,
        operands=(*operands, WORKSPACE, COUNTERS),
        shared_bytes=WARPS * ahead * 2 * (piece_bytes + 8),
        programmatic=True,
        settles=True,
        arch="sm_90a",
        elsewhere=elsewhere,
    )


def few_rows_workspace(axes: Axes) -> int:
    """Bytes of what a row's blocks find: float32 for each query head."""
    heads = axes["q_size"] // axes["head_dim"]
    return 4 * axes["rows"] * RANKS * heads * (axes["head_dim"] + 4)
