"""LOGPROBS by hand, and against float64 and brute force."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from test_sampling_kernels import DTYPES, SEEDS

from cugraphs.kernels.logprobs import LOGPROBS


def logprobs(logits, token_ids, *, targets=None, wanted=0, columns=20):
    logits = np.asarray(logits)
    rows = len(logits)
    return LOGPROBS.reference(
        logits,
        np.array(token_ids, np.int32),
        np.full(rows, -1, np.int32) if targets is None else np.array(targets, np.int32),
        np.broadcast_to(np.array(wanted, np.int32), (rows,)),
        max_logprobs=columns,
    )


def test_logprobs_hand_computed():
    # Probabilities 1/2, 1/8, 1/4, 1/8.
    logits = np.log(np.array([[4.0, 1.0, 2.0, 1.0]], np.float32)) + 3
    value, rank, ids, values = logprobs(logits, [3], wanted=4, columns=5)
    np.testing.assert_allclose(value, np.log([1 / 8]), rtol=1e-6)
    assert rank.tolist() == [4]
    assert ids.tolist() == [[0, 2, 1, 3, -1]]
    np.testing.assert_allclose(values, [[*np.log([1 / 2, 1 / 4, 1 / 8, 1 / 8]), 0]], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", *DTYPES])
@given(seed=SEEDS)
def test_logprobs_equal_float64_and_brute_force_ranks(dtype, seed):
    rng = np.random.default_rng(seed)
    rows, vocab = 4, int(rng.integers(1, 60))
    logits = rng.normal(scale=rng.choice([1e-3, 1.0, 30.0]), size=(rows, vocab))
    if rng.random() < 0.5:
        logits = rng.integers(4, size=(rows, vocab)).astype(np.float64)
    logits[rng.random((rows, vocab)) < 0.1] = -np.inf
    logits[:, 0] = 0.5
    logits = logits.astype(np.dtype(dtype))
    sampled, given_targets = rng.integers(vocab, size=rows), rng.integers(-1, vocab, size=rows)
    wanted = rng.integers(0, 21, size=rows)
    value, rank, ids, values = logprobs(logits, sampled, targets=given_targets, wanted=wanted)
    for row in range(rows):
        exact = logits[row].astype(np.float64)
        exact = exact - exact.max()
        exact = exact - math.log(math.fsum(np.exp(exact)))
        ranking = sorted(range(vocab), key=lambda token: (-exact[token], token))
        target = given_targets[row] if given_targets[row] >= 0 else sampled[row]
        np.testing.assert_allclose(value[row], exact[target], rtol=1e-6, atol=1e-6)
        assert ranking[rank[row] - 1] == target
        count = min(wanted[row], vocab)
        assert ids[row].tolist() == ranking[:count] + [-1] * (20 - count)
        np.testing.assert_allclose(
            values[row, :count], exact[ranking[:count]], rtol=1e-6, atol=1e-6
        )
        assert not values[row, count:].any()


def test_logprobs_of_a_large_vocabulary_sum_to_one():
    logits = np.random.default_rng(0).normal(size=(1, 128_256)).astype(np.float32)
    exact = logits[0].astype(np.float64)
    exact -= np.log(np.sum(np.exp(exact)))
    for token in (0, 77, 128_255):
        value, rank, _, _ = logprobs(logits, [token])
        np.testing.assert_allclose(value, exact[token], rtol=1e-6)
        assert rank[0] == 1 + np.count_nonzero(exact > exact[token])


def test_logprobs_of_rows_that_want_none_or_have_no_target():
    logits = np.array([[0.0, 1.0], [np.nan, 1.0], [0.0, 1.0]], np.float32)
    value, rank, ids, values = logprobs(logits, [1, 1, -1], wanted=[-1, -1, 2], columns=2)
    assert value.tolist() == [0.0] * 3
    assert rank.tolist() == [0] * 3
    assert ids.tolist() == [[-1, -1]] * 3
    assert values.tolist() == [[0.0, 0.0]] * 3
    # A given target needs no sampled token, and may be one that cannot be sampled.
    value, rank, _, _ = logprobs([[0.0, -np.inf]], [-1], targets=[1])
    assert value.tolist() == [-math.inf]
    assert rank.tolist() == [2]


def test_logprobs_of_rows_that_are_no_distribution_are_nan():
    logits = np.array([[0.0, np.nan], [np.inf, 0.0], [-np.inf, -np.inf], [0.0, 0.0]], np.float32)
    value, rank, ids, values = logprobs(logits, [0] * 4, wanted=1, columns=1)
    np.testing.assert_allclose(value, [math.nan, math.nan, math.nan, math.log(0.5)], rtol=1e-6)
    assert rank.tolist() == [0, 0, 0, 1]
    assert ids.tolist() == [[-1], [-1], [-1], [0]]
    assert values[:3].tolist() == [[0.0]] * 3


def test_bfloat16_logits_are_widened_not_rounded_again():
    logits = np.array([[0.0, 1.0, 2.0]], ml_dtypes.bfloat16)
    value, _, _, _ = logprobs(logits, [1])
    assert value[0] == pytest.approx(1 - math.log(1 + math.e + math.e**2), rel=1e-6)
