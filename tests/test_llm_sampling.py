"""Which token comes next: seeds and samples, penalties, biases."""

import numpy as np
import pytest
from llm_answers import GREEDY, alone, continue_with, tokens_of

from cugraphs import LLM, SamplingParams
from cugraphs.kernels.philox import philox4x32_10, uniform


def test_n_samples_follow_the_documented_random_numbers(llm, plain_run):
    """Philox of (position, sample index, use 0, 0) under the seed; the first token, in order of
    id, whose cumulative weight exceeds u times the sum."""
    seed = 2**63 + 12345
    params = SamplingParams(n=3, seed=seed, temperature=0.8, max_tokens=12, ignore_eos=True)
    output = llm.generate("The dog", params)[0]
    prompt = list(output.prompt_token_ids)
    key = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32)
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    for index in range(3):

        def draw(logits, outputs, index=index):
            counter = np.array([len(prompt) + len(outputs), index, 0, 0], np.uint32)
            u = float(uniform(philox4x32_10(counter, key)[0]))
            weights = np.exp((logits - logits.max()) / 0.8).cumsum()
            return np.searchsorted(weights, u * weights[-1], side="right")

        assert tokens_of(output, index) == continue_with(plain_run, prompt, 12, draw)
    assert len({completion.token_ids for completion in output.outputs}) == 3


def test_seeds(folder, llm):
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    seeded = SamplingParams(max_tokens=20, ignore_eos=True, seed=5)
    assert alone(llm, "a", seeded) == alone(llm, "a", seeded)
    assert alone(llm, "a", seeded) != alone(llm, "a", SamplingParams(max_tokens=20, seed=6))
    assert alone(llm, "a", params) != alone(llm, "a", params)  # another random seed each time
    first, second, other = (LLM(folder, seed=seed) for seed in (1, 1, 2))
    same = [[tokens_of(o) for o in x.generate(["a", "a"], params)] for x in (first, second)]
    assert same[0] == same[1]
    assert same[0][0] != same[0][1]
    assert same[0] != [tokens_of(o) for o in other.generate(["a", "a"], params)]


@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition_penalty": 1.8},
        {"presence_penalty": 2.0},
        {"frequency_penalty": 1.5},
        {"presence_penalty": -1.0, "frequency_penalty": -0.5},
        {"repetition_penalty": 0.8, "presence_penalty": 1.0, "frequency_penalty": 0.7},
        {"repetition_penalty": 1.2, "logit_bias": {40: 4.0, 50: -100.0, 3: 1.5}},
    ],
)
def test_penalties_and_biases_as_a_plain_loop(llm, plain_run, penalties):
    prompt = list(llm.tokenizer.encode("The quick brown fox jumps over"))
    repetition = penalties.get("repetition_penalty", 1.0)
    presence = penalties.get("presence_penalty", 0.0)
    frequency = penalties.get("frequency_penalty", 0.0)

    def choose(logits, outputs):
        for token, bias in penalties.get("logit_bias", {}).items():
            logits[token] += bias
        for token in {*prompt, *outputs}:
            logits[token] *= 1 / repetition if logits[token] > 0 else repetition
        for token in set(outputs):
            logits[token] -= presence + frequency * outputs.count(token)
        return logits.argmax()

    plain = continue_with(plain_run, prompt, 24, lambda logits, outputs: logits.argmax())
    expected = continue_with(plain_run, prompt, 24, choose)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, **penalties)
    assert alone(llm, prompt, params) == expected
    assert alone(llm, prompt, GREEDY) == plain
    assert expected != plain


def test_logit_bias_forces_and_forbids(llm):
    params = SamplingParams(
        temperature=1, max_tokens=10, ignore_eos=True, logit_bias={70: 100}, seed=0
    )
    assert alone(llm, "x", params) == [70] * 10
    favourite = alone(llm, "", GREEDY)[0]
    banned = SamplingParams(temperature=0, max_tokens=10, logit_bias={favourite: -100})
    assert favourite not in alone(llm, "", banned)


def test_top_k_1_is_greedy(llm):
    params = SamplingParams(temperature=1.5, top_k=1, max_tokens=24, ignore_eos=True)
    assert alone(llm, "The", params) == alone(llm, "The", GREEDY)
