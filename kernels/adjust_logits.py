"""Adjusted logits: biases, banned tokens and penalties, in float32, before a token is sampled.

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
its own (no fused multiply-add), so that all devices give the same bits. On a GPU it happens on the
way into registers (``row_chunks.cuh``), in every launch of SAMPLE that reads the row.

Sources: Keskar et al., CTRL, 2019 (repetition); the OpenAI API reference (frequency, presence,
bias); the order is that of vLLM's sampler.
"""

from __future__ import annotations

import numpy as np

from cugraphs.kernel import Array

from .precision import quiet

PROMPT_BIT = 1 << 30
"""Bit of a token's count that says it is in the prompt; the bits below count it in the output."""


@quiet
def adjust_logits(
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
) -> Array:
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
    return adjusted


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
