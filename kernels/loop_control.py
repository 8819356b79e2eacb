"""Loop control: whether there is another step of a loop over decode steps.

It is asked before the first step and after each. The loop ends where no row would be live in a
next step, where as many steps are made as were asked for, or where the host has raised ``stop_at``
to the loop's first step or a later one. Its end is told in ``loop_ends[first step % ring_steps] =
(steps made, first step)``, one word of 64 bits that the host can read while the device runs on. In
a CUDA graph it also sets the loop's condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import Access, Array, Axes, Case, Cost, Kernel, Launch, Operand

from .case_arrays import Make, int32
from .decode_rows import live_rows
from .step_numbers import check_ring, check_words, is_before

THREADS = 256


def reference(
    loop_ends: Array,
    row_ids: Array,
    num_computed: Array,
    done: Array,
    block_tables: Array,
    launch: Array,
    step: Array,
    stop_at: Array,
    *,
    block_size: int,
    begins: bool = False,
    condition: int = 0,
) -> tuple[()]:
    """Tell the end of the loop, if this is it.

    Args:
        loop_ends: int32 [ring_steps, 2], modified.
        row_ids: int32 [rows]; a slot, or -1.
        num_computed: int32 [slots]; tokens in the cache.
        done: int32 [slots]; 1 once the sequence has ended.
        block_tables: int32 [slots, max_blocks]; 0 after the last block.
        launch: int32 [2]; the loop's first step, and how many it makes at most.
        step: int32 [1]; the step that has just been made; before the first step any.
        stop_at: int32 [1]; loops that began with this step or before it end.
        block_size: tokens of a block.
        begins: this is before the loop's first step.
        condition: the handle of the loop's condition in a CUDA graph; 0 outside of one. It is 0
            before the first step.
    """
    any_live = live_rows(row_ids, num_computed, done, block_tables, block_size).any()
    made = 0 if begins else (step - launch[:1])[0] + 1
    if not any_live or made >= launch[1] or not is_before(stop_at, launch[:1]):
        loop_ends[int(launch[0]) % len(loop_ends)] = (made, launch[0])
    return ()


def check(axes: Axes, *, block_size: int, begins: bool = False, condition: int = 0) -> None:
    """Refuse words of another number. Raises ValueError."""
    check_words("loop_control", axes, pair=2, launch_words=2, one=1)
    check_ring("loop_control", axes["ring_steps"])


def cost(
    axes: Axes, dtype: str, *, block_size: int, begins: bool = False, condition: int = 0
) -> Cost:
    """Four words of each row."""
    return Cost(16 * axes["rows"], 0)


def launches(
    axes: Axes, dtype: str, *, block_size: int, begins: bool = False, condition: int = 0
) -> tuple[Launch, ...]:
    """One block."""
    sizes = (axes["rows"], axes["max_blocks"], block_size, axes["ring_steps"], int(begins))
    scalars: list[np.generic] = [*map(np.int32, sizes), np.uint64(condition)]
    return (Launch("loop_control", (1, 1, 1), THREADS, tuple(scalars), programmatic=True),)


def _inputs(
    row_ids: Sequence[int],
    *,
    step: int = 12,
    launch: tuple[int, int] = (10, 8),
    stop_at: int = 9,
    slots: int = 6,
) -> Make:
    """Slot 1 is done, 2 has no next block, 3 has a full table; the others can go on."""

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        max_blocks = 3
        num_computed = rng.integers(0, 16 * max_blocks, slots)
        num_computed[1:4] = (5, 16, 16 * max_blocks)
        block_tables = rng.integers(1, 99, (slots, max_blocks))
        block_tables[2, 1:] = 0
        return (
            int32(np.full((4, 2), -3)),
            int32(row_ids),
            int32(num_computed),
            int32(np.arange(slots) == 1),
            int32(block_tables),
            int32(launch),
            int32([step]),
            int32([stop_at]),
        )

    return make


_ATTRS = {"block_size": 16}
_BEGINS = {"block_size": 16, "begins": True}
_LAST, _FIRST = 2**31 - 1, -(2**31)  # of the numbers, as int32

LOOP_CONTROL = Kernel(
    name="loop_control",
    operands=(
        Operand("loop_ends", ("ring_steps", "pair"), "int32", Access.UPDATE),
        Operand("row_ids", ("rows",), "int32", constant=True),
        Operand("num_computed", ("slots",), "int32"),
        Operand("done", ("slots",), "int32"),
        Operand("block_tables", ("slots", "max_blocks"), "int32"),
        Operand("launch", ("launch_words",), "int32", constant=True),
        Operand("step", ("one",), "int32"),
        Operand("stop_at", ("one",), "int32", constant=True),
    ),
    reference=reference,
    cost=cost,
    check=check,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        Case("goes_on", _inputs([0]), _ATTRS),
        Case("one_of_many_goes_on", _inputs([-1, 1, 2, 3, 0, -1]), _ATTRS),
        Case("done", _inputs([1]), _ATTRS),
        Case("no_block", _inputs([2]), _ATTRS),
        Case("full_table", _inputs([3]), _ATTRS),
        Case("none_is_live", _inputs([3, -1, 1, 2]), _ATTRS),
        Case("one_step_left", _inputs([0], step=16), _ATTRS),
        Case("all_steps_made", _inputs([0], step=17), _ATTRS),
        Case("one_step", _inputs([0], step=10, launch=(10, 1)), _ATTRS),
        Case("stopped", _inputs([0], stop_at=10), _ATTRS),
        Case("stopped_with_later_ones", _inputs([0], stop_at=40), _ATTRS),
        Case("wraps", _inputs([0], step=_FIRST + 1, launch=(_LAST, 9), stop_at=_LAST - 1), _ATTRS),
        Case(
            "stopped_at_the_wrap",
            _inputs([0], step=_LAST, launch=(_LAST, 9), stop_at=_FIRST),
            _ATTRS,
        ),
        Case("begins", _inputs([0], step=3), _BEGINS),
        Case("begins_after_later_steps", _inputs([0], step=30), _BEGINS),
        Case("none_begins", _inputs([1, 2], step=9), _BEGINS),
        Case("stopped_before_it_begins", _inputs([0], step=9, stop_at=10), _BEGINS),
        Case("last_of_300", _inputs([1] * 299 + [5]), _ATTRS),
        Case("none_of_300", _inputs([1] * 300), _ATTRS),
        Case("block_size_8", _inputs([2, 4]), {"block_size": 8}),
    ),
)
