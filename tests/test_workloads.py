"""Workloads against the distributions that they state, and the same ones from the same seed."""

import math

import numpy as np
import pytest

from cugraphs.workloads import (
    SHAREGPT_MOST,
    SHAREGPT_OUTPUT,
    SHAREGPT_PROMPT,
    Demand,
    LogNormalLengths,
    fixed_lengths,
    make_demands,
    poisson_arrivals,
    random_prompts,
    shared_prefix_prompts,
    sharegpt_lengths,
)

COUNT = 20_000


def rng(seed=0):
    return np.random.default_rng(seed)


def normal_cdf(x):
    return (1 + math.erf(x / 2**0.5)) / 2


def assert_truncated_log_normal(values, lengths):
    """The empirical distribution function lies where it must: Kolmogorov's bound at 1 in 10,000."""

    def share_below(length):
        return normal_cdf((math.log(length) - lengths.mu) / lengths.sigma)

    low, high = share_below(lengths.least - 0.5), share_below(lengths.most + 0.5)
    allowed = 2.23 / len(values) ** 0.5
    for length in range(lengths.least, lengths.most + 1, 7):
        expected = (share_below(length + 0.5) - low) / (high - low)
        assert abs(np.mean(np.array(values) <= length) - expected) < allowed


def test_means_of_sharegpt_before_lengths_are_cut():
    """exp(mu + sigma^2 / 2), as published: 161.31 and 337.99 tokens."""
    for lengths, mean in ((SHAREGPT_PROMPT, 161.31), (SHAREGPT_OUTPUT, 337.99)):
        assert math.exp(lengths.mu + lengths.sigma**2 / 2) == pytest.approx(mean)
        uncut = LogNormalLengths(lengths.mean, lengths.sigma, least=0, most=10**9)
        # The mean of 200,000 draws is off by 1% at most: sigma of it is 0.35% for sigma 1.1.
        assert np.mean(uncut.draw(200_000, rng())) == pytest.approx(mean, rel=0.0125)


def test_sharegpt_lengths_are_log_normal_between_their_bounds():
    lengths = sharegpt_lengths(COUNT, rng(1), most=SHAREGPT_MOST)
    prompts, outputs = zip(*lengths, strict=True)
    assert len(lengths) == COUNT
    assert_truncated_log_normal(prompts, SHAREGPT_PROMPT)
    assert_truncated_log_normal(outputs, SHAREGPT_OUTPUT)
    assert min(prompts) >= 4 and max(prompts) <= 1024 and max(outputs) <= 1024
    assert abs(np.corrcoef(prompts, outputs)[0, 1]) < 0.03


def test_sharegpt_lengths_keep_to_a_small_models_limit():
    lengths = np.array(sharegpt_lengths(500, rng(2), most=100))
    assert lengths.min() >= 4 and lengths.max() <= 100
    assert all(type(n) is int for pair in sharegpt_lengths(3, rng(), most=64) for n in pair)


def test_prompts_have_their_lengths_and_use_the_whole_vocabulary():
    prompts = random_prompts([(5, 1), (3, 1)] * 200, 7, rng())
    assert [len(prompt) for prompt in prompts] == [5, 3] * 200
    assert {token for prompt in prompts for token in prompt} == set(range(7))
    assert len(set(prompts)) > 300


def test_shared_prefixes():
    lengths = [(4, 2)] * 400
    prompts = shared_prefix_prompts(lengths, 1000, rng(3), prefix_tokens=32, num_prefixes=5)
    assert all(len(prompt) == 36 for prompt in prompts)
    prefixes = [prompt[:32] for prompt in prompts]
    counts = sorted(prefixes.count(prefix) for prefix in set(prefixes))
    # Binomial(400, 1/5): 80 each, sigma 8; five sigma either way.
    assert len(counts) == 5 and counts[0] > 40 and counts[-1] < 120
    assert len({prompt[32:] for prompt in prompts}) == 400


def test_poisson_arrivals_have_exponential_gaps():
    times = np.array(poisson_arrivals(COUNT, 5.0, rng(4)))
    assert times[0] == 0 and (np.diff(times) >= 0).all()
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 5, rel=0.04)
    assert np.mean(gaps > 0.4) == pytest.approx(math.exp(-2), abs=0.012)


def test_bursts_come_together_and_keep_the_rate():
    times = poisson_arrivals(COUNT, 5.0, rng(5), burst=8)
    groups = [times[i : i + 8] for i in range(0, COUNT, 8)]
    assert all(len(set(group)) == 1 for group in groups)
    starts = np.array([group[0] for group in groups])
    assert np.diff(starts).mean() == pytest.approx(8 / 5, rel=0.08)
    assert np.diff(starts).std() == pytest.approx(8 / 5, rel=0.1)
    assert len(poisson_arrivals(10, 1.0, rng(), burst=4)) == 10
    assert poisson_arrivals(3, 1.0, rng(), burst=9) == [0.0] * 3


def test_demands_join_prompts_lengths_and_arrivals():
    demands = make_demands([(1, 2), (3,)], [(2, 7), (1, 9)], [0.0, 1.5])
    assert demands == [Demand((1, 2), 7, 0.0), Demand((3,), 9, 1.5)]
    assert [d.arrival_s for d in make_demands([(1,)] * 2, fixed_lengths(2, 1, 4))] == [0.0, 0.0]
    with pytest.raises(ValueError):
        make_demands([(1,)], [(1, 1)] * 2)


def test_the_same_seed_gives_the_same_workload():
    def all_of(seed):
        random = rng(seed)
        lengths = sharegpt_lengths(20, random, most=1024)
        prompts = shared_prefix_prompts(lengths, 50, random, prefix_tokens=4, num_prefixes=2)
        return make_demands(prompts, lengths, poisson_arrivals(20, 2.0, random, burst=3))

    assert all_of(7) == all_of(7) != all_of(8)
