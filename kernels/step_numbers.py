"""How steps are numbered: 32 bits that wrap around, so that a number fits a word beside a token.

What is launched together, one step or several, tells the number of its first step. The device keeps
the number of the newest step that has begun.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cugraphs.kernel import Array

DEAD = -2  # in place of a token: the row was dead, or nothing was to be sampled from it


def is_before(a: Array, b: Array) -> bool:
    """Whether step ``a`` comes before step ``b``, by the shorter way round; int32 [1] each."""
    return bool((a - b)[0] < 0)


def begun_step(step: Array, first: Array) -> Array:
    """The step that begins after ``step``: the next one, or ``first`` where that is later.

    Args:
        step: int32 [1]; the newest step that has begun.
        first: int32 [1]; the first step of what was launched.
    """
    following = step + np.int32(1)
    return first if is_before(following, first) else following


def check_words(who: str, axes: Mapping[str, int], **expected: int) -> None:
    """Refuse arrays of words that have another length than they must.

    Raises:
        ValueError: an axis has.
    """
    for name, size in expected.items():
        if axes[name] != size:
            raise ValueError(f"{who}: axis {name!r} is {axes[name]}, expected {size}")


def check_ring(who: str, steps: int) -> None:
    """Refuse a ring in which a number that wraps around would jump.

    Raises:
        ValueError: it has another number of steps than a power of two.
    """
    if steps & (steps - 1):
        raise ValueError(f"{who}: axis 'ring_steps' is {steps}, expected a power of two")
