"""Sizes of mixed steps are few, never too small, and never beyond what was planned."""

from types import SimpleNamespace

import numpy as np
import pytest
from tiny_model import write_tiny_model

from cugraphs import LLM, SamplingParams
from cugraphs.mixed_sizes import round_rows, round_tokens


@pytest.mark.parametrize(
    ("rows", "rounded"),
    [(0, 1), (1, 1), (2, 2), (3, 4), (33, 64), (64, 64), (65, 128), (129, 192), (256, 256)],
)
def test_rows(rows, rounded):
    assert round_rows(rows, 512) == rounded


@pytest.mark.parametrize(
    ("tokens", "rounded"),
    [(1, 32), (129, 160), (256, 256), (257, 288), (513, 544), (1023, 1024), (1025, 1088)],
)
def test_tokens(tokens, rounded):
    assert round_tokens(tokens, 2048) == rounded


@pytest.mark.parametrize("most", [1, 100, 257, 2048, 8192])
def test_nothing_is_too_small_or_beyond_the_plan(most):
    tokens = [round_tokens(n, most) for n in range(1, most + 1)]
    assert all(n <= found <= most for n, found in enumerate(tokens, start=1))
    assert all(found - n < max(32, n / 16 + 1) for n, found in enumerate(tokens, start=1))
    assert tokens == sorted(tokens)
    rows = [round_rows(n, most) for n in range(1, most + 1)]
    assert all(n <= found <= most for n, found in enumerate(rows, start=1))
    assert all(found < 2 * n and found - n < 64 for n, found in enumerate(rows, start=1))


def test_sizes_are_few():
    assert len({round_tokens(n, 2048) for n in range(129, 2049)}) == 4 + 8 + 16 + 16
    assert len({round_rows(n, 256) for n in range(1, 257)}) == 7 + 3


def test_answers_are_the_same_at_rounded_sizes(tmp_path, monkeypatch):
    """Prompts of all lengths beside rows that decode, with log-probabilities of both."""
    options = {"device": "cpu", "max_num_seqs": 6, "batch_invariant": True}
    folder = write_tiny_model(tmp_path / "tiny")
    exact, rounded = (LLM(folder, max_num_batched_tokens=90, **options) for _ in range(2))
    as_on_a_gpu = SimpleNamespace(shares_host_memory=False)
    monkeypatch.setattr(rounded.runner.mixed, "_device", as_on_a_gpu)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(5, 160, size).tolist() for size in (1, 3, 40, 77, 100, 130, 2, 64, 90)]
    params = [
        SamplingParams(seed=n, max_tokens=3 + n, logprobs=2, prompt_logprobs=[None, 1][n % 2])
        for n in range(len(prompts))
    ]
    expected = exact.generate(prompts, params)
    for _ in range(2):
        for found, wanted in zip(rounded.generate(prompts, params), expected, strict=True):
            assert found.outputs == wanted.outputs
            assert found.prompt_logprobs == wanted.prompt_logprobs
    assert rounded.stats().padding_rows > exact.stats().padding_rows
