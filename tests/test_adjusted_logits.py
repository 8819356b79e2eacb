"""Biases, bans and penalties of SAMPLE's logits, by hand and against a plain loop."""

import inspect
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_sampling_kernels import DTYPES, SEEDS, assert_same_bits

from cugraphs.kernels.adjust_logits import PROMPT_BIT, adjust_logits

ADJUST_NAMES = list(inspect.signature(adjust_logits).parameters)


def adjust_inputs(logits, *, slots=1, **given):
    """Neutral inputs for each row in the slot of its number, with what is given put in."""
    logits = np.asarray(logits)
    rows, vocab = logits.shape
    inputs = {
        "logits": logits,
        "row_ids": np.arange(rows) % slots,
        "sample_positions": np.full(rows, 10),
        "token_counts": np.zeros((slots, vocab)),
        "repetition_penalty": np.ones(slots, np.float32),
        "presence_penalty": np.zeros(slots, np.float32),
        "frequency_penalty": np.zeros(slots, np.float32),
        "bias_ids": np.full((slots, 4), -1),
        "bias_values": np.zeros((slots, 4), np.float32),
        "stop_ids": np.full((slots, 3), -1),
        "min_position": np.zeros(slots),
    }
    for name, value in given.items():
        assert name in inputs
        inputs[name] = value
    for name in ADJUST_NAMES[1:]:
        is_real = name.endswith(("penalty", "values"))
        inputs[name] = np.asarray(inputs[name], np.float32 if is_real else np.int32)
    return [inputs[name] for name in ADJUST_NAMES]


def adjust(logits, **given):
    return adjust_logits(*adjust_inputs(logits, **given))


def adjust_by_loop(
    logits,
    row_ids,
    positions,
    counts,
    repetition,
    presence,
    frequency,
    bias_ids,
    biases,
    stops,
    mins,
):
    """The definition, one float32 operation at a time."""
    f = np.float32
    out = np.zeros(logits.shape, f)
    for row, slot in enumerate(row_ids):
        if slot < 0:
            continue
        values = [f(value) for value in logits[row]]
        for token, bias in zip(bias_ids[slot], biases[slot], strict=True):
            if token >= 0:
                values[token] = f(values[token] + bias)
        if positions[row] < mins[slot]:
            for token in stops[slot]:
                if token >= 0:
                    values[token] = f(-math.inf)
        for token, count in enumerate(counts[slot]):
            in_prompt, times = count >= PROMPT_BIT, int(count) % PROMPT_BIT
            if in_prompt or times > 0:
                if values[token] > 0:
                    values[token] = f(values[token] / repetition[slot])
                else:
                    values[token] = f(values[token] * repetition[slot])
            values[token] = f(values[token] - f(frequency[slot] * f(times)))
            if times > 0:
                values[token] = f(values[token] - presence[slot])
        out[row] = values
    return out


def test_adjust_hand_computed():
    # Slot 0. Token 0: only bias. 1: banned, and a bias does not save it. 2: in the prompt only, so
    # only the repetition penalty. 3: generated twice. 4: both, negative. 5: untouched.
    adjusted = adjust(
        [[1.0, 5.0, 4.0, 4.0, -1.0, 0.25]],
        token_counts=[[0, 0, PROMPT_BIT, 2, PROMPT_BIT + 1, 0]],
        repetition_penalty=[2.0],
        presence_penalty=[0.5],
        frequency_penalty=[0.25],
        bias_ids=[[0, 1, 3, -1]],
        bias_values=[[10.0, 50.0, 2.0, 99.0]],
        stop_ids=[[1, -1, -1]],
        min_position=[11],
    )
    # 3: (4 + 2) / 2 - 2*0.25 - 0.5; 4: -1 * 2 - 0.25 - 0.5.
    assert adjusted.tolist() == [[11.0, -math.inf, 2.0, 2.0, -2.75, 0.25]]


def test_adjust_bans_stop_ids_only_before_min_position():
    logits = np.zeros((3, 4), np.float32)
    adjusted = adjust(logits, sample_positions=[6, 7, 8], stop_ids=[[3, 0, -1]], min_position=[7])
    assert np.isneginf(adjusted).tolist() == [[True, False, False, True], [False] * 4, [False] * 4]


@pytest.mark.parametrize("dtype", DTYPES)
def test_adjust_neutral_rows_keep_every_bit(dtype):
    special = [0.0, -0.0, 1e-6, -1e-6, math.inf, -math.inf, math.nan, 3.0]
    logits = np.array([special, special[::-1]]).astype(np.dtype(dtype))
    widened = logits.astype(np.float32)
    seen = np.full((2, 8), PROMPT_BIT + 7, np.int32)
    assert_same_bits(adjust(logits, slots=2, token_counts=seen), widened)
    # A neighbour that asks for something changes nothing, and no penalty is a neutral one: the
    # counts of a row without penalties are stale, and are not looked at.
    other = adjust(logits, slots=2, token_counts=seen, presence_penalty=[0.0, 1.0])
    assert_same_bits(other[0], widened[0])
    assert other[1, 0] == 2.0
    # Neutral members of a row that asks for another thing.
    biased = adjust(logits, slots=2, token_counts=seen, bias_ids=np.full((2, 4), [7, -1, -1, -1]))
    assert_same_bits(biased[0], widened[0])


def test_adjust_neutral_penalties_beside_an_active_one_change_nothing_else():
    logits = np.array([[1.5, -2.5, 0.0, 3.0]], np.float32)
    adjusted = adjust(logits, token_counts=[[PROMPT_BIT] * 4], presence_penalty=[2.0])
    assert_same_bits(adjusted, logits)


def test_adjust_dead_rows_are_zero_and_prompt_tokens_do_not_count_as_output():
    logits = np.full((2, 3), np.nan, np.float32)
    logits[1] = 1.0
    adjusted = adjust(
        logits,
        row_ids=[-1, 0],
        token_counts=[[PROMPT_BIT, 1, 0]],
        frequency_penalty=[0.5],
        presence_penalty=[0.25],
    )
    assert adjusted.tolist() == [[0.0, 0.0, 0.0], [1.0, 0.25, 1.0]]


@given(SEEDS, st.sampled_from(DTYPES))
def test_adjust_equals_a_plain_loop(seed, dtype):
    rng = np.random.default_rng(seed)
    slots, rows, vocab = 4, 5, int(rng.integers(1, 12))

    def maybe(neutral, values):
        return np.where(rng.random(len(values)) < 0.5, neutral, values).astype(np.float32)

    def ids(capacity):
        lists = np.full((slots, capacity), -1, np.int32)
        for slot in range(slots):
            used = int(rng.integers(min(capacity, vocab) + 1))
            lists[slot, :used] = rng.permutation(vocab)[:used]
        return lists

    counts = np.where(rng.random((slots, vocab)) < 0.5, 0, rng.integers(9, size=(slots, vocab)))
    counts += np.where(rng.random((slots, vocab)) < 0.5, PROMPT_BIT, 0)
    logits = rng.normal(scale=4, size=(rows, vocab))
    logits[rng.random((rows, vocab)) < 0.1] = -np.inf
    inputs = adjust_inputs(
        logits.astype(np.dtype(dtype)),
        slots=slots,
        row_ids=rng.integers(-1, slots, size=rows),
        sample_positions=rng.integers(6, size=rows),
        token_counts=counts,
        repetition_penalty=maybe(1, rng.uniform(0.5, 2, slots)),
        presence_penalty=maybe(0, rng.uniform(-2, 2, slots)),
        frequency_penalty=maybe(0, rng.uniform(-2, 2, slots)),
        bias_ids=ids(4),
        bias_values=rng.uniform(-100, 100, (slots, 4)),
        stop_ids=ids(3),
        min_position=rng.integers(6, size=slots),
    )
    np.testing.assert_array_equal(adjust_logits(*inputs), adjust_by_loop(*inputs))
