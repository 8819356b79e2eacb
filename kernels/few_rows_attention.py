"""Decode attention of few rows on sm_90a: when there is a form of its own, and its launch.

Knows sizes and dtypes, not the kernel's text (``attend_few_rows.cuh``).
"""

from __future__ import annotations

import numpy as np

from cugraphs.kernel import CUDA_TYPES, DTYPES, WORKSPACE, Axes, Launch

OPERANDS = (
    *("out", "q", "k_cache", "v_cache", "block_tables", "row_ids", "seq_lens"),
    *(WORKSPACE, "arrivals"),
)
MAX_ROWS = 4
MAX_GROUP = 8  # query heads of a KV head
PIECE_TOKENS = 16
WARPS, WARPS_IN_CLUSTER = 8, 4
RING_BYTES = 64 << 10  # of a block
LARGE_RING_ROWS = {64: 0, 128: 2}  # up to which a ring is twice as large, by head_dim

# Whether a row's blocks are a cluster, which folds sooner, but does not lie evenly on the
# multiprocessors: by head_dim, the most rows for which they are. It counts for long and many rows.
CLUSTERED_ROWS = {64: 1, 128: 0}
CLUSTER = 8  # blocks
BLOCKS = 128  # otherwise, of a launch, at most: one for nearly each multiprocessor of an H200
LONE_BYTES = 115 << 10  # shared memory of which no multiprocessor has room for two


def takes_few_rows(axes: Axes, dtype: str) -> bool:
    """Whether the form is for these sizes: few rows, and a piece of 16 tokens lies in one place."""
    head_dim, kv_heads = axes["head_dim"], axes["kv_heads"]
    pieces, rest = divmod(axes["block_size"], PIECE_TOKENS)  # of a block of the cache
    is_whole = rest == 0 and pieces.bit_count() == 1 and head_dim in CLUSTERED_ROWS
    fits = axes["rows"] <= MAX_ROWS and axes["q_size"] <= MAX_GROUP * kv_heads * head_dim
    return DTYPES[dtype].itemsize == 2 and is_whole and fits


def few_rows_launch(
    axes: Axes,
    dtype: str,
    scalars: tuple[np.generic, ...],
    elsewhere: tuple[Launch, ...],
) -> Launch:
    """A block for each part of each row and KV head.

    Args:
        axes: of the kernel.
        dtype: of it.
        scalars: kv_heads, group, block_size, max_blocks and the scale.
        elsewhere: what runs on other architectures.
    """
    head_dim, clusters = axes["head_dim"], _in_clusters(axes)
    piece_bytes = PIECE_TOKENS * head_dim * DTYPES[dtype].itemsize
    warps = WARPS_IN_CLUSTER if clusters else WARPS
    ring_bytes = 2 * RING_BYTES if axes["rows"] <= LARGE_RING_ROWS[head_dim] else RING_BYTES
    ahead = ring_bytes // (warps * 2 * piece_bytes)
    blocks = _blocks_of_row(axes)
    cluster = blocks if clusters else 1
    numbers = (head_dim, warps, ahead, cluster)
    kv_heads, group, _, *others = scalars
    block_shift = np.int32((axes["block_size"] // PIECE_TOKENS).bit_length() - 1)
    return Launch(
        function=(
            f"paged_decode_attention_few_rows<{CUDA_TYPES[dtype]}, {', '.join(map(str, numbers))}>"
        ),
        grid=(blocks, axes["kv_heads"], axes["rows"]),
        block=32 * warps,
        scalars=(kv_heads, group, block_shift, *others),
        operands=OPERANDS,
        shared_bytes=max(LONE_BYTES, warps * ahead * 2 * (piece_bytes + 8)),
        programmatic=True,
        settles=True,
        arch="sm_90a",
        elsewhere=elsewhere,
        cluster=cluster,
    )


def few_rows_workspace(axes: Axes) -> int:
    """Bytes of what a row's blocks find: float32 for each query head."""
    blocks, heads = _blocks_of_row(axes), axes["q_size"] // axes["head_dim"]
    return 0 if blocks == 1 else 4 * axes["rows"] * blocks * heads * (axes["head_dim"] + 4)


def _blocks_of_row(axes: Axes) -> int:
    """Blocks that share a row and KV head."""
    if _in_clusters(axes):
        return CLUSTER
    return max(1, BLOCKS // (axes["rows"] * axes["kv_heads"]))


def _in_clusters(axes: Axes) -> bool:
    return axes["rows"] <= CLUSTERED_ROWS[axes["head_dim"]]
