"""Attention of one new token per sequence over the paged KV cache (decode).

``out[r, h] = softmax(scale * q[r, h] @ K.T) @ V``, K and V the first ``seq_lens[r]`` tokens of the
sequence ``row_ids[r]``, of the KV head that head ``h`` shares (``h // (heads/kv_heads)``).

Rounding: scores, softmax and sum in float32, one rounding at the store. A dead row (length 0) gives
zeros. Blocks after the last one that holds a token are not read, slots after the last token do not
enter the result: they may hold NaN. On the GPU several blocks take a long row, cut as
``ATTENTION_PARTS`` says for all layers of a step, or, with ``batch_invariant``, by the row's own
length alone; then its bits do not depend on the rows beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cugraphs.kernel import (
    CUDA_TYPES,
    DTYPES,
    WORKSPACE,
    Access,
    Array,
    Axes,
    Cost,
    Kernel,
    Launch,
    Operand,
)

from .attention_parts import BLOCKS, most_cut_parts, most_parts
from .benchmark_sizes import MODELS
from .few_rows_attention import few_rows_launch, few_rows_workspace, takes_few_rows
from .launch_shapes import MULTIPROCESSORS, vector_width
from .paged_cases import NOISE, Heads, decode_case
from .precision import quiet, store, widen
from .rope_append import CACHE_AXES

# A long sequence is gathered and used this many blocks at a time, so that the copy stays in a
# core's cache: 3 to 4 times as fast as one copy of 8,000 tokens.
CHUNK_BLOCKS = 32

# Up to this many query heads per KV head, one matrix-vector product a head beats a thin matrix
# product in OpenBLAS (which also stalls all its threads when another process has their cores).
MATVEC_MAX_GROUP = 8

# On the GPU: query heads that one block computes for one read of K and V.
MAX_HEADS_OF_TILES = 16  # the rows of a matrix fragment; half of them for large heads
MAX_HEADS_OF_VECTORS = 8  # bounded by registers
MAX_HEAD_DIM_OF_TILES = 256  # bounded by registers, as is what counts as a large head
LARGE_HEAD_DIM = 128
RING_BYTES = 74 << 10  # shared memory of a block: less than what every card gives it
TILE_TOKENS = 16

# Batch invariant, a row is cut by its own length: into so many parts, unless they were too small.
PARTS_OF_ROW = 32
MIN_UNITS_OF_PART = 4

# On sm_90a: pieces of 16 tokens, each copied as a whole. 16 warps fit on a multiprocessor.
MAX_WARPS = 16
PIECE_HEAD_DIMS = (64, 128)
PIECE_WARPS = ((8, 1023), (4, 1 << 30))  # of a block, up to how many rows times KV heads
PLACES = 3  # of a warp's ring
PAIR_BYTES = 76 << 10  # shared memory of a block, of which a multiprocessor has room for two


@quiet
def reference(
    arrivals: Array,
    q: Array,
    k_cache: Array,
    v_cache: Array,
    block_tables: Array,
    row_ids: Array,
    seq_lens: Array,
    parts: Array,
    *,
    scale: float,
    batch_invariant: bool = False,
) -> tuple[Array]:
    """Attend from one query a row to the row's whole sequence.

    Args:
        arrivals: int32 [rows, heads]; all 0, and so they are again afterwards.
        q: T [rows, q_size], q_size = heads*head_dim.
        k_cache: T [num_blocks, kv_heads, block_size, head_dim].
        v_cache: T [num_blocks, kv_heads, block_size, head_dim].
        block_tables: int32 [slots, max_blocks]; read up to the last block that holds a token.
        row_ids: int32 [rows]; the slot of the row's sequence; -1 in dead rows.
        seq_lens: int32 [rows]; tokens in the cache, the current one included; 0 in dead rows.
        parts: int32 [rows+256, 8]; of these rows, from ATTENTION_PARTS; a row at a time needs none.
        scale: what the scores are multiplied by, usually head_dim**-0.5.
        batch_invariant: changes nothing here: NumPy computes each row alone anyway.

    Returns:
        T [rows, q_size].
    """
    wide = widen(q)
    out = np.zeros_like(wide)
    for row, seq_len in enumerate(seq_lens.tolist()):
        if seq_len > 0:
            table = block_tables[row_ids[row]]
            out[row] = attend_row(wide[row], k_cache, v_cache, table, seq_len, scale)
    return (store(out, q.dtype),)


def attend_row(
    q: Array, k_cache: Array, v_cache: Array, block_table: Array, length: int, scale: float
) -> Array:
    """Attention of one query token to the first ``length`` tokens of its sequence.

    Args:
        q: float32 or float64 [q_size].
        k_cache: T [num_blocks, kv_heads, block_size, head_dim].
        v_cache: T [num_blocks, kv_heads, block_size, head_dim].
        block_table: int32 [max_blocks].
        length: tokens, at least 1.
        scale: what the scores are multiplied by.

    Returns:
        As ``q`` [q_size], not rounded.
    """
    _, kv_heads, block_size, head_dim = k_cache.shape
    group = len(q) // (kv_heads * head_dim)
    # [kv_heads, matrices, rows, head_dim]: the query heads of a KV head as one matrix or as many.
    stack = (group, 1) if group <= MATVEC_MAX_GROUP else (1, group)
    queries = np.multiply(q, scale, dtype=q.dtype).reshape(kv_heads, *stack, head_dim)
    scores = np.empty((kv_heads, *stack, length), q.dtype)
    units = cache_units(block_table, length, k_cache)
    step = CHUNK_BLOCKS * block_size
    chunks = [slice(first, min(first + step, length)) for first in range(0, length, step)]
    for chunk in chunks:
        keys = gather(k_cache, units, chunk)[:, None]
        np.matmul(queries, keys.swapaxes(2, 3), out=scores[..., chunk])
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    out: Array = np.zeros_like(queries)
    for chunk in chunks:
        out += np.matmul(scores[..., chunk], gather(v_cache, units, chunk)[:, None])
    out /= scores.sum(axis=-1, keepdims=True)
    return out.reshape(-1)


def cache_units(block_table: Array, length: int, cache: Array) -> Array:
    """Where the first ``length`` tokens of a sequence are, in units of one block of one KV head.

    Args:
        block_table: int32 [max_blocks].
        length: tokens.
        cache: T [num_blocks, kv_heads, block_size, head_dim]; only its shape matters.

    Returns:
        int64 [kv_heads, blocks that hold a token]; unit = block*kv_heads + kv_head.
    """
    _, kv_heads, block_size, _ = cache.shape
    blocks = block_table[: -(-length // block_size)]
    units: Array = blocks * kv_heads + np.arange(kv_heads)[:, None]
    return units


def gather(cache: Array, units: Array, tokens: slice) -> Array:
    """Copy tokens of a sequence out of the cache, heads first, so that each head is one matrix.

    Args:
        cache: T [num_blocks, kv_heads, block_size, head_dim].
        units: from :func:`cache_units`.
        tokens: which; they start at a multiple of block_size.

    Returns:
        float32 or float64 [kv_heads, tokens, head_dim].
    """
    num_blocks, kv_heads, block_size, head_dim = cache.shape
    chosen = units[:, tokens.start // block_size : -(-tokens.stop // block_size)]
    flat = cache.reshape(num_blocks * kv_heads, block_size * head_dim)
    taken = flat.take(chosen, axis=0).reshape(kv_heads, -1, head_dim)
    return widen(taken[:, : tokens.stop - tokens.start])


def check(axes: Axes, *, scale: float, batch_invariant: bool = False) -> None:
    """Every KV head serves the same whole number of query heads, and each of these has a count.

    Raises:
        ValueError: q_size is not a multiple of kv_heads*head_dim, or arrivals are of other heads.
    """
    check_heads("paged_decode_attention", axes)
    heads = axes["q_size"] // axes["head_dim"]
    if axes["heads"] != heads:
        raise ValueError(
            f"paged_decode_attention: axis 'heads' is {axes['heads']} in arrivals, expected "
            f"q_size/head_dim = {heads}"
        )


def check_heads(name: str, axes: Axes) -> None:
    """Refuse a q_size that is not the same number of whole heads for every KV head.

    Raises:
        ValueError: q_size is not a multiple of kv_heads*head_dim.
    """
    q_size, kv_heads, head_dim = axes["q_size"], axes["kv_heads"], axes["head_dim"]
    if q_size % (kv_heads * head_dim):
        raise ValueError(
            f"{name}: axis 'q_size' is {q_size} in q, expected a multiple of kv_heads*head_dim = "
            f"{kv_heads}*{head_dim}: whole heads, and the same number for each KV head"
        )


def cost(axes: Axes, dtype: str, *, scale: float, batch_invariant: bool = False) -> Cost:
    """Moves q, out, and each sequence's K and V once; 4 flops a query element and token.

    ``axes`` may hold ``"context"``, the tokens in the cache of one sequence; without it every block
    of the table is taken to be full.
    """
    rows, q_size, block_size = axes["rows"], axes["q_size"], axes["block_size"]
    context = axes.get("context", axes["max_blocks"] * block_size)
    kv_elements = 2 * rows * context * axes["kv_heads"] * axes["head_dim"]
    index_bytes = 4 * rows * (-(-context // block_size) + 2)
    return Cost(
        (2 * rows * q_size + kv_elements) * DTYPES[dtype].itemsize + index_bytes,
        4 * rows * q_size * context,
    )


@dataclass(frozen=True)
class Form:
    """How a block of the CUDA kernels attends from the query heads of a KV head to some tokens.

    Args:
        text: the C++ type.
        threads: of the block.
        heads: query heads that it computes at a time.
        shared_bytes: dynamic shared memory of the block.
    """

    text: str
    threads: int
    heads: int
    shared_bytes: int = 0


def attention_form(axes: Axes, dtype: str) -> Form:
    """Tensor cores where dtype and head_dim allow it; float32 arithmetic elsewhere."""
    head_dim = axes["head_dim"]
    group = axes["q_size"] // (axes["kv_heads"] * head_dim)
    itemsize = DTYPES[dtype].itemsize
    if itemsize == 2 and head_dim % 16 == 0 and head_dim <= MAX_HEAD_DIM_OF_TILES:
        half = MAX_HEADS_OF_TILES // 2
        heads = half if group <= half or head_dim > LARGE_HEAD_DIM else MAX_HEADS_OF_TILES
        stage_bytes = 4 * 2 * TILE_TOKENS * (head_dim + 8) * itemsize  # 4 warps, K and V
        stages = min(4, max(1, RING_BYTES // stage_bytes))
        text = f"Tiles<{CUDA_TYPES[dtype]}, {head_dim}, {heads}, {stages}>"
        return Form(text, 128, heads, stages * stage_bytes)
    heads = -(-group // -(-group // MAX_HEADS_OF_VECTORS))
    tokens = 4 if heads <= MAX_HEADS_OF_VECTORS // 2 else 2  # loads in flight, for registers
    width = vector_width(dtype, head_dim)
    return Form(f"Vectors<{CUDA_TYPES[dtype]}, {head_dim}, {heads}, {width}, {tokens}>", 256, heads)


def head_sets(axes: Axes, form: Form) -> int:
    """Sets of query heads that share a read of K and V: one or more for each KV head."""
    group = axes["q_size"] // (axes["kv_heads"] * axes["head_dim"])
    return axes["kv_heads"] * -(-group // form.heads)


def head_scalars(axes: Axes, scale: float) -> tuple[np.generic, ...]:
    """kv_heads, group, block_size, max_blocks, and the scale of scores in base 2."""
    group = axes["q_size"] // (axes["kv_heads"] * axes["head_dim"])
    sizes = (axes["kv_heads"], group, axes["block_size"], axes["max_blocks"])
    return (*(np.int32(size) for size in sizes), np.float32(scale * math.log2(math.e)))


def cut_scalars(batch_invariant: bool) -> tuple[np.generic, ...]:
    """max_parts and min_units, which say how rows are cut by their own length."""
    if batch_invariant:
        return np.int32(PARTS_OF_ROW), np.int32(MIN_UNITS_OF_PART)
    return np.int32(0), np.int32(1)


def takes_pieces(axes: Axes) -> bool:
    """Whether sm_90a has a form of its own for 16-bit dtypes: a tile's tokens lie in one piece."""
    head_dim = axes["head_dim"]
    group = axes["q_size"] // (axes["kv_heads"] * head_dim)
    is_whole = axes["block_size"] % TILE_TOKENS == 0 and head_dim in PIECE_HEAD_DIMS
    return is_whole and group <= 8


def form_of_pieces(axes: Axes, dtype: str, *, appends: bool = False) -> Form:
    """Smaller blocks where there are more.

    Args:
        axes: of the kernel.
        dtype: of it.
        appends: the launch appends the last tokens too. Where no more blocks than multiprocessors
            are wanted, each has one for itself.
    """
    head_dim, rows = axes["head_dim"], axes["rows"] * axes["kv_heads"]
    warps = next(warps for warps, most in PIECE_WARPS if rows <= most)
    blocks, places = MAX_WARPS // warps, PLACES
    least_bytes = PAIR_BYTES if blocks == 2 and not appends else 0  # registers would let three in
    if appends and rows <= MULTIPROCESSORS:
        blocks = 1
    elif appends and rows <= 2 * MULTIPROCESSORS:  # all begin at once, and qkv comes behind copies
        places = 2
    numbers = (head_dim, warps, places, blocks, *(("true",) if appends else ()))
    text = f"Pieces<{CUDA_TYPES[dtype]}, {', '.join(map(str, numbers))}>"
    shared_bytes = warps * places * (TILE_TOKENS * head_dim * 2 + 8)
    return Form(text, 32 * warps, 8, max(shared_bytes, least_bytes))


def launches(
    axes: Axes, dtype: str, *, scale: float, batch_invariant: bool = False
) -> tuple[Launch, ...]:
    """A block for each part and set of heads; batch invariant several, for a row's parts."""
    form = attention_form(axes, dtype)
    anywhere = _launch(axes, dtype, scale, batch_invariant, form)
    if takes_few_rows(axes, dtype) and not batch_invariant:
        return (few_rows_launch(axes, dtype, head_scalars(axes, scale), elsewhere=(anywhere,)),)
    if DTYPES[dtype].itemsize != 2 or batch_invariant or not takes_pieces(axes):
        return (anywhere,)
    form = form_of_pieces(axes, dtype)
    on_sm90 = replace(
        anywhere,
        function=f"paged_decode_attention_pieces<{form.text}>",
        block=form.threads,
        scalars=anywhere.scalars[: -len(cut_scalars(batch_invariant))],
        shared_bytes=form.shared_bytes,
    )
    return (replace(on_sm90, arch="sm_90a", elsewhere=(anywhere,)),)


def _launch(axes: Axes, dtype: str, scale: float, batch_invariant: bool, form: Form) -> Launch:
    rows, sets = axes["rows"], head_sets(axes, form)
    parts = most_parts(rows, axes["kv_heads"], batch_invariant)
    share_a_row = min(PARTS_OF_ROW, -(-BLOCKS // (rows * sets))) if batch_invariant else 1
    operands = ("out", "arrivals", "q", "k_cache", "v_cache", "block_tables", "parts", WORKSPACE)
    return Launch(
        function=f"paged_decode_attention<{form.text}, {str(batch_invariant).lower()}>",
        grid=(parts * sets, share_a_row, 1),
        block=form.threads,
        scalars=(np.int32(rows), *head_scalars(axes, scale), *cut_scalars(batch_invariant)),
        operands=operands,
        shared_bytes=form.shared_bytes,
        programmatic=True,
    )


def workspace(axes: Axes, dtype: str, *, scale: float, batch_invariant: bool = False) -> int:
    """float32 results of the parts of cut rows: for each head, its sums, and two numbers more."""
    rows, kv_heads = axes["rows"], axes["kv_heads"]
    parts = rows * PARTS_OF_ROW if batch_invariant else most_cut_parts(rows, kv_heads)
    group = axes["q_size"] // (kv_heads * axes["head_dim"])
    form = attention_form(axes, dtype)
    of_part = head_sets(axes, form) * min(form.heads, group) * (axes["head_dim"] + 2)
    of_few_rows = few_rows_workspace(axes) if takes_few_rows(axes, dtype) else 0
    return max(4 * parts * of_part, of_few_rows)


PAGED_DECODE_ATTENTION = Kernel(
    name="paged_decode_attention",
    operands=(
        Operand("out", ("rows", "q_size"), "T", Access.WRITE),
        Operand("arrivals", ("rows", "heads"), "int32", Access.UPDATE),
        Operand("q", ("rows", "q_size"), "T"),
        Operand("k_cache", CACHE_AXES, "T", settled=True),
        Operand("v_cache", CACHE_AXES, "T", settled=True),
        Operand("block_tables", ("slots", "max_blocks"), "int32", settled=True),
        Operand("row_ids", ("rows",), "int32", settled=True),
        Operand("seq_lens", ("rows",), "int32", settled=True),
        Operand("parts", (f"rows+{BLOCKS}", "part_words"), "int32", settled=True),
    ),
    reference=reference,
    cost=cost,
    check=check,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    is_attention=True,
    workspace=workspace,
    cases=(
        decode_case("one_row", Heads(4, 2, 64), [37]),
        decode_case("one_token", Heads(4, 2, 64), [1]),
        decode_case("block_edges", Heads(4, 2, 64), [1, 15, 16, 17, 31, 32, 33]),
        decode_case("smollm2", Heads(9, 3, 64), [40, 7, 100, 64]),
        decode_case("mha_head_dim_128", Heads(2, 2, 128), [5, 40]),
        decode_case("mqa", Heads(8, 1, 64), [20, 3, 11]),
        decode_case("mqa_16_heads", Heads(16, 1, 32), [50, 1]),
        decode_case("head_dim_8", Heads(8, 4, 8), [1, 10, 101]),
        decode_case("head_dim_80", Heads(6, 2, 80), [13, 30]),
        decode_case("head_dim_96", Heads(3, 1, 96), [13, 30]),
        decode_case("head_dim_256", Heads(4, 2, 256), [13, 150]),
        # In float32, two loads for a lane, and the second not for all lanes.
        decode_case("head_dim_160", Heads(2, 1, 160), [13, 30]),
        decode_case("other_scale", Heads(4, 2, 64), [13, 30], scale=0.3),
        decode_case("head_dim_2", Heads(4, 2, 2), [13, 30]),
        decode_case("group_of_4", Heads(8, 2, 128), [200, 33]),
        # More query heads to a KV head than one block computes, and not twice as many.
        decode_case("group_of_9", Heads(18, 2, 16), [20, 3]),
        decode_case("block_size_8", Heads(4, 2, 64), [17, 8, 3], block_size=8),
        decode_case("dead_rows", Heads(4, 2, 64), [0, 9, 0, 33, 0]),
        decode_case("only_dead_rows", Heads(4, 2, 64), [0, 0]),
        decode_case("noise_beyond", Heads(4, 2, 64), [5, 0, 18], unread=NOISE),
        decode_case("peaked", Heads(4, 2, 64), [33, 80], q_scale=20.0),
        # Some rows have scores far below 0 only: a maximum that begins at 0 would leave no weight.
        decode_case("far_below_zero", Heads(4, 2, 64), [1, 1, 2, 1, 3], q_scale=200.0),
        decode_case("long", Heads(3, 1, 64), [1300, 513, 512]),
        decode_case("long_head_dim_8", Heads(4, 2, 8), [1500, 1024, 1025, 256]),
        decode_case("longest", Heads(2, 1, 16), [131_072]),
        # Few rows: more pieces to a warp than it has lanes, if warps are few; unequal rows.
        decode_case("one_long_row", Heads(2, 1, 64), [4200]),
        decode_case("two_rows_128", Heads(8, 2, 128), [2100, 1]),
        decode_case("four_rows_128", Heads(8, 2, 128), [40, 0, 700, 16]),
        decode_case("four_rows_64", Heads(3, 1, 64), [65, 300, 1, 17]),
        decode_case("dead_row_128", Heads(4, 1, 128), [0, 333], unread=NOISE),
        decode_case("two_rows_block_size_64", Heads(4, 2, 128), [200, 70], block_size=64),
        decode_case("block_size_40", Heads(4, 2, 16), [17, 40, 121], block_size=40),
        decode_case("block_size_1", Heads(4, 2, 16), [17, 200], block_size=1),
        # Parts are whole units of 64 tokens, and a block's share is two or more.
        decode_case("part_edges", Heads(2, 1, 16), [127, 128, 129, 255, 256, 257, 384, 385]),
        decode_case("unequal", Heads(8, 2, 32), [1, 2100, 0, 17, 130, 600]),
        decode_case("shared_blocks", Heads(4, 2, 32), [100, 49, 300, 80], shared_blocks=2),
        decode_case("group_of_24", Heads(24, 1, 16), [50, 300]),
        decode_case("cut_finely", Heads(2, 1, 64), [20_000, 3, 0, 200]),
        decode_case("ten_rows", Heads(8, 2, 128), [200, 33, 0, 1, 16, 17, 700, 64, 5, 129]),
        decode_case("ten_rows_noise", Heads(16, 2, 128), [20, 0, 300] + 7 * [35], unread=NOISE),
        decode_case("ten_rows_of_block_size_32", Heads(2, 2, 128), 10 * [47], block_size=32),
        # More rows than a warp has lanes, some of them cut, and more work than blocks.
        decode_case(
            "many_rows",
            Heads(4, 2, 16),
            [500 if row % 70 == 69 else (7 * row) % 40 for row in range(300)],
        ),
        # So many KV heads that parts are long: every warp's ring is filled several times.
        decode_case("long_parts", Heads(128, 128, 16), [900, 5, 600]),
        decode_case("batch_invariant", Heads(4, 2, 64), [17, 0, 600], batch_invariant=True),
        decode_case("batch_invariant_128", Heads(4, 1, 128), [1030, 257], batch_invariant=True),
        # Scores fall by hundreds within a part: relative to later ones alone, sums would overflow.
        decode_case(
            "falling_scores", Heads(4, 2, 64), [400, 150], q_scale=100.0, batch_invariant=True
        ),
        decode_case("batch_invariant_many", Heads(4, 2, 16), [1160] * 40, batch_invariant=True),
        decode_case("batch_invariant_long", Heads(2, 1, 16), [10_000, 300], batch_invariant=True),
    ),
    benchmarks=(
        decode_case("8b_1x8192", MODELS["8b"].heads, [8192]),
        decode_case("8b_16x8192", MODELS["8b"].heads, [8192] * 16),
        decode_case("8b_64x1024", MODELS["8b"].heads, [1024] * 64),
    ),
)
