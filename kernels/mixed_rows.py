"""Mixed rows: what a step over chunks of several sequences works on, from their state.

Sequence q of the step is in slot ``s = slot_ids[q]``, has ``n = num_computed[s]`` tokens in the
cache and owns the rows from ``query_start_loc[q]`` to ``query_start_loc[q + 1]``. Its i-th row is

    the token new_token_ids[row], or last_token[s] where that is -1 (only the device knows it yet)
    at position n + i, which goes to slot_mapping = table[(n + i) // size] * size + (n + i) % size

Rows that no sequence owns are dead (token 0, position 0, slot mapping -1), and so are those of a
sequence without a slot (-1) or that is done, whose length is 0.

The step begins here: ``step`` becomes its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import Access, Array, Axes, Case, Cost, Kernel, Launch, Operand

from .case_arrays import Make, int32
from .decode_rows import live_slots
from .step_numbers import begun_step, check_words

THREADS = 128


def reference(
    step: Array,
    new_token_ids: Array,
    slot_ids: Array,
    query_start_loc: Array,
    row_ids: Array,
    last_token: Array,
    num_computed: Array,
    done: Array,
    block_tables: Array,
    launch: Array,
    *,
    block_size: int,
) -> tuple[Array, ...]:
    """Gather the inputs of each row and sequence.

    Args:
        step: int32 [1], modified; the number of the newest step that has begun.
        new_token_ids: int32 [tokens]; -1 is the newest token of the row's sequence.
        slot_ids: int32 [seqs]; each sequence's slot; -1 in dead ones. No slot occurs twice.
        query_start_loc: int32 [seqs + 1]; rising from 0.
        row_ids: int32 [logits]; the slot that a row of logits samples for; -1 samples nothing.
        last_token: int32 [slots].
        num_computed: int32 [slots]; tokens in the cache before the step.
        done: int32 [slots]; 1 once the sequence has ended.
        block_tables: int32 [slots, max_blocks]; with room for the rows.
        launch: int32 [2]; the number of the first step that was launched, and how many were.
        block_size: tokens of a block.

    Returns:
        token_ids, positions and slot_mapping, each int32 [tokens]; seq_lens, int32 [seqs];
        live_row_ids, int32 [logits]: row_ids, -1 where the sequence is done.
    """
    step[:] = begun_step(step, launch[:1])
    tokens = len(new_token_ids)
    live_seqs = live_slots(slot_ids, done)
    counts = np.diff(query_start_loc)
    seq_lens = np.where(live_seqs, num_computed[slot_ids] + counts, 0).astype(np.int32)
    live_row_ids = np.where(live_slots(row_ids, done), row_ids, -1).astype(np.int32)

    token_ids, positions = np.zeros(tokens, np.int32), np.zeros(tokens, np.int32)
    slot_mapping = np.full(tokens, -1, np.int32)
    seqs = np.repeat(np.arange(len(slot_ids)), counts)  # of each row that a sequence owns
    rows = np.flatnonzero(live_seqs[seqs])
    seqs = seqs[rows]
    slots = slot_ids[seqs]
    at = num_computed[slots] + rows - query_start_loc[seqs]
    positions[rows] = at
    given = new_token_ids[rows]
    token_ids[rows] = np.where(given < 0, last_token[slots], given)
    slot_mapping[rows] = block_tables[slots, at // block_size] * block_size + at % block_size
    return token_ids, positions, slot_mapping, seq_lens, live_row_ids


def cost(axes: Axes, dtype: str, *, block_size: int) -> Cost:
    """Two words read and three written for each token, and a few for each sequence and row."""
    return Cost(4 * (5 * axes["tokens"] + 5 * axes["seqs"] + 2 * axes["logits"]), 0)


def check(axes: Axes, *, block_size: int) -> None:
    """Refuse words of another number. Raises ValueError."""
    check_words("mixed_rows", axes, launch_words=2, one=1)


def launches(axes: Axes, dtype: str, *, block_size: int) -> tuple[Launch, ...]:
    """A thread for the token, the sequence and the row of logits of the same number."""
    sizes = (axes["tokens"], axes["seqs"], axes["logits"])
    scalars = tuple(np.int32(size) for size in (*sizes, axes["max_blocks"], block_size))
    return (
        Launch(
            "mixed_rows", (-(-max(sizes) // THREADS), 1, 1), THREADS, scalars, programmatic=True
        ),
    )


def _inputs(
    chunks: Sequence[tuple[int, int, int]],
    row_ids: Sequence[int],
    *,
    dead_tokens: int = 0,
    step: int = 4,
) -> Make:
    """Sequences as (slot, tokens in the cache, new tokens); slot 2 is done."""

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        slots, max_blocks = 8, 20
        num_computed = rng.integers(0, 100, slots)
        for slot, cached, _ in chunks:
            if slot >= 0:
                num_computed[slot] = cached
        starts = np.cumsum([0, *(count for *_, count in chunks)])
        token_ids = rng.integers(0, 999, starts[-1] + dead_tokens)
        for (*_, count), start in zip(chunks, starts, strict=False):
            if count == 1:
                token_ids[start] = -1
        return (
            int32([step]),
            int32(token_ids),
            int32([slot for slot, *_ in chunks]),
            int32(starts),
            int32(row_ids),
            int32(rng.integers(0, 999, slots)),
            int32(num_computed),
            int32(np.arange(slots) == 2),
            int32(rng.integers(1, 99, (slots, max_blocks))),
            int32([5, 1]),
        )

    return make


_ATTRS = {"block_size": 16}

MIXED_ROWS = Kernel(
    name="mixed_rows",
    operands=(
        Operand("token_ids", ("tokens",), "int32", Access.WRITE),
        Operand("positions", ("tokens",), "int32", Access.WRITE),
        Operand("slot_mapping", ("tokens",), "int32", Access.WRITE),
        Operand("seq_lens", ("seqs",), "int32", Access.WRITE),
        Operand("live_row_ids", ("logits",), "int32", Access.WRITE),
        Operand("step", ("one",), "int32", Access.UPDATE),
        Operand("new_token_ids", ("tokens",), "int32"),
        Operand("slot_ids", ("seqs",), "int32"),
        Operand("query_start_loc", ("seqs+1",), "int32"),
        Operand("row_ids", ("logits",), "int32"),
        Operand("last_token", ("slots",), "int32"),
        Operand("num_computed", ("slots",), "int32"),
        Operand("done", ("slots",), "int32"),
        Operand("block_tables", ("slots", "max_blocks"), "int32"),
        Operand("launch", ("launch_words",), "int32"),
    ),
    reference=reference,
    cost=cost,
    check=check,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        Case("one_prompt", _inputs([(3, 0, 40)], [3]), _ATTRS),
        Case("second_chunk", _inputs([(0, 37, 29)], [-1, -1, 0]), _ATTRS),
        Case("with_decode_rows", _inputs([(5, 15, 1), (0, 16, 1), (4, 8, 50)], [5, 0, 4]), _ATTRS),
        Case("one_decode_row", _inputs([(7, 31, 1)], [7]), _ATTRS),
        Case("done", _inputs([(2, 9, 1), (1, 9, 3), (2, 9, 0)], [2, 1]), _ATTRS),
        Case("dead_seqs", _inputs([(6, 2, 5), (-1, 0, 0), (-1, 0, 0)], [6, -1]), _ATTRS),
        Case("no_tokens_between", _inputs([(1, 4, 3), (-1, 0, 0), (3, 30, 2)], [3]), _ATTRS),
        Case("padded", _inputs([(1, 4, 3), (6, 0, 200)], [1, 6], dead_tokens=53), _ATTRS),
        Case("no_logits", _inputs([(3, 0, 40), (1, 7, 1)], []), _ATTRS),
        Case("no_sequences", _inputs([], [], dead_tokens=5), _ATTRS),
        Case("later_step", _inputs([(3, 0, 4)], [3], step=-7), _ATTRS),
        Case("second_step", _inputs([(3, 0, 4)], [3], step=5), _ATTRS),
        Case("more_logits", _inputs([(1, 0, 2)], [-1] * 199 + [1]), _ATTRS),
        Case("block_size_8", _inputs([(1, 7, 9), (0, 8, 1)], [0]), {"block_size": 8}),
    ),
)
