"""Advance: append the sampled tokens to their sequences, and mark those that are done.

For row r of slot s, whose sampled token stands at ``p = sample_positions[r]``:

    last_token[s] = token; num_computed[s] = p
    done[s] = 1 if the token is one of stop_ids[s] and p >= min_position[s] (min_tokens are made),
              or p + 1 >= end_position[s] > 0 (max_tokens are made), or the row is broken (token -1)

So the next step needs nothing from the host. A dead row (row id -1) changes nothing.

The host learns the tokens from a ring that it can read while the device runs on. Every row, dead or
not, has a word in it that holds its token and the number of the step, at ``step % ring_steps``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import Access, Array, Axes, Case, Cost, Kernel, Launch, Operand

from .case_arrays import Make, int32
from .step_numbers import DEAD, check_ring, check_words

THREADS = 128  # a warp a row


def reference(
    last_token: Array,
    num_computed: Array,
    done: Array,
    token_ring: Array,
    token_ids: Array,
    row_ids: Array,
    sample_positions: Array,
    step: Array,
    stop_ids: Array,
    min_position: Array,
    end_position: Array,
) -> tuple[()]:
    """Update the state of every sampled row's sequence, and tell the host.

    Args:
        last_token: int32 [slots], modified; this and all others as of :func:`append_tokens`.
        num_computed: int32 [slots], modified.
        done: int32 [slots], modified.
        token_ring: int32 [ring_steps, ring_rows, 2], modified; (token, step), the token
            :data:`DEAD` in dead rows.
        token_ids: int32 [rows].
        row_ids: int32 [rows].
        sample_positions: int32 [rows].
        step: int32 [1]; the number of the step that ends.
        stop_ids: int32 [slots, stops].
        min_position: int32 [slots].
        end_position: int32 [slots].
    """
    words = token_ring[int(step[0]) % len(token_ring), : len(row_ids)]
    words[:, 0] = np.where(row_ids < 0, DEAD, token_ids)
    words[:, 1] = step
    moved = (last_token, num_computed, done)
    rules = (stop_ids, min_position, end_position)
    append_tokens(*moved, token_ids, row_ids, sample_positions, *rules)
    return ()


def append_tokens(
    last_token: Array,
    num_computed: Array,
    done: Array,
    token_ids: Array,
    row_ids: Array,
    sample_positions: Array,
    stop_ids: Array,
    min_position: Array,
    end_position: Array,
) -> None:
    """Update the state of every sampled row's sequence.

    Args:
        last_token: int32 [slots], modified.
        num_computed: int32 [slots], modified.
        done: int32 [slots], modified.
        token_ids: int32 [rows]; sampled, -1 where the logits are no distribution.
        row_ids: int32 [rows]; the sequence's slot, -1 in dead rows. No slot occurs twice.
        sample_positions: int32 [rows]; where the token stands in its sequence.
        stop_ids: int32 [slots, stops]; tokens that end the sequence; -1 is none.
        min_position: int32 [slots]; before it stop_ids end nothing.
        end_position: int32 [slots]; the sequence's longest length; 0 is no limit.
    """
    rows = np.flatnonzero(row_ids >= 0)
    slots, tokens, positions = row_ids[rows], token_ids[rows], sample_positions[rows]
    last_token[slots] = np.maximum(tokens, 0)
    num_computed[slots] = positions
    stops = (stop_ids[slots] == tokens[:, None]).any(axis=1) & (positions >= min_position[slots])
    ends = (end_position[slots] > 0) & (positions + 1 >= end_position[slots])
    done[slots] |= stops | ends | (tokens < 0)


def cost(axes: Axes, dtype: str) -> Cost:
    """The stop ids of each row, and ten words beside them."""
    return Cost(4 * axes["rows"] * (axes["stops"] + 10), 0)


def check(axes: Axes) -> None:
    """Refuse a ring that the rows or the numbers do not fit.

    Raises:
        ValueError: they do not.
    """
    check_words("advance", axes, one=1, pair=2)
    check_ring("advance", axes["ring_steps"])
    if axes["rows"] > axes["ring_rows"]:
        raise ValueError(
            f"advance: axis 'ring_rows' is {axes['ring_rows']}, expected at least "
            f"{axes['rows']}, a word for each row"
        )


def launches(axes: Axes, dtype: str) -> tuple[Launch, ...]:
    """A warp a row."""
    rows = axes["rows"]
    return (
        Launch(
            function="advance",
            grid=(-(-rows * 32 // THREADS), 1, 1),
            block=THREADS,
            scalars=tuple(
                np.int32(size)
                for size in (rows, axes["stops"], axes["ring_steps"], axes["ring_rows"])
            ),
            programmatic=True,
        ),
    )


def _ring(steps: int, rows: int) -> Array:
    """Words of steps that never are."""
    return int32(np.full((steps, rows, 2), -3))


def _inputs(row_ids: Sequence[int], *, slots: int = 6, stops: int = 5, step: int = 5) -> Make:
    """Half of the tokens are stop ids, a third of the sequences are at their end."""

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        ids = int32(row_ids)
        stop_ids = int32(rng.integers(-1, 1000, (slots, stops)))
        stop_ids[:, stops // 2 :][stop_ids[:, stops // 2 :] % 3 == 0] = -1
        positions = int32(rng.integers(1, 50, len(ids)))
        token_ids = int32(rng.integers(0, 1000, len(ids)))
        end_position = int32(rng.choice([0, 1000], slots))
        min_position = int32(rng.choice([0, 25], slots))
        for row, slot in enumerate(row_ids):
            if row % 2 == 0:
                token_ids[row] = max(stop_ids[slot, row % stops], 0)
            if row % 3 == 0:
                end_position[slot] = positions[row] + row % 2
        return (
            int32(rng.integers(0, 999, slots)),
            int32(rng.integers(0, 40, slots)),
            int32(np.arange(slots) % 5 == 4),
            _ring(4, len(ids) + 3),
            token_ids,
            ids,
            positions,
            int32([step]),
            stop_ids,
            min_position,
            end_position,
        )

    return make


def _by_hand(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """Stop token; the same before min_position; the last token; one before it; broken; id -1."""
    return (
        int32([1, 1, 1, 1, 1, 1]),
        int32([9, 9, 9, 9, 9, 9]),
        int32([0, 0, 0, 0, 0, 0]),
        _ring(2, 6),
        int32([7, 7, 5, 5, -1, 7]),
        int32([0, 1, 2, 3, 4, -1]),
        int32([10, 10, 10, 10, 10, 10]),
        int32([3]),
        int32(np.array([[-1, 7], [7, -1], [-1, -1], [7, 8], [3, 4], [7, 7]])),
        int32([10, 11, 0, 0, 0, 0]),
        int32([0, 20, 11, 12, 0, 1]),
    )


ADVANCE = Kernel(
    name="advance",
    operands=(
        Operand("last_token", ("slots",), "int32", Access.UPDATE),
        Operand("num_computed", ("slots",), "int32", Access.UPDATE),
        Operand("done", ("slots",), "int32", Access.UPDATE),
        Operand("token_ring", ("ring_steps", "ring_rows", "pair"), "int32", Access.UPDATE),
        Operand("token_ids", ("rows",), "int32"),
        Operand("row_ids", ("rows",), "int32"),
        Operand("sample_positions", ("rows",), "int32"),
        Operand("step", ("one",), "int32"),
        Operand("stop_ids", ("slots", "stops"), "int32"),
        Operand("min_position", ("slots",), "int32"),
        Operand("end_position", ("slots",), "int32"),
    ),
    reference=reference,
    cost=cost,
    check=check,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        Case("by_hand", _by_hand),
        Case("one_row", _inputs([3])),
        Case("dead_rows", _inputs([-1, 5, -1, 0, -1])),
        Case("only_dead_rows", _inputs([-1, -1])),
        Case("numbers_wrap", _inputs([0, -1], step=-(2**31) + 3)),
        Case("many_stops", _inputs([2, 1, 0, 5], stops=80)),
        Case("many_rows", _inputs([*range(299, -1, -1)], slots=300, stops=33)),
    ),
)
