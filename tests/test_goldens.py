"""Whole models against Hugging Face transformers: stored logits and greedy tokens."""

from pathlib import Path

import numpy as np
import pytest
from model_runs import CheckpointRun

GOLDENS = Path(__file__).parent / "goldens"
VARIANTS = sorted(path.parent.name for path in GOLDENS.glob("*/golden.npz"))


def golden(folder: Path) -> tuple[list[list[int]], list[list[int]], list[np.ndarray]]:
    data = np.load(folder / "golden.npz")
    count = sum(name.startswith("prompt_") for name in data)
    prompts = [data[f"prompt_{i}"].tolist() for i in range(count)]
    greedy = [data[f"greedy_{i}"].tolist() for i in range(count)]
    return prompts, greedy, [data[f"logits_{i}"] for i in range(count)]


def test_the_variants_that_public_checkpoints_come_in_are_there() -> None:
    expected = "mha gqa mqa head_dim head_dim_odd untied tied_embed_only tied_head_only tied_both"
    expected += " rope_default_v5 rope_llama3 rope_llama3_v5 rope_linear rope_yarn rope_dynamic"
    expected += " attention_bias mlp_bias sharded f16 bf16 mistral"
    assert set(expected.split()) <= set(VARIANTS)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_of_every_position(variant: str) -> None:
    _, greedy, logits = golden(GOLDENS / variant)
    run = CheckpointRun(GOLDENS / variant, max_model_len=40)
    _, actual = run.prefill(greedy)
    for i, expected in enumerate(logits):
        np.testing.assert_allclose(actual[i], expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_greedy_tokens_decoded_together(variant: str, batch_invariant: bool) -> None:
    prompts, greedy, _ = golden(GOLDENS / variant)
    run = CheckpointRun(GOLDENS / variant, max_model_len=40, batch_invariant=batch_invariant)
    count = len(greedy[0]) - len(prompts[0])
    assert run.greedy(prompts, count) == greedy


@pytest.mark.parametrize("variant", ["gqa", "rope_llama3"])
def test_decode_logits_from_the_first_token_on(variant: str) -> None:
    """A cache that decode steps alone have filled gives what one pass over the text gives."""
    _, greedy, logits = golden(GOLDENS / variant)
    run = CheckpointRun(GOLDENS / variant, max_model_len=40)
    for length in range(1, min(map(len, greedy)) + 1):
        _, actual = run.decode([tokens[:length] for tokens in greedy])
        for row, expected in enumerate(logits):
            np.testing.assert_allclose(actual[row], expected[length - 1], atol=2e-4, rtol=0)
