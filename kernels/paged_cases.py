"""Paged KV caches for the cases of the kernels that read or write one.

Blocks are scattered over the cache in random order. Whatever a kernel must not read holds NaN, or
huge finite noise: the scratch block 0, blocks that no sequence owns, table entries after a
sequence's last block (they name a block of NaN), and slots after its last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cugraphs.kernel import Array, Case

from . import attention_parts
from .case_arrays import int32, normal

BLOCK_SIZE = 16
FREE_BLOCKS = 3  # blocks that no sequence owns, the scratch block among them
FREE_SLOTS = 2  # of the block tables, that no sequence has
NAN = float("nan")
NOISE = 3e4  # representable in every dtype; one unmasked score of this size decides the softmax


@dataclass(frozen=True)
class Heads:
    """Query heads, KV heads and their size: MHA, GQA or MQA."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def q_size(self) -> int:
        """Columns of q."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Columns of k, and of v."""
        return self.kv_heads * self.head_dim

    def attention_attrs(
        self, batch_invariant: bool = False, scale: float | None = None
    ) -> dict[str, Any]:
        """The scalars of attention over these heads; ``scale`` is head_dim**-0.5 by default."""
        scale = self.head_dim**-0.5 if scale is None else scale
        return {"scale": scale, "batch_invariant": batch_invariant}


def scattered_blocks(
    rng: np.random.Generator, seq_lens: Sequence[int], block_size: int = BLOCK_SIZE
) -> tuple[int, Array]:
    """Give each sequence its blocks, in random order over the cache.

    Returns:
        The number of blocks, and block tables int32 [seqs, max_blocks]; max_blocks is one more than
        the longest sequence needs, and entries that are not needed name a block that nobody owns.
    """
    needed = [-(-seq_len // block_size) for seq_len in seq_lens]
    num_blocks = sum(needed) + FREE_BLOCKS
    order = 1 + rng.permutation(num_blocks - 1)
    tables = np.full((len(needed), max(needed, default=0) + 1), order[-1])
    first = 0
    for seq, count in enumerate(needed):
        tables[seq, :count] = order[first : first + count]
        first += count
    return num_blocks, int32(tables)


def slots_of(block_table: Array, positions: Array, block_size: int = BLOCK_SIZE) -> Array:
    """The cache slots of a sequence's positions: int32, ``block*block_size + offset``."""
    return int32(block_table[positions // block_size] * block_size + positions % block_size)


def filled_cache(
    rng: np.random.Generator,
    dtype: np.dtype[Any],
    seq_lens: Sequence[int],
    shape: Heads,
    unread: float = NAN,
    block_size: int = BLOCK_SIZE,
) -> tuple[Array, Array, Array]:
    """K and V of sequences in a paged cache.

    Returns:
        k_cache and v_cache ``dtype`` [num_blocks, kv_heads, block_size, head_dim], which hold
        ``unread`` where there is no token, and block_tables int32 [seqs, max_blocks].
    """
    num_blocks, tables = scattered_blocks(rng, seq_lens, block_size)
    caches = []
    for _ in range(2):
        cache = np.full((num_blocks, shape.kv_heads, block_size, shape.head_dim), unread, dtype)
        for table, seq_len in zip(tables, seq_lens, strict=True):
            slots = slots_of(table, np.arange(seq_len), block_size)
            block, offset = np.divmod(slots, block_size)
            cache[block, :, offset] = normal(rng, dtype, (seq_len, shape.kv_heads, shape.head_dim))
        caches.append(cache)
    return caches[0], caches[1], tables


def in_slots(
    rng: np.random.Generator, tables: Array, seq_lens: Sequence[int]
) -> tuple[Array, Array]:
    """Give each sequence a slot of its own, in random order among slots that nobody has.

    Returns:
        block_tables int32 [slots, max_blocks], and slot_ids int32 [seqs], -1 where the length is 0.
    """
    slots = rng.permutation(len(tables) + FREE_SLOTS)[: len(tables)]
    spread = np.zeros((len(tables) + FREE_SLOTS, tables.shape[1]), np.int32)
    spread[slots] = tables
    return spread, int32(np.where(np.array(seq_lens) > 0, slots, -1))


def with_parts(arrays: Sequence[Array], batch_invariant: bool = False) -> tuple[Array, ...]:
    """The arrays of decode attention, arrivals before and parts after those that are given.

    Args:
        arrays: q, k_cache, v_cache, block_tables, row_ids, seq_lens.
        batch_invariant: the scalar of that name.
    """
    q, k_cache, *_, row_ids, seq_lens = arrays
    _, kv_heads, _, head_dim = k_cache.shape
    parts, arrivals = attention_parts.reference(
        row_ids,
        seq_lens,
        heads=q.shape[1] // head_dim,
        kv_heads=kv_heads,
        part_words=attention_parts.PART_WORDS,
        batch_invariant=batch_invariant,
    )
    return arrivals, *arrays, parts


def decode_case(
    name: str,
    shape: Heads,
    seq_lens: Sequence[int],
    *,
    batch_invariant: bool = False,
    unread: float = NAN,
    q_scale: float = 1.0,
    scale: float | None = None,
    block_size: int = BLOCK_SIZE,
    shared_blocks: int = 0,
) -> Case:
    """A case of decode attention: one query for each sequence; length 0 is a dead row.

    Sequences have their slots in random order, and there is a slot more, which no row has; its
    table names the scratch block 0.

    Args:
        name: of the case.
        shape: heads.
        seq_lens: tokens in the cache of each row.
        batch_invariant: the scalar of that name.
        unread: what slots without a token hold.
        q_scale: standard deviation of q.
        scale: of the scores; head_dim**-0.5 by default.
        block_size: of the cache.
        shared_blocks: so many blocks of every sequence are those that the first one begins with,
            and the last of them stands in each table twice.
    """

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        k_cache, v_cache, tables = filled_cache(rng, dtype, seq_lens, shape, unread, block_size)
        if shared_blocks:
            tables[:, :shared_blocks] = tables[0, :shared_blocks]
            tables[:, shared_blocks] = tables[:, shared_blocks - 1]
        q = normal(rng, dtype, (len(seq_lens), shape.q_size), q_scale)
        arrays = q, k_cache, v_cache, *in_slots(rng, tables, seq_lens), int32(seq_lens)
        return with_parts(arrays, batch_invariant)

    attrs = shape.attention_attrs(batch_invariant, scale)
    return Case(name, make, attrs, round(float(np.mean(seq_lens))))


def prefill_case(
    name: str,
    shape: Heads,
    chunks: Sequence[tuple[int, int]],
    *,
    padding_rows: int = 0,
    rows_before: int = 0,
    batch_invariant: bool = False,
    unread: float = NAN,
    q_scale: float = 1.0,
    scale: float | None = None,
    block_size: int = BLOCK_SIZE,
) -> Case:
    """A case of prefill attention.

    Args:
        name: of the case.
        shape: heads.
        chunks: ``(seq_len, rows)`` of each sequence: the rows are its last ones.
        padding_rows: rows after the last chunk.
        rows_before: rows before the first chunk, which no sequence owns either.
        batch_invariant: the scalar of that name.
        unread: what slots without a token hold.
        q_scale: standard deviation of q.
        scale: of the scores; head_dim**-0.5 by default.
        block_size: of the cache.
    """
    seq_lens = [seq_len for seq_len, _ in chunks]
    starts = np.cumsum([rows_before, *(rows for _, rows in chunks)])

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        k_cache, v_cache, tables = filled_cache(rng, dtype, seq_lens, shape, unread, block_size)
        q = normal(rng, dtype, (int(starts[-1]) + padding_rows, shape.q_size), q_scale)
        where = in_slots(rng, tables, seq_lens)
        return q, k_cache, v_cache, *where, int32(seq_lens), int32(starts)

    attrs = shape.attention_attrs(batch_invariant, scale)
    return Case(name, make, attrs, round(float(np.mean(seq_lens))))
