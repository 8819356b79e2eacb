"""What cannot be used is refused with what was expected, and nothing is run."""

import numpy as np
import pytest
from llm_answers import GREEDY, assert_idle
from tiny_model import BOS, MAX_MODEL_LEN

from cugraphs import LLM, SamplingParams

BAD_CALLS = [
    (
        ([BOS] + [40] * (MAX_MODEL_LEN - 1),),
        ValueError,
        "the prompt has 256 tokens, expected at most 255: max_model_len is 256",
    ),
    (([BOS, 163],), ValueError, "a prompt token id is 163, expected 0 to 162"),
    (([BOS, -1],), ValueError, "a prompt token id is -1, expected 0 to 162"),
    (([[]],), ValueError, "the prompt has 0 tokens, expected at least 1"),
    ((None,), TypeError, "prompts is None (NoneType), expected a string, a list of token ids"),
    ((5,), TypeError, "prompts is 5 (int), expected a string"),
    ((b"abc",), TypeError, "prompts is b'abc' (bytes), expected a string"),
    (({"prompt": "a"},), TypeError, "prompts is {'prompt': 'a'} (dict), expected a string"),
    ((["a", None],), TypeError, "prompts[1] is None (NoneType), expected a string or a list"),
    ((["a", 5],), TypeError, "prompts[1] is 5 (int), expected a string or a list of token ids"),
    (([b"a"],), TypeError, "prompts[0] is b'a' (bytes), expected a string or a list of token ids"),
    (([[BOS, 1.5]],), TypeError, "prompts[0] holds 1.5 (float), expected token ids, all integers"),
    (([[BOS, True]],), TypeError, "prompts[0] holds True (bool), expected token ids, all integers"),
    (([[BOS, "a"]],), TypeError, "prompts[0] holds 'a' (str), expected token ids, all integers"),
    ((np.zeros((2, 2)),), TypeError, "(float64), expected token ids, all integers"),
    (("\ud800",), ValueError, "text holds a lone surrogate, expected Unicode"),
    (
        ("a", [GREEDY, GREEDY]),
        ValueError,
        "params has 2 SamplingParams for 1 prompt, expected one, or one per prompt",
    ),
    ((["a", "b"], [GREEDY]), ValueError, "params has 1 SamplingParams for 2 prompts"),
    (("a", {"temperature": 0}), TypeError, "params is {'temperature': 0} (dict), expected"),
    (("a", 5), TypeError, "params is 5 (int), expected SamplingParams, one or one per prompt"),
    (("a", [None]), TypeError, "params is None (NoneType), expected SamplingParams"),
    (
        ("a", SamplingParams(logit_bias={163: 1})),
        ValueError,
        "a token id of logit_bias is 163, expected 0 to 162",
    ),
    (
        ("a", SamplingParams(stop_token_ids=[4000])),
        ValueError,
        "a token id of stop_token_ids is 4000, expected 0 to 162",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "error", "message"), BAD_CALLS, ids=[message[:50] for *_, message in BAD_CALLS]
)
def test_a_bad_call_says_what_is_wrong_and_runs_nothing(llm, arguments, error, message):
    before = llm.stats().steps
    with pytest.raises(error) as caught:
        llm.generate(*arguments)
    assert message in str(caught.value)
    prompts, *params = arguments
    if isinstance(prompts, list) and not isinstance(prompts[0], int):
        with pytest.raises(error, match=rf"prompts\[{len(prompts)}\]|params"):
            llm.generate(["fine first", *prompts], *params)
    assert_idle(llm)
    assert llm.stats().steps == before


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None,), TypeError, "the prompt is None (NoneType), expected a string or a list"),
        ((["a", "b"],), TypeError, "the prompt holds 'a' (str), expected token ids, all integers"),
        (("a", SamplingParams(n=2)), ValueError, "LLM.stream: n is 2, expected 1; use generate"),
        (("a", [GREEDY, GREEDY]), ValueError, "params has 2 SamplingParams for 1 prompt"),
        (([BOS] * MAX_MODEL_LEN,), ValueError, "the prompt has 256 tokens, expected at most 255"),
    ],
)
def test_a_bad_stream_says_so_at_the_call(llm, arguments, error, message):
    with pytest.raises(error) as caught:
        llm.stream(*arguments)
    assert message in str(caught.value)


BAD_ARGUMENTS = [
    ({"device": "tpu"}, "device is 'tpu', expected 'auto', 'cpu' or 'cuda'"),
    ({"dtype": "int8"}, "dtype is 'int8', expected one of auto, float32, float16, bfloat16"),
    ({"max_model_len": 0}, "max_model_len is 0, expected"),
    ({"max_model_len": 1}, "max_model_len is 1, expected"),
    ({"max_model_len": 257}, "max_model_len is 257, expected at most 256"),
    ({"max_model_len": "9"}, "max_model_len is '9', expected"),
    ({"max_num_seqs": 0}, "max_num_seqs is 0, expected an integer of at least 1"),
    ({"max_num_seqs": True}, "max_num_seqs is True, expected an integer of at least 1"),
    ({"max_num_seqs": 2.5}, "max_num_seqs is 2.5, expected an integer of at least 1"),
    ({"num_kv_blocks": 16}, "num_kv_blocks is 16, expected at least 17: 16 for max_model_len 256"),
    ({"seed": -1}, "seed is -1, expected 0 <= seed < 2**64, or None"),
    ({"seed": "x"}, "seed is 'x', expected 0 <= seed < 2**64, or None"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD_ARGUMENTS, ids=[message[:40] for _, message in BAD_ARGUMENTS]
)
def test_a_bad_argument_of_llm_says_what_is_expected(folder, arguments, message):
    with pytest.raises(ValueError) as caught:
        LLM(folder, **arguments)
    assert message in str(caught.value)


def test_an_unknown_argument_is_refused(folder):
    with pytest.raises(TypeError, match="tensor_parallel_size"):
        LLM(folder, tensor_parallel_size=2)
