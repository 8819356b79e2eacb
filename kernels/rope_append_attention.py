"""Rotary embedding, append to the cache and decode attention, in one launch.

``paged_decode_attention(rope_append(qkv))``. Rounding: queries and keys are rounded as ROPE_APPEND
stores them, so the results are those of ROPE_APPEND and PAGED_DECODE_ATTENTION one after the other.
A row is its sequence's newest token, and its slot that of the token at ``seq_lens - 1``, or it is
dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import (
    DTYPES,
    WORKSPACE,
    Access,
    Array,
    Axes,
    Case,
    Cost,
    Kernel,
    Launch,
    Operand,
)

from .attention_parts import BLOCKS, most_cut_parts, most_parts
from .benchmark_sizes import MODELS
from .case_arrays import normal
from .few_rows_attention import LONE_BYTES
from .launch_shapes import MULTIPROCESSORS
from .paged_cases import NAN, NOISE, Heads, decode_case, slots_of
from .paged_decode_attention import (
    PAGED_DECODE_ATTENTION,
    attention_form,
    form_of_pieces,
    head_scalars,
    takes_pieces,
)
from .paged_decode_attention import Form as AttentionForm
from .paged_decode_attention import check as check_attention
from .rope_append import CACHE_AXES, ROPE_APPEND, rope_table
from .rope_append import check as check_rope

DTYPES_16_BITS = ("bfloat16", "float16")
# Fewer rows are rotated by their product, or few for attention. More have a product of cuBLASLt's,
# which nothing can follow early, and blocks that begin one after the other.
WORTH_ROWS = (9, 64)


def reference(
    k_cache: Array,
    v_cache: Array,
    arrivals: Array,
    qkv: Array,
    positions: Array,
    slot_mapping: Array,
    block_tables: Array,
    row_ids: Array,
    seq_lens: Array,
    parts: Array,
    cos_sin: Array,
    *,
    q_size: int,
    scale: float,
) -> tuple[Array]:
    """Rotate q and k, store k and v in their slots, attend from q to each row's whole sequence.

    Args:
        k_cache: T [num_blocks, kv_heads, block_size, head_dim], modified.
        v_cache: T [num_blocks, kv_heads, block_size, head_dim], modified.
        arrivals: int32 [rows, heads]; all 0, and so they are again afterwards.
        qkv: T [rows, q_size + 2*kv_heads*head_dim].
        positions: int32 [rows].
        slot_mapping: int32 [rows]; where the token at seq_lens - 1 is; -1 in dead rows.
        block_tables: int32 [slots, max_blocks]; read up to the last block that holds a token.
        row_ids: int32 [rows]; the slot of the row's sequence; -1 in dead rows.
        seq_lens: int32 [rows]; tokens in the cache, the current one included; 0 in dead rows.
        parts: int32 [rows+256, 8]; of these rows, from ATTENTION_PARTS.
        cos_sin: float32 [max_position, head_dim], as of ROPE_APPEND.
        q_size: columns of q, heads*head_dim.
        scale: what the scores are multiplied by, usually head_dim**-0.5.

    Returns:
        T [rows, q_size].
    """
    where = (cos_sin, positions, slot_mapping)
    (q,) = ROPE_APPEND.reference(k_cache, v_cache, qkv, *where, q_size=q_size)
    given = (arrivals, q, k_cache, v_cache, block_tables, row_ids, seq_lens, parts)
    (out,) = PAGED_DECODE_ATTENTION.reference(*given, scale=scale)
    return (out,)


def cost(axes: Axes, dtype: str, *, q_size: int, scale: float) -> Cost:
    """As attention, and k, v and a row of cos_sin a token; the flops of both."""
    attention = PAGED_DECODE_ATTENTION.cost(axes, dtype, scale=scale)
    rope = ROPE_APPEND.cost({**axes, "tokens": axes["rows"]}, dtype, q_size=q_size)
    appended = 2 * axes["kv_heads"] * axes["head_dim"] * DTYPES[dtype].itemsize
    return Cost(
        attention.bytes_accessed + axes["rows"] * (appended + 4 * axes["head_dim"] + 8),
        attention.flops + rope.flops,
    )


def check(axes: Axes, *, q_size: int, scale: float) -> None:
    """Refuse columns of no whole heads, and sizes that blocks of one KV head do not take.

    Raises:
        ValueError: head_dim is neither 64 nor 128, a KV head has more than 8 query heads, or a
            cache block is no multiple of 16 tokens; or sizes do not fit.
    """
    check_rope(axes, q_size=q_size)
    check_attention(axes, scale=scale)
    if not takes_pieces(axes):
        group = q_size // (axes["kv_heads"] * axes["head_dim"])
        raise ValueError(
            f"rope_append_attention: head_dim is {axes['head_dim']}, query heads of a KV head "
            f"{group}, block_size {axes['block_size']}, expected 64 or 128, at most 8, and a "
            "multiple of 16; use the kernels that it stands for"
        )


def launches(axes: Axes, dtype: str, *, q_size: int, scale: float) -> tuple[Launch, ...]:
    """A block for each part and KV head, or as many as there are multiprocessors."""
    rows, kv_heads = axes["rows"], axes["kv_heads"]
    sizes = (np.int32(rows), *head_scalars(axes, scale))
    anywhere = _launch("rope_append_attention", axes, attention_form(axes, dtype), sizes)
    form = form_of_pieces(axes, dtype, appends=True)
    places = most_parts(rows, kv_heads)
    sizes = (np.int32(rows), np.int32(places), *head_scalars(axes, scale))
    on_sm90 = _launch("rope_append_attention_pieces", axes, form, sizes)
    if rows * kv_heads <= MULTIPROCESSORS:
        blocks = min(places, MULTIPROCESSORS // kv_heads) * kv_heads
        on_sm90 = replace(
            on_sm90, grid=(blocks, 1, 1), shared_bytes=max(LONE_BYTES, form.shared_bytes)
        )
    return (replace(on_sm90, arch="sm_90a", elsewhere=(anywhere,)),)


def _launch(
    function: str, axes: Axes, form: AttentionForm, scalars: tuple[np.generic, ...]
) -> Launch:
    rows, kv_heads = axes["rows"], axes["kv_heads"]
    return Launch(
        function=f"{function}<{form.text}>",
        grid=(most_parts(rows, kv_heads) * kv_heads, 1, 1),
        block=form.threads,
        scalars=scalars,
        operands=(
            *("out", "k_cache", "v_cache", "arrivals", "qkv", "positions", "slot_mapping"),
            *("block_tables", "parts", "cos_sin", WORKSPACE),
        ),
        shared_bytes=form.shared_bytes,
        programmatic=True,
        settles=True,
    )


def workspace(axes: Axes, dtype: str, *, q_size: int, scale: float) -> int:
    """float32 results of the parts of cut rows: for each head, its sums, and two numbers more."""
    parts = most_cut_parts(axes["rows"], axes["kv_heads"])
    return 4 * parts * q_size // axes["head_dim"] * (axes["head_dim"] + 2)


def _case(
    name: str,
    shape: Heads,
    seq_lens: Sequence[int],
    *,
    unread: float = NAN,
    q_scale: float = 1.0,
    scale: float | None = None,
    block_size: int = 16,
    shared_blocks: int = 0,
) -> Case:
    """As a case of decode attention, but the last token of each row is in qkv alone."""
    attention = decode_case(
        name,
        shape,
        seq_lens,
        unread=unread,
        q_scale=q_scale,
        scale=scale,
        block_size=block_size,
        shared_blocks=shared_blocks,
    )

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        arrivals, q, k_cache, v_cache, tables, row_ids, lengths, parts = attention.make(rng, dtype)
        qkv = np.concatenate([q, normal(rng, dtype, (len(q), 2 * shape.kv_size))], axis=1)
        positions, slots = lengths - 1, np.full(len(q), -1, np.int32)
        for row in range(len(q)):
            if lengths[row] > 0:
                slots[row] = slots_of(tables[row_ids[row]], positions[row], block_size)
                block, offset = divmod(int(slots[row]), block_size)
                k_cache[block, :, offset] = v_cache[block, :, offset] = unread
            else:
                qkv[row], positions[row] = np.nan, 10**6
        cos_sin = rope_table(max(seq_lens) + 2, shape.head_dim)
        where = (positions, slots, tables, row_ids, lengths, parts)
        return k_cache, v_cache, arrivals, qkv, *where, cos_sin

    attrs = {"q_size": shape.q_size, "scale": attention.attrs["scale"]}
    return Case(name, make, attrs, attention.context)


ROPE_APPEND_ATTENTION = Kernel(
    name="rope_append_attention",
    operands=(
        Operand("out", ("rows", "q_size"), "T", Access.WRITE),
        Operand("k_cache", CACHE_AXES, "T", Access.UPDATE, settled=True, appends=True),
        Operand("v_cache", CACHE_AXES, "T", Access.UPDATE, settled=True, appends=True),
        Operand("arrivals", ("rows", "heads"), "int32", Access.UPDATE),
        Operand("qkv", ("rows", "qkv_size"), "T"),
        Operand("positions", ("rows",), "int32", settled=True),
        Operand("slot_mapping", ("rows",), "int32", settled=True),
        Operand("block_tables", ("slots", "max_blocks"), "int32", settled=True),
        Operand("row_ids", ("rows",), "int32"),
        Operand("seq_lens", ("rows",), "int32"),
        Operand("parts", (f"rows+{BLOCKS}", "part_words"), "int32", settled=True),
        Operand("cos_sin", ("max_position", "head_dim"), "float32", constant=True, gathered=True),
    ),
    reference=reference,
    cost=cost,
    check=check,
    cuda_dtypes=DTYPES_16_BITS,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    workspace=workspace,
    is_attention=True,
    cases=(
        _case("one_row", Heads(4, 2, 64), [37]),
        _case("one_token", Heads(4, 2, 64), [1]),
        _case("block_edges", Heads(4, 2, 64), [1, 15, 16, 17, 31, 32, 33]),
        _case("mha_head_dim_128", Heads(2, 2, 128), [5, 40]),
        _case("mqa", Heads(8, 1, 64), [20, 3, 11]),
        _case("group_of_8_head_dim_128", Heads(8, 1, 128), [129, 16]),
        _case("group_of_3", Heads(9, 3, 64), [40, 7, 100, 64]),
        _case("dead_rows", Heads(4, 2, 64), [0, 9, 0, 33, 0]),
        _case("only_dead_rows", Heads(4, 2, 64), [0, 0]),
        _case("noise_beyond", Heads(4, 2, 64), [5, 0, 18], unread=NOISE),
        _case("other_scale", Heads(4, 2, 64), [13, 30], scale=0.3),
        _case("peaked", Heads(4, 2, 64), [33, 80], q_scale=20.0),
        _case("block_size_32", Heads(2, 2, 128), [47, 48, 49, 64], block_size=32),
        _case("shared_blocks", Heads(4, 2, 64), [100, 49, 300, 80], shared_blocks=2),
        # The last token alone in its part, its tile, its warp.
        _case("edges", Heads(8, 2, 128), [200, 33, 0, 1, 16, 17, 700, 64, 65, 129]),
        _case("long", Heads(3, 1, 64), [1300, 513, 512]),
        _case("cut_finely", Heads(2, 1, 64), [12_000, 3, 0, 200]),
        _case("cut_128", Heads(8, 2, 128), [2100, 1, 17]),
        # More blocks than multiprocessors; more than twice as many; blocks of fewer warps.
        _case("ring_of_two", Heads(16, 8, 128), [(13 * row) % 50 for row in range(19)]),
        _case("forty_rows", Heads(8, 8, 64), [(11 * row) % 40 for row in range(40)]),
        _case("many_rows", Heads(16, 8, 64), [(7 * row) % 40 for row in range(130)]),
    ),
    benchmarks=(
        _case("8b_16x1024", MODELS["8b"].heads, [1024] * 16),
        _case("8b_64x1024", MODELS["8b"].heads, [1024] * 64),
    ),
)
