"""Greedy sampling: ``token_ids[r] = argmax(logits[r])``; a tie goes to the lowest id.

A row that holds a NaN gives -1, so that a broken model is reported and not decoded. Nothing is
rounded: widening to float32 keeps the order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cugraphs.kernel import DTYPES, Access, Array, Axes, Case, Cost, Kernel, Operand

from .case_arrays import Make, normal
from .precision import widen


def reference(logits: Array) -> tuple[Array]:
    """Pick the most likely token of each row.

    Args:
        logits: T [rows, vocab].

    Returns:
        int32 [rows]; -1 where the row holds a NaN.
    """
    wide = widen(logits)
    token_ids = wide.argmax(axis=-1)  # the first NaN of a row counts as its largest value
    chosen = wide[np.arange(len(wide)), token_ids]
    broken = chosen != chosen
    if broken.any():
        token_ids[broken] = -1
    return (token_ids.astype(np.int32),)


def cost(axes: Axes, dtype: str) -> Cost:
    """Every logit is read once and compared once."""
    rows, vocab = axes["rows"], axes["vocab"]
    return Cost(rows * vocab * DTYPES[dtype].itemsize + 4 * rows, rows * vocab)


def _inputs(rows: int, vocab: int) -> Make:
    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        return (normal(rng, dtype, (rows, vocab)),)

    return make


def _ties(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """The largest logit at several ids, far apart and side by side; and a row of equal logits."""
    logits = np.minimum(normal(rng, dtype, (5, 3000)), 2).astype(dtype)
    for row, ids in enumerate(([2999, 5], [0, 2999], [1023, 1024], [7, 8, 9, 2000])):
        logits[row, ids] = 4
    logits[4] = -1.5
    return (logits,)


def _not_a_number(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """NaN first, last, before and after the largest logit; negative NaN; a row without."""
    logits = normal(rng, dtype, (6, 500))
    logits[:, 250] = 9
    logits[0, 0] = logits[1, 499] = logits[2, 249] = logits[3, 251] = np.nan
    logits[4, 100] = -np.nan
    return (logits,)


def _infinite(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """Masked logits are -inf: all but one, all, and one +inf."""
    logits = np.full((3, 200), -np.inf, dtype)
    logits[0, 123] = -5
    logits[2, 77] = np.inf
    return (logits,)


def _all_negative(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    return ((-1 - abs(normal(rng, dtype, (4, 333)))).astype(dtype),)


GREEDY_SAMPLE = Kernel(
    name="greedy_sample",
    operands=(
        Operand("token_ids", ("rows",), "int32", Access.WRITE),
        Operand("logits", ("rows", "vocab"), "T"),
    ),
    reference=reference,
    cost=cost,
    cases=(
        Case("one_row", _inputs(1, 100)),
        Case("odd", _inputs(7, 1001)),
        Case("one_token", _inputs(3, 1)),
        Case("large_vocabulary", _inputs(2, 49152)),
        Case("ties", _ties),
        Case("not_a_number", _not_a_number),
        Case("infinite", _infinite),
        Case("all_negative", _all_negative),
    ),
)
