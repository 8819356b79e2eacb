"""Apply changes: ``words[index] = value`` for each (index, value) that the host sends for a step.

``words`` is all of the sequence state seen as 32-bit words, so one kernel writes every field of a
new sequence, a new block of a table, or a flag. A float's word is its bits. A negative index is no
change. No index occurs twice: which of two values stays would be chance.

Several steps may be launched together and find the same changes. Only the first of them applies
them: ``step``, the newest step that has begun, is still before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import Access, Array, Axes, Case, Cost, Kernel, Launch, Operand

from .case_arrays import Make, int32
from .step_numbers import check_words, is_before

THREADS = 256


def reference(words: Array, changes: Array, launch: Array, step: Array) -> tuple[()]:
    """Store the changed words.

    Args:
        words: int32 [words], modified.
        changes: int32 [changes, 2]; (index, value), the index negative where there is no change.
        launch: int32 [2]; the number of the first step that was launched, and how many were.
        step: int32 [1]; the number of the newest step that has begun.
    """
    if is_before(step, launch[:1]):
        changed = changes[changes[:, 0] >= 0]
        words[changed[:, 0]] = changed[:, 1]
    return ()


def check(axes: Axes) -> None:
    """A change is an index and a value.

    Raises:
        ValueError: it has another number of words than 2.
    """
    if axes["pair"] != 2:
        raise ValueError(
            f"apply_changes: axis 'pair' of changes is {axes['pair']}, expected 2: (index, value)"
        )
    check_words("apply_changes", axes, launch_words=2, one=1)


def cost(axes: Axes, dtype: str) -> Cost:
    """Reads the changes, writes a word for each."""
    return Cost(12 * axes["changes"], 0)


def launches(axes: Axes, dtype: str) -> tuple[Launch, ...]:
    """A thread a change."""
    changes = axes["changes"]
    return (
        Launch(
            "apply_changes",
            (-(-changes // THREADS), 1, 1),
            THREADS,
            (np.int32(changes),),
            programmatic=True,
        ),
    )


def _inputs(words: int, indices: Sequence[int], *, step: int = 6, first: int = 7) -> Make:
    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        values = rng.integers(-(2**31), 2**31, (len(indices), 2), dtype=np.int32)
        values[:, 0] = indices
        return int32(np.arange(words)), values, int32([first, 3]), int32([step])

    return make


APPLY_CHANGES = Kernel(
    name="apply_changes",
    operands=(
        Operand("words", ("words",), "int32", Access.UPDATE),
        Operand("changes", ("changes", "pair"), "int32"),
        Operand("launch", ("launch_words",), "int32"),
        Operand("step", ("one",), "int32"),
    ),
    reference=reference,
    cost=cost,
    check=check,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        Case("first_and_last", _inputs(50, [49, 0])),
        Case("some", _inputs(1000, [7, -1, 999, -1, 500, -1])),
        Case("none", _inputs(3, [-1, -1])),
        Case("one_word", _inputs(1, [0])),
        Case("second_step", _inputs(50, [4, 0], step=7)),
        Case("after_a_gap", _inputs(50, [4, 0], step=2)),
        Case("numbers_wrap", _inputs(50, [4, 0], step=2**31 - 1, first=-(2**31) + 5)),
        Case("second_step_after_the_wrap", _inputs(50, [4], step=-(2**31), first=2**31 - 1)),
        Case("many", _inputs(3000, [*range(0, 3000, 3), *[-1] * 40, 1, 2])),
    ),
)
