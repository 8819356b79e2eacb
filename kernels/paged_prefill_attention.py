"""Causal attention of chunks of several sequences over the paged KV cache (prefill).

Sequence ``s`` owns the rows ``query_start_loc[s]`` to ``query_start_loc[s+1]``, its last ones: row
``i`` of a chunk of ``n`` sits at position ``seq_lens[s] - n + i`` and attends to every position up
to its own: ``out = softmax(scale * q @ K.T) @ V``. K and V of the chunk are in the cache already.

Rounding: scores, softmax and sum in float32, one rounding at the store. In 16-bit dtypes the
weights too are rounded, each by half a unit of its last place, before they multiply V, which is how
tensor cores take them.
Rows that no sequence owns give zeros. Blocks after the last one that holds a token are not read,
slots after the last token do not enter the result. With ``batch_invariant`` each row is computed
alone, by the function that decode uses, so chunking does not change its bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import (
    CUDA_TYPES,
    DTYPES,
    Access,
    Array,
    Axes,
    Cost,
    Kernel,
    Launch,
    Operand,
)
from cugraphs.tensor_map import ROW_BYTES, TensorMap

from .benchmark_sizes import MODELS
from .launch_shapes import MULTIPROCESSORS, vector_width
from .paged_cases import NOISE, Heads, prefill_case
from .paged_decode_attention import (
    attend_row,
    attention_form,
    cache_units,
    check_heads,
    cut_scalars,
    gather,
    head_scalars,
    head_sets,
)
from .precision import quiet, store, widen
from .rope_append import CACHE_AXES

# Queries are tiled so that a score matrix stays near the size of a core's cache.
SCORE_TILE_BYTES = 1 << 20

# On the GPU, a block computes a tile of rows (query heads of tokens), some keys at a time.
TILE_THREADS = 128
SIMPLE_TILE_ROWS, SIMPLE_TILE_KEYS = 32, 32
RUN_KEYS = 8  # keys that a warp copies together: the least block_size for tensor cores
MMA_ROWS = 16  # of a fragment
MAX_MMA_HEAD_DIM = 256  # a row of sums more is more than the registers hold

# On sm_90a, by head_dim: warpgroups that compute 64 rows each, keys at a time, tiles of keys and of
# queries in shared memory.
WGMMA_TILES = {64: (3, 96, 3, 2), 128: (2, 128, 2, 2)}
WGMMA_MIN_TOKENS = 256  # fewer take as long on mma.sync, which has smaller tiles and more blocks
BOX_KEYS = 16  # that are copied together: keys of one block of the cache


@quiet
def reference(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    block_tables: Array,
    slot_ids: Array,
    seq_lens: Array,
    query_start_loc: Array,
    *,
    scale: float,
    batch_invariant: bool = False,
) -> tuple[Array]:
    """Attend from the last rows of each sequence to the positions up to their own.

    Args:
        q: T [tokens, q_size], q_size = heads*head_dim.
        k_cache: T [num_blocks, kv_heads, block_size, head_dim].
        v_cache: T [num_blocks, kv_heads, block_size, head_dim].
        block_tables: int32 [slots, max_blocks]; read up to the last block that holds a token.
        slot_ids: int32 [seqs]; each sequence's slot; -1 where it has no tokens.
        seq_lens: int32 [seqs]; tokens in the cache, the chunk included.
        query_start_loc: int32 [seqs+1], not decreasing; where each chunk begins, then the end.
        scale: what the scores are multiplied by, above 0, usually head_dim**-0.5.
        batch_invariant: each row has the bits that PAGED_DECODE_ATTENTION gives it.

    Returns:
        T [tokens, q_size].
    """
    wide = widen(q)
    out = np.zeros_like(wide)
    starts = query_start_loc.tolist()
    for seq, seq_len in enumerate(seq_lens.tolist()):
        start, end = starts[seq], starts[seq + 1]
        if end <= start or seq_len <= 0:
            continue
        table = block_tables[slot_ids[seq]]
        if batch_invariant:
            for row in range(start, end):
                length = seq_len - (end - row) + 1
                out[row] = attend_row(wide[row], k_cache, v_cache, table, length, scale)
        else:
            units, tokens = cache_units(table, seq_len, k_cache), slice(0, seq_len)
            keys, values = gather(k_cache, units, tokens), gather(v_cache, units, tokens)
            _attend_causal(out[start:end], wide[start:end], keys, values, scale, q.dtype)
    return (store(out, q.dtype),)


def _attend_causal(
    out: Array, q: Array, keys: Array, values: Array, scale: float, dtype: np.dtype[Any]
) -> None:
    """Write to ``out`` the attention of ``q``, the last rows of the sequence of ``keys``.

    Args:
        out: float32 or float64 [chunk, q_size], written.
        q: as ``out``.
        keys: [kv_heads, seq_len, head_dim].
        values: [kv_heads, seq_len, head_dim].
        scale: what the scores are multiplied by.
        dtype: what the weights are rounded to.
    """
    kv_heads, seq_len, head_dim = keys.shape
    chunk, q_size = q.shape
    group = q_size // (kv_heads * head_dim)
    scaled = np.multiply(q, scale, dtype=q.dtype)
    heads_first = scaled.reshape(chunk, kv_heads, group, head_dim).transpose(1, 2, 0, 3)
    tile = max(1, SCORE_TILE_BYTES // (kv_heads * group * seq_len * q.itemsize))
    for first in range(0, chunk, tile):
        last = min(first + tile, chunk)
        rows, visible = last - first, seq_len - chunk + last
        queries = heads_first[:, :, first:last].reshape(kv_heads, group * rows, head_dim)
        scores = np.matmul(queries, keys[:, :visible].transpose(0, 2, 1))
        # Only the tile's own positions can lie after a row: a square at the right edge.
        own = scores.reshape(kv_heads, group, rows, visible)[..., visible - rows :]
        np.copyto(own, -np.inf, where=~np.tri(rows, dtype=bool))
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        tile_out = np.matmul(widen(store(scores, dtype)), values[:, :visible])
        tile_out /= scores.sum(axis=-1, keepdims=True)
        out[first:last].reshape(rows, kv_heads, group, head_dim)[:] = tile_out.reshape(
            kv_heads, group, rows, head_dim
        ).transpose(2, 0, 1, 3)


def check(axes: Axes, *, scale: float, batch_invariant: bool = False) -> None:
    """Every KV head serves the same whole number of query heads, and the scale is above 0.

    Raises:
        ValueError: q_size is not a multiple of kv_heads*head_dim, or the scale is not above 0.
    """
    check_heads("paged_prefill_attention", axes)
    if not scale > 0:  # the largest score is sought before it is scaled
        raise ValueError(f"paged_prefill_attention: scale is {scale}, expected more than 0")


def cost(axes: Axes, dtype: str, *, scale: float, batch_invariant: bool = False) -> Cost:
    """Moves q, out, and each sequence's K and V once; 4 flops a query element and visible token.

    ``axes`` may hold ``"context"``, the tokens in the cache of one sequence, its chunk included;
    without it every block of the table is taken to be full. Chunks are taken to be equally long.
    """
    tokens, seqs, q_size = axes["tokens"], axes["seqs"], axes["q_size"]
    block_size = axes["block_size"]
    context = axes.get("context", axes["max_blocks"] * block_size)
    kv_elements = 2 * seqs * context * axes["kv_heads"] * axes["head_dim"]
    index_bytes = 4 * (seqs * (-(-context // block_size) + 1) + seqs + 1)
    # The rows of a chunk of n see context-n+1 to context tokens: (n-1)/2 fewer than all on average.
    hidden_from_rows = tokens * max(tokens - seqs, 0) // (2 * seqs) if seqs else 0
    return Cost(
        (2 * tokens * q_size + kv_elements) * DTYPES[dtype].itemsize + index_bytes,
        4 * q_size * (tokens * context - hidden_from_rows),
    )


def launches(
    axes: Axes, dtype: str, *, scale: float, batch_invariant: bool = False
) -> tuple[Launch, ...]:
    """One block for each KV head and tile of rows, or of one token if the batch must not matter.

    The grid has a tile more for each sequence, and for the tokens before and after all chunks; on
    tensor cores also blocks for each sequence, should its chunk be one token.
    """
    if batch_invariant:
        form, tokens = attention_form(axes, dtype), axes["tokens"]
        sizes = (np.int32(axes["seqs"]), *head_scalars(axes, scale))
        return (
            Launch(
                function=f"paged_prefill_attention_rows<{form.text}>",
                grid=(tokens, head_sets(axes, form), 1),
                block=form.threads,
                scalars=(*sizes, *cut_scalars(batch_invariant)),
                shared_bytes=form.shared_bytes,
                programmatic=True,
            ),
        )
    fits = takes_wgmma(dtype, axes["head_dim"], axes["block_size"])
    if fits and axes["tokens"] >= WGMMA_MIN_TOKENS:
        return (_wgmma(axes, dtype, scale),)
    return _everywhere(axes, dtype, scale)


def _everywhere(axes: Axes, dtype: str, scale: float) -> tuple[Launch, ...]:
    """What every architecture runs, of tiles."""
    tokens, segments = axes["tokens"], _segments(axes)
    kv_heads, head_dim, block_size = axes["kv_heads"], axes["head_dim"], axes["block_size"]
    group, cuda_type = axes["q_size"] // (kv_heads * head_dim), CUDA_TYPES[dtype]
    scalars = (np.int32(tokens), np.int32(axes["seqs"]), *head_scalars(axes, scale))
    if takes_tensor_cores(dtype, head_dim, block_size):
        form, (rows, keys) = attention_form(axes, dtype), mma_tile(head_dim)
        tiles = tokens * group // rows + segments
        tile_bytes = 2 * (rows + 2 * keys) * (head_dim + 8) + 4 * rows
        sizes = (tokens, axes["seqs"], kv_heads, group, block_size.bit_length() - 1)
        return (
            Launch(
                function=f"paged_prefill_attention<{form.text}, {rows // 64}, {keys}>",
                grid=(axes["seqs"] * head_sets(axes, form) + tiles * kv_heads, 1, 1),
                block=TILE_THREADS,
                scalars=(*(np.int32(size) for size in sizes), *scalars[-2:]),
                shared_bytes=max(tile_bytes, form.shared_bytes),
                programmatic=True,
            ),
        )
    stride = -(-head_dim // 4) * 4 + 4
    shared_floats = SIMPLE_TILE_ROWS * (2 * stride + SIMPLE_TILE_KEYS + 4)
    width = vector_width(dtype, head_dim)
    return (
        Launch(
            function=f"paged_prefill_attention_simple<{cuda_type}, {head_dim}, {width}>",
            grid=(tokens * group // SIMPLE_TILE_ROWS + segments, kv_heads, 1),
            block=TILE_THREADS,
            scalars=scalars,
            shared_bytes=4 * shared_floats,
            programmatic=True,
        ),
    )


def _segments(axes: Axes) -> int:
    """The chunks, and the tokens before and after all of them: each has a tile to itself."""
    return axes["seqs"] + 2


def _wgmma(axes: Axes, dtype: str, scale: float) -> Launch:
    """The form of sm_90a, whose blocks take several tiles each where there are many.

    Few tiles get a block each: a block that has two ends later than one that waits for its turn
    behind tiles that turn out to be left over.
    """
    tokens, kv_heads, head_dim = axes["tokens"], axes["kv_heads"], axes["head_dim"]
    block_size, group = axes["block_size"], axes["q_size"] // (kv_heads * head_dim)
    groups, keys, *stages = WGMMA_TILES[head_dim]
    form = f"{CUDA_TYPES[dtype]}, {head_dim}, {groups}, {keys}, {stages[0]}, {stages[1]}"
    rows = 64 * groups
    tiles = (tokens * group // rows + _segments(axes)) * kv_heads
    sizes = (tokens, axes["seqs"], kv_heads, group, block_size.bit_length() - 1)
    parts = head_dim // 64  # of a row, of 128 bytes
    maps = [
        TensorMap(
            name,
            dtype,
            shape=(64, 8, parts, axes["num_blocks"] * kv_heads * block_size // 8),
            strides_bytes=(2 * head_dim, ROW_BYTES, 16 * head_dim),
            box=(64, 8, parts, BOX_KEYS // 8),
        )
        for name in ("k_cache", "v_cache")
    ]
    tile_bytes = 2 * head_dim * (2 * stages[0] * keys + stages[1] * rows)
    barrier_bytes, alignment = 16 * (2 * stages[0] + stages[1]), 1024
    return Launch(
        function=f"paged_prefill_attention_wgmma<{form}>",
        grid=(tiles if tiles <= 2 * MULTIPROCESSORS else MULTIPROCESSORS, 1, 1),
        block=128 * (groups + 1),
        scalars=(
            *(np.int32(size) for size in sizes),
            *head_scalars(axes, scale)[-2:],
            np.int32(tiles),
        ),
        shared_bytes=tile_bytes + barrier_bytes + alignment,
        programmatic=True,
        arch="sm_90a",
        elsewhere=_everywhere(axes, dtype, scale),
        tensor_maps=tuple(maps),
    )


def takes_wgmma(dtype: str, head_dim: int, block_size: int) -> bool:
    """Whether sm_90a has a form of its own: blocks must be whole boxes of the copy engine."""
    whole = block_size % BOX_KEYS == 0
    return head_dim in WGMMA_TILES and whole and takes_tensor_cores(dtype, head_dim, block_size)


def takes_tensor_cores(dtype: str, head_dim: int, block_size: int) -> bool:
    """Whether the operands divide into fragments of 16, and blocks into whole runs of keys."""
    power_of_two = block_size & (block_size - 1) == 0
    whole = head_dim % MMA_ROWS == 0 and power_of_two and block_size >= RUN_KEYS
    return dtype in ("bfloat16", "float16") and whole and head_dim <= MAX_MMA_HEAD_DIM


def mma_tile(head_dim: int) -> tuple[int, int]:
    """Rows of a block's tile, and keys at a time: what registers and shared memory hold."""
    if head_dim <= 128:
        return 128, 96 if head_dim <= 64 else 64
    return 64, 32


PAGED_PREFILL_ATTENTION = Kernel(
    name="paged_prefill_attention",
    operands=(
        Operand("out", ("tokens", "q_size"), "T", Access.WRITE),
        Operand("q", ("tokens", "q_size"), "T"),
        Operand("k_cache", CACHE_AXES, "T"),
        Operand("v_cache", CACHE_AXES, "T"),
        Operand("block_tables", ("slots", "max_blocks"), "int32"),
        Operand("slot_ids", ("seqs",), "int32"),
        Operand("seq_lens", ("seqs",), "int32"),
        Operand("query_start_loc", ("seqs+1",), "int32"),
    ),
    reference=reference,
    cost=cost,
    check=check,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    is_attention=True,
    cases=(
        prefill_case("one_row", Heads(4, 2, 64), [(1, 1)]),
        prefill_case("whole_prompt", Heads(4, 2, 64), [(33, 33)]),
        prefill_case("block_edges", Heads(4, 2, 64), [(15, 15), (16, 16), (17, 17)]),
        prefill_case("several_chunks", Heads(9, 3, 64), [(17, 17), (40, 8), (16, 1), (5, 5)]),
        # A tile has 128 rows, here of 64 tokens, and takes 64 keys at a time.
        prefill_case("tile_edges", Heads(4, 2, 64), [(63, 63), (64, 64), (65, 65), (128, 65)]),
        prefill_case("key_edges", Heads(4, 2, 64), [(127, 3), (128, 64), (129, 1), (129, 2)]),
        prefill_case("heads_of_a_token_in_two_tiles", Heads(9, 3, 64), [(45, 45), (90, 44)]),
        prefill_case("chunk_from_block_edge", Heads(4, 2, 64), [(48, 16), (33, 1)]),
        prefill_case("chunk_within_block", Heads(4, 2, 64), [(50, 17), (29, 3)]),
        prefill_case("decode_rows", Heads(4, 2, 64), [(20, 1), (1, 1), (33, 1)]),
        prefill_case("mha_head_dim_128", Heads(2, 2, 128), [(20, 9), (6, 6)]),
        prefill_case("mqa", Heads(8, 1, 64), [(20, 20), (35, 3)]),
        prefill_case("head_dim_8", Heads(8, 4, 8), [(10, 10), (70, 21)]),
        prefill_case("head_dim_80", Heads(6, 2, 80), [(13, 13), (30, 4)]),
        prefill_case("head_dim_96", Heads(3, 1, 96), [(13, 13), (30, 4)]),
        prefill_case("head_dim_256", Heads(4, 2, 256), [(13, 13), (70, 4)]),
        prefill_case("other_scale", Heads(4, 2, 64), [(13, 13), (70, 4)], scale=0.3),
        prefill_case("head_dim_2", Heads(4, 2, 2), [(13, 13), (70, 4)]),
        prefill_case("group_of_9", Heads(18, 2, 16), [(23, 12), (9, 9)]),
        prefill_case("block_size_8", Heads(4, 2, 64), [(17, 17), (27, 3)], block_size=8),
        prefill_case("block_size_32", Heads(4, 2, 64), [(31, 31), (65, 33)], block_size=32),
        prefill_case("block_size_12", Heads(4, 2, 64), [(17, 17), (49, 3)], block_size=12),
        prefill_case(
            "many_sequences", Heads(2, 1, 16), [(40 + n, (7 * n) % 23) for n in range(1, 41)]
        ),
        prefill_case("empty_chunks", Heads(4, 2, 64), [(9, 0), (18, 5), (0, 0), (3, 3), (0, 0)]),
        prefill_case("dead_sequences", Heads(4, 2, 64), [(0, 1), (18, 5), (0, 3)]),
        prefill_case("padding_rows", Heads(4, 2, 64), [(18, 5), (3, 3)], padding_rows=4),
        prefill_case("rows_before", Heads(4, 2, 64), [(18, 5), (3, 3)], rows_before=19),
        prefill_case("only_padding_rows", Heads(4, 2, 64), [(0, 0)], padding_rows=3),
        prefill_case("noise_beyond", Heads(4, 2, 64), [(5, 5), (18, 7)], unread=NOISE),
        prefill_case("peaked", Heads(4, 2, 64), [(33, 33)], q_scale=20.0),
        # Later keys have far larger scores, so that what was summed becomes small.
        prefill_case("peaks_late", Heads(8, 1, 64), [(330, 20)], q_scale=100.0),
        # Some rows have scores far below 0, and below those that the mask hides.
        prefill_case("far_below_zero", Heads(4, 2, 64), [(3, 3), (1, 1), (2, 2)], q_scale=200.0),
        prefill_case("long", Heads(8, 2, 32), [(700, 200)]),
        prefill_case("many_tokens", Heads(2, 1, 64), [(190, 190), (70, 60), (3, 1)], rows_before=9),
        prefill_case("many_tokens_128", Heads(2, 1, 128), [(190, 190), (70, 60), (33, 9)]),
        prefill_case("decode_rows_in_between", Heads(8, 2, 32), [(300, 1), (70, 70), (900, 1)]),
        prefill_case(
            "batch_invariant", Heads(4, 2, 64), [(17, 17), (600, 2)], batch_invariant=True
        ),
        prefill_case(
            "batch_invariant_128", Heads(4, 1, 128), [(600, 2), (300, 1)], batch_invariant=True
        ),
        prefill_case(
            "batch_invariant_group_of_9",
            Heads(18, 2, 16),
            [(9, 0), (18, 5), (0, 0), (3, 3), (0, 0)],
            rows_before=1,
            padding_rows=2,
            batch_invariant=True,
        ),
    ),
    benchmarks=(
        prefill_case("8b_8192", MODELS["8b"].heads, [(8192, 8192)]),
        prefill_case("8b_2048", MODELS["8b"].heads, [(2048, 2048)]),
        prefill_case("8b_2048_of_8192", MODELS["8b"].heads, [(8192, 2048)]),
        prefill_case("8b_16x512", MODELS["8b"].heads, [(512, 512)] * 16),
    ),
)
