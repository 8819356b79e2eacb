"""Adjust logits: biases, banned tokens and penalties, in float32, before a token is sampled.

For each live row, of the sequence in slot ``s = row_ids[r]``, in this order:

    1. l[bias_ids[s]] += bias_values[s]
    2. l[stop_ids[s]] = -inf                      while sample_position < min_position[s]
    3. l[i] = l[i] / r if l[i] > 0 else l[i] * r  for tokens in the prompt or the output
       l[i] -= frequency * count[i]               count[i]: times token i is in the output
       l[i] -= presence * (count[i] > 0)

which is vLLM's order. Neutral values (no ids, r = 1, the other penalties 0) leave every bit of a
row as it was, and a row whose penalties are all neutral does not read its token_counts. A dead row
(row id -1) is zeros; its logits may hold anything.

Rounding: widened to float32 once; every product, quotient, sum and difference above is rounded on
its own (no fused multiply-add), so that all devices give the same bits.

Sources: Keskar et al., CTRL, 2019 (repetition); the OpenAI API reference (frequency, presence,
bias); the order is that of vLLM's sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import (
    CUDA_TYPES,
    DTYPES,
    Access,
    Array,
    Axes,
    Case,
    Cost,
    Kernel,
    Launch,
    Operand,
)

from .benchmark_sizes import VOCAB
from .launch_shapes import block_threads, vector_width
from .precision import quiet

PROMPT_BIT = 1 << 30
"""Bit of a token's count that says it is in the prompt; the bits below count it in the output."""

_TOKENS_PER_THREAD = 16


@quiet
def reference(
    logits: Array,
    row_ids: Array,
    sample_positions: Array,
    token_counts: Array,
    repetition_penalty: Array,
    presence_penalty: Array,
    frequency_penalty: Array,
    bias_ids: Array,
    bias_values: Array,
    stop_ids: Array,
    min_position: Array,
) -> tuple[Array]:
    """Give each live row the biases, bans and penalties that its sequence asks for.

    Args:
        logits: T [rows, vocab].
        row_ids: int32 [rows]; the sequence's slot, -1 in dead rows.
        sample_positions: int32 [rows]; position of the token to be sampled in its sequence.
        token_counts: int32 [slots, vocab]; bits 0 to 29: times the token was generated; bit 30: it
            is in the prompt. Bit 31 is 0.
        repetition_penalty: float32 [slots], above 0; 1 is neutral.
        presence_penalty: float32 [slots]; 0 is neutral.
        frequency_penalty: float32 [slots]; 0 is neutral.
        bias_ids: int32 [slots, max_bias]; distinct ids, packed at the front, then -1.
        bias_values: float32 [slots, max_bias].
        stop_ids: int32 [slots, max_stop_ids]; packed at the front, then -1.
        min_position: int32 [slots]; first position at which a stop id may stand.

    Returns:
        adjusted, float32 [rows, vocab]; the logits themselves if they are float32 and no row asks
        for anything.
    """
    live = row_ids >= 0
    slots = row_ids if live.all() else np.where(live, row_ids, 0)
    biased = bias_ids[slots, 0] >= 0
    short = sample_positions < min_position[slots]
    penalised = repetition_penalty[slots] != 1
    penalised |= presence_penalty[slots] != 0
    penalised |= frequency_penalty[slots] != 0
    asking = (biased | short | penalised) & live

    if slots is not row_ids:
        adjusted = np.zeros(logits.shape, np.float32)
        adjusted[live] = logits[live]
    else:
        adjusted = logits.astype(np.float32, copy=bool(asking.any()))
    for row in np.flatnonzero(asking).tolist():
        slot, values = row_ids[row], adjusted[row]
        if biased[row]:
            used = np.count_nonzero(bias_ids[slot] >= 0)
            values[bias_ids[slot, :used]] += bias_values[slot, :used]
        if short[row]:
            used = np.count_nonzero(stop_ids[slot] >= 0)
            values[stop_ids[slot, :used]] = -np.inf
        if penalised[row]:
            penalties = (repetition_penalty[slot], presence_penalty[slot], frequency_penalty[slot])
            _penalise(values, token_counts[slot], *penalties)
    return (adjusted,)


def _penalise(
    values: Array,
    token_counts: Array,
    repetition: np.float32,
    presence: np.float32,
    frequency: np.float32,
) -> None:
    """Apply the three penalties to one row, in place."""
    seen = np.flatnonzero(token_counts)
    logits = values[seen]
    counts = token_counts[seen] & (PROMPT_BIT - 1)
    logits = np.where(logits > 0, logits / repetition, logits * repetition)
    logits -= frequency * counts.astype(np.float32)
    logits -= presence * (counts > 0)
    values[seen] = logits


def check(axes: Axes) -> None:
    """The lists of a slot have room for an entry.

    Raises:
        ValueError: max_bias or max_stop_ids is 0.
    """
    for axis in ("max_bias", "max_stop_ids"):
        if axes[axis] < 1:
            raise ValueError(
                f"adjust_logits: axis {axis!r} is {axes[axis]}, expected at least 1; "
                "fill unused entries with -1"
            )


def cost(axes: Axes, dtype: str) -> Cost:
    """Rows that ask for nothing: logits in, adjusted out, and no flops."""
    rows, vocab = axes["rows"], axes["vocab"]
    row_bytes = 2 * 4 + 3 * 4 + 2 * 4  # row inputs; penalties; first bias id and min_position
    return Cost(rows * (vocab * (DTYPES[dtype].itemsize + 4) + row_bytes), 0)


def launches(axes: Axes, dtype: str) -> tuple[Launch, ...]:
    """A block for each chunk of a row: 16 tokens a thread."""
    vocab = axes["vocab"]
    width = vector_width(dtype, vocab)
    threads = block_threads(-(-vocab // _TOKENS_PER_THREAD))
    template = f"{CUDA_TYPES[dtype]}, {width}, {threads}, {_TOKENS_PER_THREAD}"
    return (
        Launch(
            function=f"adjust_logits<{template}>",
            grid=(axes["rows"], -(-vocab // (threads * _TOKENS_PER_THREAD)), 1),
            block=threads,
            scalars=tuple(np.int32(axes[axis]) for axis in ("vocab", "max_bias", "max_stop_ids")),
        ),
    )


def _case(
    name: str,
    vocab: int,
    *,
    repetition: Sequence[float] = (1.0,),
    presence: Sequence[float] = (0.0,),
    frequency: Sequence[float] = (0.0,),
    biases: int = 0,
    stops: int = 0,
    banned: float = 0.0,
    rows: int = 12,
    slots: int = 8,
) -> Case:
    """Make 12 rows over 8 slots, 4 of them dead, or others; the penalties repeat over the slots.

    Args:
        name: of the case.
        vocab: tokens.
        repetition: penalty of slots 0, 1, ...
        presence: likewise.
        frequency: likewise.
        biases: most biased tokens of a slot, of a capacity of 16.
        stops: most stop ids of a slot, of a capacity of 5; about half the rows are short.
        banned: share of the tokens that have a logit of -inf.
        rows: of the step.
        slots: as many rows are live.
    """

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        row_ids = np.full(rows, -1, np.int32)
        row_ids[rng.permutation(rows)[:slots]] = rng.permutation(slots)
        logits = rng.normal(scale=3.0, size=(rows, vocab))
        logits[:, : vocab // 8] = 0.0
        logits[rng.random((rows, vocab)) < banned] = -np.inf
        logits[row_ids < 0] = np.nan
        seen = rng.random((slots, vocab)) < 0.3
        counts = np.where(seen, rng.integers(1, 9, size=(slots, vocab)), 0)
        counts |= np.where(rng.random((slots, vocab)) < 0.3, PROMPT_BIT, 0)

        def lists(capacity: int, most: int) -> Array:
            ids = np.full((slots, capacity), -1, np.int32)
            for slot in range(slots):
                used = int(rng.integers(min(most, vocab) + 1))
                ids[slot, :used] = rng.permutation(vocab)[:used]
            return ids

        def per_slot(values: Sequence[float]) -> Array:
            return np.resize(np.array(values, np.float32), slots)

        return (
            logits.astype(dtype),
            row_ids,
            rng.integers(20, size=rows, dtype=np.int32),
            counts.astype(np.int32),
            per_slot(repetition),
            per_slot(presence),
            per_slot(frequency),
            lists(16, biases),
            rng.uniform(-100, 100, size=(slots, 16)).astype(np.float32),
            lists(5, stops),
            np.full(slots, 10 if stops else 0, np.int32),
        )

    return Case(name, make)


ADJUST_LOGITS = Kernel(
    name="adjust_logits",
    operands=(
        Operand("adjusted", ("rows", "vocab"), "float32", Access.WRITE),
        Operand("logits", ("rows", "vocab"), "T"),
        Operand("row_ids", ("rows",), "int32"),
        Operand("sample_positions", ("rows",), "int32"),
        Operand("token_counts", ("slots", "vocab"), "int32"),
        Operand("repetition_penalty", ("slots",), "float32"),
        Operand("presence_penalty", ("slots",), "float32"),
        Operand("frequency_penalty", ("slots",), "float32"),
        Operand("bias_ids", ("slots", "max_bias"), "int32"),
        Operand("bias_values", ("slots", "max_bias"), "float32"),
        Operand("stop_ids", ("slots", "max_stop_ids"), "int32"),
        Operand("min_position", ("slots",), "int32"),
    ),
    reference=reference,
    cost=cost,
    check=check,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        _case("neutral", 1000),
        _case("bias", 1000, biases=16),
        _case("stops", 1000, stops=5),
        _case("repetition", 1000, repetition=(1.0, 1.3, 0.5)),
        _case("presence", 1000, presence=(0.0, 1.5, -2.0)),
        _case("frequency", 1000, frequency=(0.0, 0.1, -0.7)),
        _case(
            "everything",
            1000,
            repetition=(1.0, 1.1),
            presence=(0.0, 0.3, -0.3),
            frequency=(0.0, 0.0, 0.2, -0.2),
            biases=16,
            stops=5,
            banned=0.1,
        ),
        _case("one_token", 1, repetition=(1.2,), presence=(0.5,), frequency=(0.5,), biases=1),
        _case("two_tokens", 2, repetition=(1.2, 1.0), biases=2, stops=2),
        _case("odd_vocab", 33, repetition=(1.2, 1.0), frequency=(0.1,), biases=16, stops=5),
        _case("large_vocab", 128_256, repetition=(1.0, 1.2), biases=16, stops=5),
    ),
    benchmarks=(
        _case("64x128256_neutral", VOCAB, rows=64, slots=64),
        _case("64x128256_repetition", VOCAB, repetition=(1.2,), rows=64, slots=64),
    ),
)
