"""Rotary embedding against published formulas in plain floats, and against Hugging Face's."""

import dataclasses
import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from cugraphs.models.hf_rope import rope_from_hf
from cugraphs.models.rope import RopeConfig, cos_sin_table, inverse_frequencies

POSITIONS = (1, 8_191, 8_192, 100_000)

LLAMA_3_1 = RopeConfig(
    "llama3",
    theta=500_000.0,
    factor=8.0,
    original_max_position_embeddings=8192,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
)
LLAMA_3_2 = dataclasses.replace(LLAMA_3_1, factor=32.0)
YARN_LLAMA_2_64K = RopeConfig(
    "yarn", theta=10_000.0, factor=16.0, original_max_position_embeddings=4096
)
YARN_EXPLICIT = RopeConfig(
    "yarn",
    theta=1_000_000.0,
    factor=4.0,
    original_max_position_embeddings=8192,
    attention_factor=1.25,
    beta_fast=16.0,
    beta_slow=2.0,
    truncate=False,
)


def llama3_by_branches(rope: RopeConfig, head_dim: int) -> list[float]:
    """`apply_scaling` as Meta published it with Llama 3.1, one frequency at a time."""
    result = []
    for i in range(0, head_dim, 2):
        frequency = 1.0 / rope.theta ** (i / head_dim)
        wavelength = 2 * math.pi / frequency
        if wavelength < rope.original_max_position_embeddings / rope.high_freq_factor:
            result.append(frequency)
        elif wavelength > rope.original_max_position_embeddings / rope.low_freq_factor:
            result.append(frequency / rope.factor)
        else:
            smooth = rope.original_max_position_embeddings / wavelength - rope.low_freq_factor
            smooth /= rope.high_freq_factor - rope.low_freq_factor
            result.append((1 - smooth) * frequency / rope.factor + smooth * frequency)
    return result


def yarn_by_branches(rope: RopeConfig, head_dim: int) -> list[float]:
    """The YaRN authors' ramp, one pair at a time: kept, then mixed, then interpolated."""
    length, base = rope.original_max_position_embeddings, rope.theta
    # Pair d has wavelength 2 pi base**(2 d / head_dim); solved for the d that makes r turns.
    first = head_dim / 2 * math.log(length / (2 * math.pi * rope.beta_fast), base)
    last = head_dim / 2 * math.log(length / (2 * math.pi * rope.beta_slow), base)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    assert 0 < first < last < head_dim / 2, "the cases below are inside both clips"
    result = []
    for d in range(head_dim // 2):
        frequency = base ** (-2 * d / head_dim)
        if d <= first:
            result.append(frequency)
        elif d >= last:
            result.append(frequency / rope.factor)
        else:
            gamma = (last - d) / (last - first)
            result.append(gamma * frequency + (1 - gamma) * frequency / rope.factor)
    return result


PUBLISHED = [
    pytest.param(LLAMA_3_1, 128, llama3_by_branches, 1.0, id="llama_3_1"),
    pytest.param(LLAMA_3_2, 64, llama3_by_branches, 1.0, id="llama_3_2"),
    pytest.param(
        YARN_LLAMA_2_64K, 128, yarn_by_branches, 0.1 * math.log(16) + 1, id="yarn_llama_2_64k"
    ),
    pytest.param(YARN_EXPLICIT, 128, yarn_by_branches, 1.25, id="yarn_explicit"),
]


@pytest.mark.parametrize(("rope", "head_dim", "formula", "scaling"), PUBLISHED)
def test_frequencies_and_table_follow_the_published_formula(rope, head_dim, formula, scaling):
    expected = formula(rope, head_dim)
    frequencies, attention_scaling = inverse_frequencies(rope, head_dim)
    assert frequencies.dtype == np.float64
    np.testing.assert_allclose(frequencies, expected, rtol=1e-13)
    assert attention_scaling == pytest.approx(scaling, rel=1e-14)

    table = cos_sin_table(rope, head_dim, max(POSITIONS) + 1)
    assert table.dtype == np.float32
    assert table.shape == (max(POSITIONS) + 1, head_dim)
    for position in POSITIONS:
        row = [scaling * math.cos(position * f) for f in expected]
        row += [scaling * math.sin(position * f) for f in expected]
        # Half a unit in the last place of float32 below 2 is 6e-8.
        np.testing.assert_allclose(table[position], row, rtol=0, atol=8e-8)


def test_llama3_cases_reach_all_three_branches():
    plain, _ = inverse_frequencies(RopeConfig(theta=500_000.0), 128)
    ratio = inverse_frequencies(LLAMA_3_1, 128)[0] / plain
    assert ratio[0] == 1.0
    assert ratio[-1] == 1 / 8
    assert np.any((ratio > 1 / 8) & (ratio < 1))
    assert np.all(np.diff(ratio) <= 0)


@pytest.mark.parametrize("rope", [YARN_LLAMA_2_64K, YARN_EXPLICIT])
def test_yarn_keeps_and_divides_where_the_paper_does(rope):
    """Above beta turns over the original context nothing changes, below alpha all is divided."""
    plain, _ = inverse_frequencies(RopeConfig(theta=rope.theta), 128)
    turns = rope.original_max_position_embeddings * plain / (2 * math.pi)
    ratio = inverse_frequencies(dataclasses.replace(rope, truncate=False), 128)[0] / plain
    np.testing.assert_allclose(ratio[turns > rope.beta_fast], 1.0)
    np.testing.assert_allclose(ratio[turns < rope.beta_slow], 1 / rope.factor)
    between = (turns < rope.beta_fast) & (turns > rope.beta_slow)
    assert between.sum() > 3
    assert np.all((ratio[between] < 1) & (ratio[between] > 1 / rope.factor))


def test_yarn_mscale_of_both_kinds():
    """DeepSeek-V2's ratio: (0.1 m ln s + 1) / (0.1 m_all ln s + 1)."""
    rope = dataclasses.replace(YARN_LLAMA_2_64K, mscale=1.0, mscale_all_dim=0.707)
    log = math.log(16.0)
    assert inverse_frequencies(rope, 128)[1] == pytest.approx(
        (0.1 * log + 1) / (0.0707 * log + 1), rel=1e-14
    )
    only_one = dataclasses.replace(YARN_LLAMA_2_64K, mscale=0.707, mscale_all_dim=0.0)
    assert inverse_frequencies(only_one, 128)[1] == pytest.approx(0.1 * log + 1, rel=1e-14)


def test_yarn_whose_ramp_has_no_width_is_a_step():
    """Both ends on pair 1: 16 turns of a wavelength of 10 tokens in 160."""
    turns = 160 / (2 * math.pi * 10.0)  # head_dim 4, theta 100: pair 1 has wavelength 20 pi
    rope = RopeConfig(
        "yarn",
        theta=100.0,
        factor=4.0,
        original_max_position_embeddings=160,
        beta_fast=turns,
        beta_slow=turns,
        truncate=False,
    )
    frequencies, _ = inverse_frequencies(rope, 4)
    assert np.all(np.isfinite(frequencies))
    assert frequencies[0] == 1.0
    assert 0.1 / 4 <= frequencies[1] <= 0.1 * (1 + 1e-12)


def test_default_linear_and_dynamic_by_hand():
    """theta 10,000 and head_dim 8 give powers of ten."""
    powers = [1.0, 0.1, 0.01, 0.001]
    np.testing.assert_allclose(inverse_frequencies(RopeConfig(), 8)[0], powers, rtol=1e-14)
    linear = RopeConfig("linear", factor=4.0)
    np.testing.assert_allclose(
        inverse_frequencies(linear, 8)[0], [p / 4 for p in powers], rtol=1e-14
    )
    dynamic = RopeConfig("dynamic", factor=2.0, original_max_position_embeddings=2048)
    np.testing.assert_allclose(inverse_frequencies(dynamic, 8)[0], powers, rtol=1e-14)
    for rope in (RopeConfig(), linear, dynamic):
        assert inverse_frequencies(rope, 8)[1] == 1.0


@pytest.mark.parametrize("num_positions", [1, 2, 511, 512, 513, 1024, 1300])
@pytest.mark.parametrize("head_dim", [2, 10, 64])
def test_table_has_every_position_whatever_its_length(num_positions, head_dim):
    rope = RopeConfig(theta=500.0)
    frequencies, _ = inverse_frequencies(rope, head_dim)
    angles = np.arange(num_positions)[:, np.newaxis] * frequencies
    expected = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    table = cos_sin_table(rope, head_dim, num_positions)
    assert table.shape == (num_positions, head_dim)
    assert table.flags.c_contiguous
    np.testing.assert_allclose(table, expected, rtol=0, atol=6e-8)


def test_table_of_a_long_context_takes_little_beside_itself():
    tracemalloc.start()
    try:
        table = cos_sin_table(LLAMA_3_2, 64, 131_072)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes - table.nbytes < 8 << 20


def golden_names() -> list[str]:
    """Names in the golden's description, at collection; a missing file fails the test instead."""
    path = Path(__file__).parent / "goldens" / "rope_frequencies.json"
    return sorted(json.loads(path.read_text())) if path.exists() else ["missing"]


@pytest.mark.parametrize("name", golden_names())
def test_frequencies_match_hugging_face(name, goldens):
    """transformers computes in float32: a few units in the last place of a power."""
    config = json.loads((goldens / "rope_frequencies.json").read_text())[name]
    with np.load(goldens / "rope_frequencies.npz") as stored:
        expected = stored[f"{name}/inv_freq"]
        expected_scaling = float(stored[f"{name}/attention_scaling"])
    rope = rope_from_hf(config, config["max_position_embeddings"])
    frequencies, scaling = inverse_frequencies(rope, config["head_dim"])
    np.testing.assert_allclose(frequencies, expected, rtol=1e-6)
    assert scaling == pytest.approx(expected_scaling, rel=1e-12)


BAD = [
    ({"rope_type": "longrope"}, 'rope_type is "longrope", expected one of default, linear'),
    ({"theta": 0.0}, "theta is 0.0, expected a number from 1 to 1e+15"),
    ({"theta": float("nan")}, "theta is nan, expected a number"),
    ({"rope_type": "linear", "factor": 0.5}, "factor is 0.5, expected a number from 1 to 1e+06"),
    ({"rope_type": "linear", "factor": True}, "factor is true, expected a number"),
    ({"factor": 8.0}, "factor is 8.0, expected none for rope_type default"),
    ({"rope_type": "linear", "beta_fast": 3.0}, "beta_fast is 3.0, expected none for rope_type"),
    ({"rope_type": "dynamic"}, "original_max_position_embeddings is null, expected a positive"),
    (
        {
            "rope_type": "llama3",
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 4.0,
            "high_freq_factor": 4.0,
        },
        "high_freq_factor is 4.0, expected more than low_freq_factor, 4.0",
    ),
    (
        {"rope_type": "yarn", "original_max_position_embeddings": 64, "beta_slow": 33.0},
        "beta_fast is 32.0, expected at least beta_slow, 33.0",
    ),
    (
        {"rope_type": "yarn", "original_max_position_embeddings": 64, "truncate": 1},
        "truncate is 1, expected true or false",
    ),
    (
        {"rope_type": "yarn", "original_max_position_embeddings": 64, "attention_factor": 0},
        "attention_factor is 0, expected a number from 1e-06",
    ),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_parameters_are_refused(values, message):
    with pytest.raises(ValueError) as error:
        RopeConfig(**values)
    assert str(error.value).startswith(f"RopeConfig: {message}")


def test_sizes_that_make_no_table_are_refused():
    for head_dim in (0, 7):
        with pytest.raises(ValueError, match=f"head_dim is {head_dim}, expected an even number"):
            inverse_frequencies(RopeConfig(), head_dim)
    with pytest.raises(ValueError, match="num_positions is 0, expected 1 or more"):
        cos_sin_table(RopeConfig(), 8, 0)
