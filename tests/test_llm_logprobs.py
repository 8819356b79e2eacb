"""Log-probabilities of answers and prompts are those of float64."""

import numpy as np
import pytest
from llm_answers import GREEDY, logits_at_every_position
from tiny_model import BOS

from cugraphs import LLM, SamplingParams


@pytest.mark.parametrize("wanted", [0, 1, 5, 20])
def test_logprobs_against_float64(llm, plain_run, wanted):
    params = SamplingParams(
        seed=3, temperature=1.4, max_tokens=12, ignore_eos=True, logprobs=wanted
    )
    output = llm.generate("The cat", params)[0]
    answer = output.outputs[0]
    tokens = [*output.prompt_token_ids, *answer.token_ids]
    expected = log_softmax(logits_at_every_position(plain_run, tokens))
    expected = expected[len(output.prompt_token_ids) - 1 : -1]
    assert len(answer.logprobs) == len(answer.token_ids) == 12
    assert output.prompt_logprobs is None
    for row, token, found in zip(expected, answer.token_ids, answer.logprobs, strict=True):
        check_logprobs(llm, row, token, found, wanted)


@pytest.mark.parametrize("length", [1, 2, 64, 65, 66, 90])
@pytest.mark.parametrize("wanted", [0, 3])
def test_prompt_logprobs_against_float64(llm, plain_run, length, wanted):
    prompt = [BOS, *np.random.default_rng(length).integers(5, 160, length - 1).tolist()]
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=wanted, n=2)
    output = llm.generate([prompt], params)[0]
    check_prompt_logprobs(llm, plain_run, prompt, output, wanted)
    assert output.outputs[0].logprobs is None
    assert output.outputs[0].token_ids == output.outputs[1].token_ids


def test_prompt_logprobs_under_preemption_and_beside_others(folder, plain_run):
    """Long prompts in chunks, thrown out of a small cache on the way: still once per token."""
    tight = LLM(folder, max_num_seqs=6, max_model_len=96, num_kv_blocks=14, batch_invariant=True)
    rng = np.random.default_rng(0)
    prompts = [[BOS, *rng.integers(5, 160, size).tolist()] for size in (75, 20, 70, 33, 50, 9)]
    params = [
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, prompt_logprobs=1),
        GREEDY,
    ]
    outputs = tight.generate(prompts, params * 3)
    assert tight.engine.scheduler.num_preemptions > 0
    for prompt, output, p in zip(prompts, outputs, params * 3, strict=True):
        if p.prompt_logprobs is None:
            assert output.prompt_logprobs is None
        else:
            check_prompt_logprobs(tight, plain_run, prompt, output, 1)


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def check_prompt_logprobs(llm, run, prompt, output, wanted):
    expected = log_softmax(logits_at_every_position(run, prompt))
    assert len(output.prompt_logprobs) == len(prompt)
    assert output.prompt_logprobs[0] is None
    for row, token, found in zip(expected, prompt[1:], output.prompt_logprobs[1:], strict=False):
        check_logprobs(llm, row, token, found, wanted)


def check_logprobs(llm, expected, token, found, wanted):
    """The `wanted` likeliest and the token itself, with the values of `expected` [vocab]."""
    assert wanted <= len(found) <= wanted + 1
    assert token in found
    ranks = [entry.rank for token_id, entry in found.items() if token_id != token]
    assert set(ranks) | {found[token].rank} >= set(range(1, wanted + 1))
    for token_id, entry in found.items():
        assert entry.logprob == pytest.approx(expected[token_id], abs=2e-4)
        value = expected[token_id]
        assert (expected > value + 1e-4).sum() < entry.rank <= (expected > value - 1e-4).sum()
        assert entry.decoded_token == llm.tokenizer.decode([token_id], skip_special_tokens=False)
