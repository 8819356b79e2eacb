"""Decode rows: what a decode step works on, from the state of the sequences in ``row_ids``.

With ``s`` the slot of row r and ``n = num_computed[s]`` the tokens of its sequence in the cache:

    token = last_token[s], at position n, to the cache at table[n // size] * size + n % size
    the row attends to n + 1 tokens, and the token that it samples will stand at position n + 1

A row is dead if it has no sequence (id -1), its sequence is done, or its table has no block for the
token: it ends before it, or holds 0 there, the block that is no sequence's. A dead row has token 0,
position 0, slot mapping -1, length 0 and row id -1.

The step begins here: ``step`` becomes its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import Access, Array, Axes, Case, Cost, Kernel, Launch, Operand

from .case_arrays import Make, int32
from .step_numbers import begun_step, check_words

THREADS = 128


def reference(
    step: Array,
    row_ids: Array,
    last_token: Array,
    num_computed: Array,
    done: Array,
    block_tables: Array,
    num_logprobs: Array,
    launch: Array,
    *,
    block_size: int,
) -> tuple[Array, ...]:
    """Gather the inputs of each row.

    Args:
        step: int32 [1], modified; the number of the newest step that has begun.
        row_ids: int32 [rows]; a slot, or -1. No slot occurs twice.
        last_token: int32 [slots]; the newest token of each sequence, not in the cache yet.
        num_computed: int32 [slots]; tokens in the cache.
        done: int32 [slots]; 1 once the sequence has ended.
        block_tables: int32 [slots, max_blocks]; 0 after the last block.
        num_logprobs: int32 [slots]; likeliest tokens wanted beside the sampled one; -1 wants none.
        launch: int32 [2]; the number of the first step that was launched, and how many were.
        block_size: tokens of a block.

    Returns:
        token_ids, positions, slot_mapping, seq_lens, live_row_ids, sample_positions, target_ids
        and row_logprobs, each int32 [rows]. target_ids are -1: the sampled token's own.
    """
    step[:] = begun_step(step, launch[:1])
    rows = len(row_ids)
    live = live_rows(row_ids, num_computed, done, block_tables, block_size)
    slots = row_ids[live]
    positions, slot_mapping = np.zeros(rows, np.int32), np.full(rows, -1, np.int32)
    seq_lens, sample_positions = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    token_ids, live_row_ids = np.zeros(rows, np.int32), np.full(rows, -1, np.int32)
    row_logprobs = np.full(rows, -1, np.int32)
    positions[live] = at = num_computed[slots]
    token_ids[live] = last_token[slots]
    slot_mapping[live] = block_tables[slots, at // block_size] * block_size + at % block_size
    seq_lens[live] = sample_positions[live] = at + 1
    live_row_ids[live] = slots
    row_logprobs[live] = num_logprobs[slots]
    target_ids = np.full(rows, -1, np.int32)
    where = (token_ids, positions, slot_mapping, seq_lens)
    return (*where, live_row_ids, sample_positions, target_ids, row_logprobs)


def live_rows(
    row_ids: Array, num_computed: Array, done: Array, block_tables: Array, block_size: int
) -> Array:
    """Which rows of a decode step are not dead: bool [rows]; arguments as of :func:`reference`."""
    slots = np.maximum(row_ids, 0)
    index = num_computed[slots] // block_size
    max_blocks = block_tables.shape[1]
    has_block = block_tables[slots, np.minimum(index, max_blocks - 1)] > 0
    live: Array = live_slots(row_ids, done) & (index < max_blocks) & has_block
    return live


def live_slots(row_ids: Array, done: Array) -> Array:
    """Which ids name a sequence that is not done: bool [ids]."""
    live: Array = (row_ids >= 0) & (done[np.maximum(row_ids, 0)] == 0)
    return live


def cost(axes: Axes, dtype: str, *, block_size: int) -> Cost:
    """Six words read and eight written for each row."""
    return Cost(4 * 14 * axes["rows"], 0)


def check(axes: Axes, *, block_size: int) -> None:
    """Refuse words of another number. Raises ValueError."""
    check_words("decode_rows", axes, launch_words=2, one=1)


def launches(axes: Axes, dtype: str, *, block_size: int) -> tuple[Launch, ...]:
    """A thread a row."""
    rows = axes["rows"]
    scalars = tuple(np.int32(size) for size in (rows, axes["max_blocks"], block_size))
    return (
        Launch("decode_rows", (-(-rows // THREADS), 1, 1), THREADS, scalars, programmatic=True),
    )


def _inputs(
    row_ids: Sequence[int],
    *,
    slots: int = 6,
    max_blocks: int = 4,
    step: int = 8,
    first: int = 9,
    short_tables: bool = False,
) -> Make:
    """Some sequences are done; the last slot's table is full; some may lack the next block."""

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        num_computed = rng.integers(0, 16 * max_blocks, slots)
        num_computed[:2] = (0, 16 * max_blocks - 1)
        num_computed[-1] = 16 * max_blocks
        block_tables = rng.integers(1, 99, (slots, max_blocks))
        if short_tables:
            block_tables[np.arange(slots) % 2 == 0, 1:] = 0
        return (
            int32([step]),
            int32(row_ids),
            int32(rng.integers(0, 999, slots)),
            int32(num_computed),
            int32(np.arange(slots) % 4 == 3),
            int32(block_tables),
            int32(rng.integers(-1, 5, slots)),
            int32([first, 4]),
        )

    return make


_ATTRS = {"block_size": 16}

DECODE_ROWS = Kernel(
    name="decode_rows",
    operands=(
        *(
            Operand(name, ("rows",), "int32", Access.WRITE)
            for name in (
                "token_ids",
                "positions",
                "slot_mapping",
                "seq_lens",
                "live_row_ids",
                "sample_positions",
                "target_ids",
                "row_logprobs",
            )
        ),
        Operand("step", ("one",), "int32", Access.UPDATE),
        Operand("row_ids", ("rows",), "int32"),
        Operand("last_token", ("slots",), "int32"),
        Operand("num_computed", ("slots",), "int32"),
        Operand("done", ("slots",), "int32"),
        Operand("block_tables", ("slots", "max_blocks"), "int32"),
        Operand("num_logprobs", ("slots",), "int32"),
        Operand("launch", ("launch_words",), "int32"),
    ),
    reference=reference,
    cost=cost,
    check=check,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        Case("one_row", _inputs([1]), _ATTRS),
        Case("first_token", _inputs([0]), _ATTRS),
        Case("out_of_order", _inputs([4, 1, 0, 2]), _ATTRS),
        Case("dead_rows", _inputs([-1, 2, -1, -1, 0, -1]), _ATTRS),
        Case("done_and_full", _inputs([3, 5, 2, 4]), _ATTRS),
        Case("only_dead_rows", _inputs([-1, -1, 3]), _ATTRS),
        Case("no_block", _inputs([0, 1, 2, 4], short_tables=True), _ATTRS),
        Case("second_step", _inputs([1, 0], step=9), _ATTRS),
        Case("after_a_gap", _inputs([1, 0], step=2), _ATTRS),
        Case("numbers_wrap", _inputs([1], step=2**31 - 1, first=2**31 - 2), _ATTRS),
        Case("first_after_the_wrap", _inputs([1], step=2**31 - 3, first=-(2**31)), _ATTRS),
        Case("many", _inputs([*range(299, -1, -1)], slots=300), _ATTRS),
        Case("block_size_8", _inputs([2, 0, 1], slots=4, max_blocks=8), {"block_size": 8}),
    ),
)
