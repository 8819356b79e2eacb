"""What a prompt may be, how long, and what becomes of one that is too long."""

import numpy as np
import pytest
from llm_answers import GREEDY, alone, tokens_of
from tiny_model import BOS, MAX_MODEL_LEN

from cugraphs import SamplingParams


@pytest.mark.parametrize(
    "prompt",
    [
        [BOS, 40, 50],
        (BOS, 40, 50),
        np.array([BOS, 40, 50]),
        np.array([BOS, 40, 50], np.int32),
        [np.int64(BOS), np.int32(40), np.uint8(50)],
        range(BOS, 3),
    ],
    ids=["list", "tuple", "int64", "int32", "numpy_ints", "range"],
)
def test_token_ids_as_a_prompt(llm, prompt):
    expected = alone(llm, [int(token) for token in prompt], GREEDY)
    for prompts in (prompt, [prompt]):
        (output,) = llm.generate(prompts, GREEDY)
        assert tokens_of(output) == expected
        assert output.prompt is None
        assert output.prompt_token_ids == tuple(int(token) for token in prompt)
        assert all(type(token) is int for token in output.prompt_token_ids)
    assert list(llm.stream(prompt, GREEDY))


def test_a_list_of_strings_and_of_token_ids(llm):
    outputs = llm.generate(["a", [BOS, 40], "b"], GREEDY)
    assert [output.prompt for output in outputs] == ["a", None, "b"]
    assert [tokens_of(o) for o in outputs] == [alone(llm, p, GREEDY) for p in ("a", [BOS, 40], "b")]


def test_no_prompts_give_no_outputs(llm):
    assert llm.generate([]) == []
    assert llm.generate((), []) == []


def test_an_empty_prompt_is_the_bos_token(llm):
    assert llm.generate("", GREEDY)[0].prompt_token_ids == (BOS,)


def test_the_longest_prompt_gets_one_token(llm):
    prompt = [BOS] + [40] * (MAX_MODEL_LEN - 2)
    output = llm.generate(prompt, SamplingParams(temperature=0, ignore_eos=True))[0]
    assert len(tokens_of(output)) == 1
    assert output.outputs[0].finish_reason == "length"


LONG = [BOS, *(40 + i % 97 for i in range(MAX_MODEL_LEN + 20))]


@pytest.mark.parametrize(
    ("length", "asked", "kept"),
    [
        (MAX_MODEL_LEN - 1, None, MAX_MODEL_LEN - 1),
        (MAX_MODEL_LEN - 1, -1, MAX_MODEL_LEN - 1),
        (MAX_MODEL_LEN, -1, MAX_MODEL_LEN - 1),
        (MAX_MODEL_LEN + 20, -1, MAX_MODEL_LEN - 1),
        (MAX_MODEL_LEN, MAX_MODEL_LEN - 1, MAX_MODEL_LEN - 1),
        (MAX_MODEL_LEN + 20, 5, 5),
        (5, 6, 5),
        (5, MAX_MODEL_LEN + 99, 5),
        (2, 1, 1),
    ],
)
def test_a_prompt_is_cut_to_its_last_tokens_where_that_is_asked(llm, length, asked, kept):
    prompt = LONG[:length]
    greedy = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
    params = SamplingParams(**greedy, truncate_prompt_tokens=asked)
    (output,) = llm.generate([prompt], params)
    assert output.prompt_token_ids == tuple(prompt[-kept:])
    (same,) = llm.generate([prompt[-kept:]], SamplingParams(**greedy))
    assert output.outputs == same.outputs
    assert len(tokens_of(output)) == min(4, MAX_MODEL_LEN - kept)
    stream = llm.stream(prompt, params)
    assert "".join(stream) == output.outputs[0].text


@pytest.mark.parametrize("asked", [None, MAX_MODEL_LEN, MAX_MODEL_LEN + 5])
def test_a_prompt_that_is_too_long_once_it_is_cut_is_refused(llm, asked):
    for length in (MAX_MODEL_LEN, MAX_MODEL_LEN + 20):
        found = length if asked is None else min(asked, length)
        with pytest.raises(ValueError) as caught:
            llm.generate([LONG[:length]], SamplingParams(truncate_prompt_tokens=asked))
        assert f"the prompt has {found} tokens, expected at most 255" in str(caught.value)
        assert "or set truncate_prompt_tokens" in str(caught.value)


def test_what_follows_a_cut_prompt_sees_only_what_is_left(llm):
    """Penalties, log-probabilities and text are those of the last tokens alone."""
    prompt = llm.tokenizer.encode("The quick brown fox jumps over the dog")
    asked = {"temperature": 0, "max_tokens": 6, "repetition_penalty": 1.7, "prompt_logprobs": 2}
    (cut,) = llm.generate([prompt], SamplingParams(**asked, truncate_prompt_tokens=4))
    (short,) = llm.generate([prompt[-4:]], SamplingParams(**asked))
    assert cut.outputs == short.outputs and cut.prompt_logprobs == short.prompt_logprobs
    assert len(cut.prompt_logprobs) == 4
    text = "The quick brown fox"
    (whole,) = llm.generate(text, SamplingParams(truncate_prompt_tokens=2, max_tokens=1))
    assert whole.prompt == text and len(whole.prompt_token_ids) == 2
