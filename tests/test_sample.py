"""SAMPLE against brute force in float64; its draws against the distributions they are to have."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_sampling_kernels import DTYPES, SEEDS, assert_same_bits

from cugraphs.kernels.adjust_logits import PROMPT_BIT, adjust_logits
from cugraphs.kernels.sample import GREEDY_BELOW_TEMPERATURE, SAMPLE, uniforms
from cugraphs.sampling_params import GREEDY_BELOW_TEMPERATURE as GREEDY_BELOW_OF_PARAMS


def no_adjustments(slots):
    """Neutral penalties, no biases, and no stop ids that come too early."""
    return (
        np.ones(slots, np.float32),
        np.zeros(slots, np.float32),
        np.zeros(slots, np.float32),
        np.full((slots, 1), -1, np.int32),
        np.zeros((slots, 1), np.float32),
        np.full((slots, 1), -1, np.int32),
        np.zeros(slots, np.int32),
    )


def sample(
    logits,
    *,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    positions=None,
    seed=(1, 2),
    sample_index=0,
    row_ids=None,
    counts=None,
    count_tokens=0,
):
    """Tokens of rows that all belong to slot 0."""
    logits = np.asarray(logits, np.float32)
    rows, vocab = logits.shape
    counts = np.zeros((1, vocab), np.int32) if counts is None else counts
    (token_ids,) = SAMPLE.reference(
        counts,
        logits,
        np.zeros(rows, np.int32) if row_ids is None else np.array(row_ids, np.int32),
        np.arange(rows, dtype=np.int32) if positions is None else np.array(positions, np.int32),
        *no_adjustments(1),
        np.array([temperature], np.float32),
        np.array([top_k], np.int32),
        np.array([top_p], np.float32),
        np.array([min_p], np.float32),
        np.array([seed], np.uint32),
        np.array([sample_index], np.int32),
        np.array([count_tokens], np.int32),
    )
    return token_ids


def softmax(values):
    peak = max(values)
    weights = [math.exp(value - peak) for value in values]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def kept_probabilities(logits, temperature, top_k, top_p, min_p):
    """Token to probability after vLLM's filters in vLLM's order, in float64 and without tricks."""
    probabilities = softmax([float(logit) / temperature for logit in logits])
    ranking = sorted(range(len(logits)), key=lambda token: (-float(logits[token]), token))
    limit = min_p * max(probabilities)
    kept = [token for token in ranking if probabilities[token] >= limit]
    if top_k > 0:
        kept = kept[:top_k]
    total = math.fsum(probabilities[token] for token in kept)
    if top_p < 1:
        nucleus, reached = [], 0.0
        for token in kept:
            nucleus.append(token)
            reached += probabilities[token] / total
            if reached >= top_p:
                break
        kept = nucleus
        total = math.fsum(probabilities[token] for token in kept)
    return {token: probabilities[token] / total for token in sorted(kept)}


def inverse_cdf(probabilities, u):
    reached = 0.0
    token = None
    for candidate, probability in probabilities.items():
        if probability > 0:
            token = candidate
            reached += probability
            if reached > u:
                break
    return token


def chi_square_is_plausible(observed, expected):
    """Whether chi-square is below its 1 - 1e-5 quantile (Wilson and Hilferty's approximation)."""
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    freedom = len(expected) - 1
    if freedom == 0:
        return statistic < 1e-9
    spread = 2 / (9 * freedom)
    return statistic < freedom * (1 - spread + 4.265 * math.sqrt(spread)) ** 3


LOGITS = (1.0, -0.5, 2.0, 0.0, 2.0, 1.3, -3.0, 0.7)


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 3},
        {"top_k": 1000},
        {"top_p": 0.7},
        {"top_p": 0.99},
        {"min_p": 0.3},
        {"min_p": 1.0},
        {"temperature": 1.5, "top_k": 5, "top_p": 0.8, "min_p": 0.1},
    ],
    ids=str,
)
def test_sampled_tokens_follow_the_filtered_distribution(filters):
    draws = 10_000
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **filters}
    probabilities = kept_probabilities(LOGITS, **full)
    tokens = sample(np.broadcast_to(np.float32(LOGITS), (draws, len(LOGITS))), **full)
    observed = np.bincount(tokens, minlength=len(LOGITS))
    assert set(np.flatnonzero(observed)) <= set(probabilities)
    expected = [probability * draws for probability in probabilities.values()]
    assert chi_square_is_plausible([observed[token] for token in probabilities], expected)


def test_the_chi_square_test_notices_a_wrong_distribution():
    draws = 10_000
    probabilities = kept_probabilities(LOGITS, 1.15, 0, 1.0, 0.0)
    tokens = sample(np.broadcast_to(np.float32(LOGITS), (draws, len(LOGITS))))
    expected = [probability * draws for probability in probabilities.values()]
    assert not chi_square_is_plausible(np.bincount(tokens, minlength=8), expected)


@given(
    SEEDS,
    st.sampled_from([1, 2, 3, 33, 300]),
    st.sampled_from([1e-3, 0.3, 1.0, 2.0, 10.0]),
    st.sampled_from([0, 2, 3, 17, 33, 300, 301, 2**31 - 1]),
    st.one_of(st.sampled_from([1.0, 1e-6, 0.5, 0.999999]), st.floats(2**-20, 1.0, width=32)),
    st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0.0, 1.0, width=32)),
    st.booleans(),
)
def test_token_is_what_brute_force_in_float64_chooses(
    seed, vocab, temperature, top_k, top_p, min_p, has_ties
):
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=3, size=(1, vocab)).astype(np.float32)
    if has_ties:
        logits = rng.integers(4, size=(1, vocab)).astype(np.float32)
    logits[rng.random((1, vocab)) < 0.1] = -np.inf
    logits[0, rng.integers(vocab)] = 2.0
    key, position, index = rng.integers(2**32, size=2), int(rng.integers(2**31)), 3
    temperature, top_p, min_p = np.array([temperature, top_p, min_p], np.float32).tolist()
    (token,) = sample(
        logits,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        positions=[position],
        seed=key,
        sample_index=index,
    )
    u = float(uniforms(np.array([key], np.uint32), np.array([position]), np.array([index]))[0])
    # Where u or a threshold is within 1e-6 of a cumulative probability, rounding decides.
    acceptable = set()
    for du, dp, dm in product((-1e-6, 0, 1e-6), (-1e-6, 0, 1e-6), (-1e-9, 0, 1e-9)):
        limit = min_p * (1 + dm) if min_p < 1 else 1.0
        p = top_p if top_p == 1 else min(max(top_p + dp, 1e-12), 1 - 1e-12)
        kept = kept_probabilities(logits[0], temperature, top_k, p, limit)
        acceptable.add(inverse_cdf(kept, min(max(u + du, 0.0), 1 - 1e-12)))
    assert token in acceptable


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 3.0])
@pytest.mark.parametrize("top_p", [0.9, 1.0])
def test_large_vocabulary_is_within_a_millionth_of_float64(scale, top_p):
    rng = np.random.default_rng(5)
    vocab, rows = 128_256, 8
    logits = (rng.normal(size=(rows, vocab)) * scale).astype(np.float32)
    tokens = sample(logits, top_p=top_p, seed=(11, 12))
    draws = uniforms(
        np.broadcast_to(np.uint32([11, 12]), (rows, 2)), np.arange(rows), np.zeros(rows)
    )
    for row, token in enumerate(tokens):
        weights = np.exp(logits[row].astype(np.float64) - logits[row].max())
        kept = np.ones(vocab, bool)
        if top_p < 1:
            order = np.lexsort((np.arange(vocab), -logits[row]))
            cumulative = np.cumsum(weights[order])
            kept[order[np.searchsorted(cumulative, top_p * cumulative[-1]) + 1 :]] = False
        cumulative = np.cumsum(np.where(kept, weights, 0))
        cumulative /= cumulative[-1]
        assert kept[token]
        assert cumulative[token] > draws[row] - 1e-6
        assert (cumulative[token - 1] if token else 0.0) < draws[row] + 1e-6


@given(SEEDS, st.integers(1, 40), st.integers(1, 5))
def test_top_k_of_one_is_temperature_zero_and_ties_go_to_the_lowest_id(seed, vocab, levels):
    rng = np.random.default_rng(seed)
    tied = rng.integers(levels, size=(3, vocab))
    logits = np.concatenate([tied, rng.normal(size=(3, vocab))]).astype(np.float32)
    greedy = sample(logits, temperature=0.0)
    assert greedy.tolist() == [row.tolist().index(row.max()) for row in logits]
    assert greedy.tolist() == sample(logits, temperature=1.5, top_k=1).tolist()
    assert greedy.tolist() == sample(logits, temperature=9e-6, top_p=0.5).tolist()
    # As greedy: a set that only the first of the order is in.
    assert greedy.tolist() == sample(logits, temperature=1.0, top_p=1e-6).tolist()


def test_temperature_limits():
    assert GREEDY_BELOW_TEMPERATURE == GREEDY_BELOW_OF_PARAMS
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(200, 50)).astype(np.float32)
    logits[np.arange(200), rng.integers(50, size=200)] = 5.0
    greedy = sample(logits, temperature=0.0).tolist()
    assert sample(logits, temperature=1e-3).tolist() == greedy
    assert sample(logits, temperature=1e-5).tolist() == greedy
    # Infinite temperature is a fair choice, -inf excepted.
    logits[:, 25:] = -np.inf
    logits[:, 0] = 0.0
    observed = np.bincount(sample(np.tile(logits, (20, 1)), temperature=1e30), minlength=50)
    assert not observed[25:].any()
    assert chi_square_is_plausible(observed[:25], [160.0] * 25)


def kept_in(draws, vocab, **filters):
    """Which tokens turn up in many draws from equal logits."""
    return set(sample(np.zeros((draws, vocab), np.float32), **filters).tolist())


def test_ties_are_kept_from_the_lowest_id():
    assert kept_in(200, 10, top_k=3) == {0, 1, 2}
    assert kept_in(200, 10, top_k=10) == set(range(10))
    # 4 of 8 equal tokens have exactly half of the probability.
    assert kept_in(200, 8, top_p=0.5) == {0, 1, 2, 3}
    assert kept_in(200, 8, top_p=0.501) == {0, 1, 2, 3, 4}
    assert kept_in(400, 8, top_p=1.0) == set(range(8))
    assert kept_in(20, 8, top_p=1e-6) == {0}
    assert kept_in(400, 8, min_p=1.0) == set(range(8))
    # top_p acts on what top_k left: half of 4.
    assert kept_in(200, 8, top_k=4, top_p=0.5) == {0, 1}
    # top_p acts on what min_p left: 3 of the 4 likely ones; of all, 0.6 would be 4.
    logits = np.tile(np.float32([1, 1, 1, 1, 0, 0, 0, 0]), (300, 1))
    assert set(sample(logits, min_p=0.5, top_p=0.6).tolist()) == {0, 1, 2}
    assert set(sample(logits, top_p=0.6).tolist()) == {0, 1, 2, 3}


def test_top_k_is_exact_where_the_temperature_makes_logits_collapse():
    # Over 1e6, these two logits differ by less than float32 can tell; their order still counts.
    logits = np.tile(np.float32([1.0, 1.0000001, 1.0000002]), (50, 1))
    assert set(sample(logits, temperature=1e6, top_k=2).tolist()) == {1, 2}


def test_min_p_keeps_a_token_exactly_on_its_threshold():
    # At temperature 1 / ln 2, one logit less is half the probability.
    logits = np.tile(np.float32([3.0, 2.0, 1.0]), (200, 1))
    half = 1 / math.log(2)
    assert set(sample(logits, temperature=half, min_p=0.5 + 1e-6).tolist()) == {0}
    assert set(sample(logits, temperature=half, min_p=0.5 - 1e-6).tolist()) == {0, 1}


def test_min_p_compares_with_a_threshold_between_two_floats():
    # The lower of two logits is the float32 nearest to the threshold: at most one of the roundings
    # down and up may keep it.
    outcomes = set()
    for min_p in np.linspace(0.3, 0.9, 20, dtype=np.float32).tolist():
        threshold = 5.0 + math.log(min_p)
        lower = np.float32(threshold)
        logits = np.tile(np.array([lower, 5.0], np.float32), (60, 1))
        is_kept = 0 in sample(logits, min_p=min_p)
        assert is_kept == (float(lower) >= threshold)
        outcomes.add(is_kept)
    assert outcomes == {True, False}


def with_uniform(monkeypatch, u):
    """Make every draw use the number u."""
    monkeypatch.setattr(
        "cugraphs.kernels.sample.uniforms", lambda seeds, *_: np.full(len(seeds), u, np.float32)
    )


def test_a_random_number_on_an_edge_belongs_to_the_next_token(monkeypatch):
    with_uniform(monkeypatch, 0.5)
    assert sample([[0.0, 0.0]]).tolist() == [1]
    assert sample([[0.0, -np.inf, 0.0]]).tolist() == [2]
    with_uniform(monkeypatch, 0.0)
    assert sample([[0.0, 0.0]]).tolist() == [0]
    assert sample([[-np.inf, -200.0, 0.0]]).tolist() == [2]


def test_the_largest_random_number_still_has_a_token(monkeypatch):
    with_uniform(monkeypatch, 1 - 2**-24)
    logits = np.random.default_rng(0).normal(size=(300, 200)).astype(np.float32)
    logits[:, 190:] = -np.inf
    for filters in ({}, {"top_p": 0.9}, {"top_k": 100}):
        tokens = sample(logits, **filters)
        assert np.isfinite(logits[np.arange(300), tokens]).all()
    # The last token that weighs anything, save for the rounding of the sums.
    assert sample(logits).min() >= 188


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_are_no_distribution_give_minus_one_and_are_not_counted(temperature):
    logits = np.zeros((6, 4), np.float32)
    logits[0, 3] = np.nan
    logits[1, 0] = np.nan
    logits[2, 1] = np.inf
    logits[3] = -np.inf
    logits[4, :3] = -np.inf
    counts = np.zeros((1, 4), np.int32)
    tokens = sample(
        logits,
        temperature=temperature,
        row_ids=[0, 0, 0, 0, 0, -1],
        counts=counts,
        count_tokens=1,
    )
    assert tokens.tolist() == [-1, -1, -1, -1, 3, 0]
    assert counts.tolist() == [[0, 0, 0, 1]]


@pytest.mark.parametrize("filters", [{}, {"top_k": 50}, {"top_p": 0.999}, {"min_p": 1e-6}], ids=str)
def test_tokens_of_minus_infinity_are_never_sampled(filters):
    logits = np.full((500, 60), -np.inf, np.float32)
    logits[:, [7, 40]] = 0.0
    assert set(sample(logits, temperature=2.0, **filters).tolist()) == {7, 40}


def test_counts_go_up_where_they_are_kept_and_the_prompt_bit_stays():
    logits = np.array([[0, 1, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]], np.float32)
    counts = np.array([[0, PROMPT_BIT + 4, 0], [5, 5, 5], [0, 0, PROMPT_BIT]], np.int32)
    one = np.ones(3, np.float32)
    (tokens,) = SAMPLE.reference(
        counts,
        logits,
        np.array([0, 2, 1, -1], np.int32),
        np.arange(4, dtype=np.int32),
        *no_adjustments(3),
        0 * one,
        np.zeros(3, np.int32),
        one,
        0 * one,
        np.zeros((3, 2), np.uint32),
        np.zeros(3, np.int32),
        np.array([1, 0, 1], np.int32),
    )
    assert tokens.tolist() == [1, 2, 1, 0]
    assert counts.tolist() == [[0, PROMPT_BIT + 5, 0], [5, 5, 5], [0, 0, PROMPT_BIT + 1]]


def test_draws_depend_on_seed_position_and_sample_index_alone():
    logits = np.zeros((1, 1000), np.float32)
    for row_count in (1, 5):
        tokens = sample(np.tile(logits, (row_count, 1)), positions=[9] * row_count, seed=(3, 4))
        assert set(tokens.tolist()) == {int(sample(logits, positions=[9], seed=(3, 4))[0])}
    # The cumulative probability is (token + 1) / 1000, so the token is the draw's first digits.
    u = uniforms(np.array([[3, 4]], np.uint32), np.array([9]), np.array([0]))[0]
    assert sample(logits, positions=[9], seed=(3, 4))[0] == int(u * 1000)


def test_draws_are_uniform_and_independent_along_every_coordinate():
    count = 4096
    steps, same = np.arange(count), np.full(count, 5)
    seeds = np.tile(np.uint32([7, 8]), (count, 1))
    neighbours, high = seeds.copy(), seeds.copy()
    neighbours[:, 0] = steps
    high[:, 1] = steps
    streams = [
        uniforms(seeds, steps, same),
        uniforms(seeds, steps, same + 1),
        uniforms(seeds, same, steps),
        uniforms(neighbours, same, same),
        uniforms(high, same, same),
    ]
    for stream in streams:
        assert stream.dtype == np.float32
        assert 0 <= stream.min() <= stream.max() < 1
        observed = np.bincount((stream * 64).astype(int), minlength=64)
        assert chi_square_is_plausible(observed, [count / 64] * 64)
        # Successive draws: correlation of independent ones has a standard deviation of 1/64.
        assert abs(np.corrcoef(stream[:-1], stream[1:])[0, 1]) < 4.5 / 64
    correlations = np.corrcoef(streams) - np.eye(len(streams))
    assert np.abs(correlations).max() < 4.5 / 64


@given(SEEDS, st.sampled_from(DTYPES))
def test_sampling_adjusts_the_logits_and_then_draws(seed, dtype):
    rng = np.random.default_rng(seed)
    case = next(case for case in SAMPLE.cases if case.name == "everything")
    counts, logits, row_ids, positions, *asked = case.make(rng, np.dtype(dtype))
    adjusted = adjust_logits(logits, row_ids, positions, counts, *asked[:7])
    neutral = no_adjustments(len(counts))
    expected_counts = counts.copy()
    expected = SAMPLE.reference(expected_counts, adjusted, row_ids, positions, *neutral, *asked[7:])
    found = SAMPLE.reference(counts, logits, row_ids, positions, *asked)
    assert_same_bits(found[0], expected[0])
    assert_same_bits(counts, expected_counts)
