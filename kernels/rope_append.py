"""Rotary embedding of q and k, and append of k and v to the paged cache.

With ``c, s`` the cosines and sines of a token's position and a head split into halves ``(a, b)``:
``(a, b) -> (a*c - b*s, b*c + a*s)`` (Hugging Face's layout). ``slot = block*block_size + offset``.

Rounding: rotated in float32, rounded once at the store; v is copied. A dead row (slot -1) writes
nothing to the caches, its q is zero, and its position and qkv may hold anything.

Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import (
    CUDA_TYPES,
    DTYPES,
    Access,
    Array,
    Axes,
    Case,
    Cost,
    Kernel,
    Launch,
    Operand,
)

from .benchmark_sizes import rowwise_sizes
from .case_arrays import int32, normal
from .launch_shapes import LOADS_OF_THREAD, vector_width
from .paged_cases import BLOCK_SIZE, Heads, scattered_blocks, slots_of
from .precision import quiet, store, widen

MAX_THREADS = 256  # of a block on the GPU


@quiet
def reference(
    k_cache: Array,
    v_cache: Array,
    qkv: Array,
    cos_sin: Array,
    positions: Array,
    slot_mapping: Array,
    *,
    q_size: int,
) -> tuple[Array]:
    """Rotate q and k by their positions; store k and v in their slots.

    Args:
        k_cache: T [num_blocks, kv_heads, block_size, head_dim], modified.
        v_cache: T [num_blocks, kv_heads, block_size, head_dim], modified.
        qkv: T [tokens, q_size + 2*kv_heads*head_dim].
        cos_sin: float32 [max_position, head_dim]; a row is the cosines, then the sines, of the
            head_dim/2 frequencies, times the attention scaling where a model has one.
        positions: int32 [tokens].
        slot_mapping: int32 [tokens]; -1 in dead rows.
        q_size: columns of q, heads*head_dim.

    Returns:
        q, T [tokens, q_size].
    """
    _, kv_heads, block_size, head_dim = k_cache.shape
    tokens, half = len(qkv), head_dim // 2
    kv_size = kv_heads * head_dim
    rotated_heads = (q_size + kv_size) // head_dim
    live = slot_mapping >= 0
    all_live = live.all()
    if not all_live:
        positions = np.where(live, positions, 0)

    # q and k rotate alike, so both at once, as pairs of halves [tokens, heads, 2, head_dim/2].
    pairs = widen(qkv[:, : q_size + kv_size]).reshape(tokens, rotated_heads, 2, half)
    angles = cos_sin.take(positions, axis=0).reshape(tokens, 1, 2, half)
    rotated = pairs * angles[:, :, :1]
    crossed = pairs * angles[:, :, 1:]
    rotated[:, :, 0] -= crossed[:, :, 1]
    rotated[:, :, 1] += crossed[:, :, 0]
    rotated = store(rotated, qkv.dtype).reshape(tokens, q_size + kv_size)

    q = np.ascontiguousarray(rotated[:, :q_size])
    k = rotated[:, q_size:].reshape(tokens, kv_heads, head_dim)
    v = qkv[:, q_size + kv_size :].reshape(tokens, kv_heads, head_dim)
    if not all_live:
        q[~live] = 0
        k, v, slot_mapping = k[live], v[live], slot_mapping[live]
    block, offset = np.divmod(slot_mapping, block_size)
    k_cache[block, :, offset] = k
    v_cache[block, :, offset] = v
    return (q,)


def check(axes: Axes, *, q_size: int) -> None:
    """The columns of qkv must split into whole heads of q, k and v.

    Raises:
        ValueError: head_dim is odd, or the sizes of q, k, v and qkv do not fit.
    """
    kv_heads, head_dim, qkv_size = axes["kv_heads"], axes["head_dim"], axes["qkv_size"]
    if head_dim % 2:
        raise ValueError(f"rope_append: head_dim of k_cache is {head_dim}, expected an even number")
    if q_size % (kv_heads * head_dim) or q_size < 1:
        raise ValueError(
            f"rope_append: q_size is {q_size}, expected a multiple of kv_heads*head_dim = "
            f"{kv_heads}*{head_dim}: whole heads, and the same number for each KV head"
        )
    expected = q_size + 2 * kv_heads * head_dim
    if qkv_size != expected:
        raise ValueError(
            f"rope_append: axis 'qkv_size' is {qkv_size} in qkv, expected {expected} = "
            f"q_size + 2*kv_heads*head_dim = {q_size} + 2*{kv_heads}*{head_dim}"
        )


def cost(axes: Axes, dtype: str, *, q_size: int) -> Cost:
    """Reads qkv, writes q, k and v, reads a row of cos_sin a token; 3 flops a rotated element."""
    tokens, head_dim, qkv_size = axes["tokens"], axes["head_dim"], axes["qkv_size"]
    rotated = q_size + axes["kv_heads"] * head_dim
    return Cost(
        tokens * (2 * qkv_size * DTYPES[dtype].itemsize + 4 * head_dim + 8),
        3 * tokens * rotated,
    )


def launches(axes: Axes, dtype: str, *, q_size: int) -> tuple[Launch, ...]:
    """A block a token, or a part of its heads where there are many.

    A thread stays on one column of a head, so a block takes whole heads at once.
    """
    kv_heads, head_dim = axes["kv_heads"], axes["head_dim"]
    heads = q_size // head_dim
    all_heads = heads + 2 * kv_heads
    width = vector_width(dtype, head_dim // 2)
    columns = head_dim // 2 // width
    wanted = min(-(-all_heads // LOADS_OF_THREAD) * columns, MAX_THREADS)
    threads = -(-max(wanted, columns) // 32) * 32
    heads_at_once = threads // columns
    heads_of_thread = min(-(-all_heads // heads_at_once), LOADS_OF_THREAD)
    sizes = (heads, kv_heads, head_dim, axes["block_size"])
    return (
        Launch(
            function=f"rope_append<{CUDA_TYPES[dtype]}, {width}, {threads}, {heads_of_thread}>",
            grid=(axes["tokens"], -(-all_heads // (heads_at_once * heads_of_thread)), 1),
            block=threads,
            scalars=tuple(np.int32(size) for size in sizes),
            programmatic=True,
            settles=True,
        ),
    )


CACHE_AXES = ("num_blocks", "kv_heads", "block_size", "head_dim")


def rope_table(max_position: int, head_dim: int, attention_scaling: float = 1.0) -> Array:
    """The cosines and sines of every position for the base 10,000."""
    frequencies = 10000.0 ** (-np.arange(0, head_dim, 2) / head_dim)
    angles = np.arange(max_position)[:, None] * frequencies
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * attention_scaling
    return table.astype(np.float32)


def _case(
    name: str,
    shape: Heads,
    positions: Sequence[int | None],
    *,
    one_sequence: bool = False,
    attention_scaling: float = 1.0,
    block_size: int = BLOCK_SIZE,
) -> Case:
    """One token a position, of one sequence or of a sequence each; None is a dead row."""

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        lengths = [0 if position is None else position + 1 for position in positions]
        seq_lens = [max(lengths)] if one_sequence else lengths
        num_blocks, tables = scattered_blocks(rng, seq_lens, block_size)
        cache = (num_blocks, shape.kv_heads, block_size, shape.head_dim)
        k_cache, v_cache = normal(rng, dtype, cache), normal(rng, dtype, cache)
        qkv = normal(rng, dtype, (len(positions), shape.q_size + 2 * shape.kv_size))
        cos_sin = rope_table(max(lengths) + 2, shape.head_dim, attention_scaling)
        ids, slots = int32(lengths) - 1, np.full(len(positions), -1, np.int32)
        for row, position in enumerate(positions):
            if position is None:
                qkv[row] = np.nan
                ids[row] = 10**6
            else:
                table = tables[0 if one_sequence else row]
                slots[row] = slots_of(table, ids[row], block_size)
        return k_cache, v_cache, qkv, cos_sin, int32(ids), slots

    return Case(name, make, {"q_size": shape.q_size})


def _slot_0(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """A live row in slot 0, which a kernel could take for a dead one."""
    *arrays, slots = _case("", Heads(4, 2, 64), [0, 3]).make(rng, dtype)
    slots[0] = 0
    return *arrays, slots


ROPE_APPEND = Kernel(
    name="rope_append",
    operands=(
        Operand("q", ("tokens", "q_size"), "T", Access.WRITE),
        Operand("k_cache", CACHE_AXES, "T", Access.UPDATE, appends=True),
        Operand("v_cache", CACHE_AXES, "T", Access.UPDATE, appends=True),
        Operand("qkv", ("tokens", "qkv_size"), "T"),
        Operand("cos_sin", ("max_position", "head_dim"), "float32", constant=True, gathered=True),
        Operand("positions", ("tokens",), "int32"),
        Operand("slot_mapping", ("tokens",), "int32"),
    ),
    reference=reference,
    cost=cost,
    check=check,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        _case("one_row", Heads(4, 2, 64), [37]),
        _case("first_position", Heads(4, 2, 64), [0]),
        _case("block_edges", Heads(4, 2, 64), [14, 15, 16, 17, 31, 32]),
        _case("mha_head_dim_128", Heads(2, 2, 128), [5, 40]),
        _case("mqa", Heads(8, 1, 64), [20, 3, 11]),
        _case("head_dim_8", Heads(8, 4, 8), [0, 9, 100]),
        _case("head_dim_80", Heads(6, 2, 80), [13, 2]),
        _case("head_dim_2", Heads(4, 2, 2), [13, 2]),
        # More heads than a block moves at once; more than it moves at all.
        _case("wide", Heads(32, 8, 128), [3, 40, None]),
        _case("many_heads", Heads(272, 2, 64), [3, None]),
        _case("block_size_8", Heads(4, 2, 64), [6, 7, 8, 23], block_size=8),
        _case("chunk_over_blocks", Heads(9, 3, 64), range(11, 45), one_sequence=True),
        _case("dead_rows", Heads(4, 2, 64), [None, 9, None, 33, None]),
        _case("only_dead_rows", Heads(4, 2, 64), [None, None]),
        Case("slot_0", _slot_0, {"q_size": 256}),
        _case("far_positions", Heads(2, 1, 64), [4000, 1023]),
        _case("attention_scaling", Heads(4, 2, 32), [7, 70], attention_scaling=1.25),
    ),
    benchmarks=tuple(
        _case(name, model.heads, range(rows), one_sequence=True)
        for name, model, rows in rowwise_sizes()
    ),
)
