"""One request gets one answer, whatever runs beside it and whatever ran before."""

import numpy as np
import pytest
from llm_answers import GREEDY, PROMPTS, alone, assert_idle, logits_at_every_position, tokens_of
from tiny_model import MAX_MODEL_LEN

from cugraphs import LLM, SamplingParams

MIXED = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
    SamplingParams(seed=1, max_tokens=30),
    SamplingParams(temperature=1.3, top_k=20, seed=2, max_tokens=17, ignore_eos=True),
    SamplingParams(temperature=0.7, top_p=0.8, seed=3, max_tokens=40, frequency_penalty=0.5),
    SamplingParams(min_p=0.05, seed=4, max_tokens=9, repetition_penalty=1.3, logit_bias={7: 3}),
]


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"max_num_seqs": 8}, id="all_at_once"),
        pytest.param({"max_num_seqs": 3}, id="more_prompts_than_seqs"),
        pytest.param({"max_num_seqs": 1}, id="one_by_one"),
        pytest.param({"max_num_seqs": 8, "max_model_len": 80, "num_kv_blocks": 7}, id="preempted"),
        pytest.param({"max_num_seqs": 8, "budget": 8}, id="prompts_in_chunks"),
    ],
)
def test_a_batch_gives_every_prompt_what_it_gets_alone(folder, llm, monkeypatch, limits):
    expected = [alone(llm, prompt, p) for prompt, p in zip(PROMPTS, MIXED, strict=True)]
    monkeypatch.setattr("cugraphs.llm.MAX_NUM_BATCHED_TOKENS", limits.pop("budget", 2048))
    other = LLM(folder, device="cpu", batch_invariant=True, **limits)
    for _ in range(2):  # and the first batch leaves nothing that changes the second
        outputs = other.generate(PROMPTS, MIXED)
        assert [output.prompt for output in outputs] == PROMPTS
        assert [tokens_of(output) for output in outputs] == expected
        assert all(output.finished for output in outputs)
        assert_idle(other)
    assert (other.engine.scheduler.num_preemptions > 0) == ("num_kv_blocks" in limits)


def test_a_token_that_is_counted_before_a_preemption_is_counted_once(folder, llm):
    params = [
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, frequency_penalty=penalty)
        for penalty in (0.5, 1.0, 1.5, 2.0)
    ]
    prompts = PROMPTS[:4]
    expected = [alone(llm, prompt, p) for prompt, p in zip(prompts, params, strict=True)]
    tight = LLM(folder, max_num_seqs=4, max_model_len=80, num_kv_blocks=7, batch_invariant=True)
    assert [tokens_of(output) for output in tight.generate(prompts, params)] == expected
    assert tight.engine.scheduler.num_preemptions > 0


def test_the_default_mode_batches_too(folder, plain_run):
    """Not bitwise, but where the two likeliest tokens are not close the tokens are the same."""
    llm = LLM(folder, device="cpu", max_num_seqs=4)
    for output in llm.generate(PROMPTS, GREEDY):
        tokens = [*output.prompt_token_ids, *tokens_of(output)]
        logits = logits_at_every_position(plain_run, tokens[:-1])[
            len(output.prompt_token_ids) - 1 :
        ]
        top = np.sort(logits, axis=-1)
        clear = top[:, -1] - top[:, -2] > 1e-4
        assert clear.mean() > 0.9
        assert (logits.argmax(-1) == tokens_of(output))[clear].all()


def test_one_params_per_prompt(llm):
    params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=n) for n in (3, 1, 2)]
    outputs = llm.generate(["a", "b", "c"], params)
    assert [len(tokens_of(output)) for output in outputs] == [3, 1, 2]


def test_a_request_inherits_nothing_from_the_one_before(folder):
    """One slot serves both: what the first set there is gone."""
    llm = LLM(folder, max_num_seqs=1, batch_invariant=True)
    plain = SamplingParams(temperature=0, max_tokens=8, min_tokens=8)
    fresh = alone(llm, "The quick", plain)
    heavy = SamplingParams(
        temperature=1.5,
        seed=1,
        max_tokens=8,
        min_tokens=8,
        stop_token_ids=fresh,
        logit_bias={token: -100 for token in fresh},
        repetition_penalty=2.0,
        presence_penalty=2.0,
        frequency_penalty=2.0,
        top_k=5,
    )
    assert not set(alone(llm, "The quick", heavy)) & set(fresh)
    assert alone(llm, "The quick", plain) == fresh


def test_num_kv_blocks_of_one_sequence_are_enough(folder):
    llm = LLM(folder, num_kv_blocks=17, max_num_seqs=2)
    outputs = llm.generate(["a", "b"], SamplingParams(temperature=0, ignore_eos=True))
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "length"]
    assert all(len(o.prompt_token_ids) + len(tokens_of(o)) == MAX_MODEL_LEN for o in outputs)
