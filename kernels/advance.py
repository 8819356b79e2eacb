"""Advance: append the sampled tokens to their sequences, and mark those that are done.

For row r of slot s, whose sampled token stands at ``p = sample_positions[r]``:

    last_token[s] = token; num_computed[s] = p
    done[s] = 1 if the token is one of stop_ids[s] and p >= min_position[s] (min_tokens are made),
              or p + 1 >= end_position[s] > 0 (max_tokens are made), or the row is broken (token -1)

So the next step needs nothing from the host. A dead row (row id -1) changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import Access, Array, Axes, Case, Cost, Kernel, Launch, Operand

from .case_arrays import Make, int32

THREADS = 128  # a warp a row


def reference(
    last_token: Array,
    num_computed: Array,
    done: Array,
    token_ids: Array,
    row_ids: Array,
    sample_positions: Array,
    stop_ids: Array,
    min_position: Array,
    end_position: Array,
) -> tuple[()]:
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
    return ()


def cost(axes: Axes, dtype: str) -> Cost:
    """The stop ids of each row, and eight words beside them."""
    return Cost(4 * axes["rows"] * (axes["stops"] + 8), 0)


def launches(axes: Axes, dtype: str) -> tuple[Launch, ...]:
    """A warp a row."""
    rows = axes["rows"]
    return (
        Launch(
            function="advance",
            grid=(-(-rows * 32 // THREADS), 1, 1),
            block=THREADS,
            scalars=(np.int32(rows), np.int32(axes["stops"])),
            programmatic=True,
        ),
    )


def _inputs(row_ids: Sequence[int], *, slots: int = 6, stops: int = 5) -> Make:
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
            token_ids,
            ids,
            positions,
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
        int32([7, 7, 5, 5, -1, 7]),
        int32([0, 1, 2, 3, 4, -1]),
        int32([10, 10, 10, 10, 10, 10]),
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
        Operand("token_ids", ("rows",), "int32"),
        Operand("row_ids", ("rows",), "int32"),
        Operand("sample_positions", ("rows",), "int32"),
        Operand("stop_ids", ("slots", "stops"), "int32"),
        Operand("min_position", ("slots",), "int32"),
        Operand("end_position", ("slots",), "int32"),
    ),
    reference=reference,
    cost=cost,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        Case("by_hand", _by_hand),
        Case("one_row", _inputs([3])),
        Case("dead_rows", _inputs([-1, 5, -1, 0, -1])),
        Case("only_dead_rows", _inputs([-1, -1])),
        Case("many_stops", _inputs([2, 1, 0, 5], stops=80)),
        Case("many_rows", _inputs([*range(299, -1, -1)], slots=300, stops=33)),
    ),
)
