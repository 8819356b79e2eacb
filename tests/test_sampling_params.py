"""vLLM's names and defaults, one form for every value, and a refusal that tells the range."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cugraphs.sampling_params import SamplingParams, sampling_params_from_generation_config


def test_defaults_are_vllms_but_for_max_tokens():
    assert dataclasses.asdict(SamplingParams()) == {
        "n": 1,
        "max_tokens": None,
        "min_tokens": 0,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": None,
        "seed": None,
        "stop": (),
        "stop_token_ids": (),
        "ignore_eos": False,
        "logprobs": None,
        "prompt_logprobs": None,
        "include_stop_str_in_output": False,
        "skip_special_tokens": True,
        "truncate_prompt_tokens": None,
    }


@pytest.mark.parametrize(
    ("given_value", "held"),
    [
        ({"stop": "a"}, {"stop": ("a",)}),
        ({"stop": ["a", "b", "a"]}, {"stop": ("a", "b")}),
        ({"stop": []}, {"stop": ()}),
        ({"stop_token_ids": [3, 1, 3]}, {"stop_token_ids": (3, 1)}),
        ({"stop_token_ids": {7}}, {"stop_token_ids": (7,)}),
        ({"stop_token_ids": list(range(64)) * 2}, {"stop_token_ids": tuple(range(64))}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"seed": -1}, {"seed": None}),
        ({"seed": 2**64 - 1}, {"seed": 2**64 - 1}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"logit_bias": {}}, {"logit_bias": None}),
        ({"logit_bias": {5: 1, 2: -100}}, {"logit_bias": {2: -100.0, 5: 1.0}}),
        ({"logprobs": 0}, {"logprobs": 0}),
        ({"truncate_prompt_tokens": np.int32(9)}, {"truncate_prompt_tokens": 9}),
        ({"truncate_prompt_tokens": -1}, {"truncate_prompt_tokens": -1}),
        ({"logprobs": 20, "prompt_logprobs": 20}, {"logprobs": 20, "prompt_logprobs": 20}),
        ({"max_tokens": 4, "min_tokens": 4}, {"max_tokens": 4, "min_tokens": 4}),
        (
            {"max_tokens": np.int64(4), "temperature": np.float32(0.5), "top_p": np.float64(1)},
            {"max_tokens": 4, "temperature": 0.5, "top_p": 1.0},
        ),
    ],
)
def test_values_are_held_in_one_form(given_value, held):
    params = SamplingParams(**given_value)
    for name, value in held.items():
        found = getattr(params, name)
        assert found == value
        if isinstance(value, int | float | tuple):
            assert type(found) is type(value)


@pytest.mark.parametrize(
    ("values", "is_greedy"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 1e-6}, True),
        ({"temperature": 1.0, "top_k": 1}, True),
        ({"temperature": 1e-5}, False),
        ({"top_k": 2}, False),
        ({}, False),
    ],
)
def test_is_greedy(values, is_greedy):
    assert SamplingParams(**values).is_greedy is is_greedy


def test_params_are_immutable_hashable_and_can_travel():
    params = SamplingParams(stop=["x"], logit_bias={1: 2}, stop_token_ids=[4], seed=3)
    same = SamplingParams(stop="x", logit_bias={1: 2.0}, stop_token_ids=(4,), seed=3)
    assert params == same
    assert hash(params) == hash(same)
    assert params.stop_strings == ("x",)
    assert pickle.loads(pickle.dumps(params)) == params
    assert copy.deepcopy(params) == params
    assert dataclasses.replace(params, n=2) == SamplingParams(
        n=2, stop="x", logit_bias={1: 2}, stop_token_ids=[4], seed=3
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2
    with pytest.raises(TypeError):
        params.logit_bias[1] = 5


def test_the_caller_can_change_its_own_objects_afterwards():
    stop, bias = ["a"], {1: 1.0}
    params = SamplingParams(stop=stop, logit_bias=bias)
    stop.append("b")
    bias[2] = 2.0
    assert params == SamplingParams(stop=["a"], logit_bias={1: 1.0})


NAN, INF = math.nan, math.inf
REFUSED = [
    ({"n": 0}, "n is 0, expected 1 <= n < 2**31"),
    ({"max_tokens": 0}, "max_tokens is 0, expected 1 <= max_tokens < 2**31, or None"),
    ({"max_tokens": 2**31}, "max_tokens is 2147483648, expected 1 <= max_tokens < 2**31"),
    ({"min_tokens": -1}, "min_tokens is -1, expected 0 <= min_tokens < 2**31"),
    (
        {"min_tokens": 5, "max_tokens": 4},
        "min_tokens is 5, expected 0 <= min_tokens <= max_tokens = 4",
    ),
    ({"temperature": -0.1}, "temperature is -0.1, expected 0 <= temperature <= 1000"),
    ({"temperature": 1001}, "temperature is 1001, expected 0 <= temperature <= 1000"),
    ({"top_k": -2}, "top_k is -2, expected 1 <= top_k < 2**31, or 0 or -1 for off"),
    ({"top_p": 0}, "top_p is 0, expected 0 < top_p <= 1"),
    ({"top_p": 1.5}, "top_p is 1.5, expected 0 < top_p <= 1"),
    ({"min_p": 1.01}, "min_p is 1.01, expected 0 <= min_p <= 1"),
    ({"repetition_penalty": 0}, "repetition_penalty is 0, expected 0.001 <= repetition_penalty"),
    ({"presence_penalty": 2.5}, "presence_penalty is 2.5, expected -2 <= presence_penalty <= 2"),
    ({"frequency_penalty": -3}, "frequency_penalty is -3, expected -2 <= frequency_penalty <= 2"),
    ({"logit_bias": {3: 101}}, "logit_bias[3] is 101, expected -100 <= logit_bias[3] <= 100"),
    ({"logit_bias": {-1: 1}}, "a token id of logit_bias is -1, expected 0 <= token id < 2**31"),
    (
        {"logit_bias": dict.fromkeys(range(513), 1)},
        "logit_bias has 513 entries, expected at most 512",
    ),
    ({"seed": -2}, "seed is -2, expected 0 <= seed < 2**64, or None for a random one"),
    ({"seed": 2**64}, "seed is 18446744073709551616, expected 0 <= seed < 2**64"),
    ({"stop": ""}, "stop holds '', expected strings of 1 character or more"),
    ({"stop": ["a", ""]}, "stop holds '', expected strings of 1 character or more"),
    ({"stop_token_ids": [-1]}, "a token id of stop_token_ids is -1, expected 0 <= token id"),
    ({"stop_token_ids": range(65)}, "stop_token_ids has 65 ids, expected at most 64"),
    ({"logprobs": 21}, "logprobs is 21, expected 0 <= logprobs <= 20"),
    ({"logprobs": -1}, "logprobs is -1, expected 0 <= logprobs <= 20"),
    ({"prompt_logprobs": 21}, "prompt_logprobs is 21, expected 0 <= prompt_logprobs <= 20"),
    *(
        ({name: value}, f"{name} is {value}, expected ")
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        )
        for value in (NAN, INF, -INF, 10**400)
    ),
    ({"logit_bias": {3: NAN}}, "logit_bias[3] is nan, expected -100 <= logit_bias[3] <= 100"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_values_out_of_range_are_refused_with_name_value_and_range(values, message):
    with pytest.raises(ValueError) as caught:
        SamplingParams(**values)
    assert str(caught.value).startswith(f"SamplingParams: {message}")
    assert "\n" not in str(caught.value)


WRONG_TYPE = [
    *(
        ({name: value}, f"{name} is {value!r}, expected an integer, ")
        for name in ("n", "max_tokens", "min_tokens", "top_k", "seed", "logprobs")
        for value in (True, 1.0, "1", [1])
    ),
    *(
        ({name: value}, f"{name} is {value!r}, expected a number, ")
        for name in ("temperature", "top_p", "min_p", "repetition_penalty")
        for value in (True, "1", None, 1j)
    ),
    *(
        ({name: value}, f"{name} is {value!r}, expected True or False")
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
        for value in (1, None, "yes")
    ),
    ({"n": None}, "n is None, expected an integer, 1 <= n < 2**31"),
    ({"stop": 5}, "stop is 5, expected a string or a list of strings"),
    ({"stop": [5]}, "stop holds 5, expected strings"),
    ({"stop": b"a"}, "stop holds 97, expected strings"),
    ({"stop_token_ids": 5}, "stop_token_ids is 5, expected a list of token ids"),
    ({"stop_token_ids": "5"}, "stop_token_ids is '5', expected a list of token ids"),
    ({"stop_token_ids": [True]}, "a token id of stop_token_ids is True, expected an integer"),
    (
        {"logit_bias": [(1, 2)]},
        "logit_bias is [(1, 2)], expected a mapping of token ids to numbers",
    ),
    ({"logit_bias": {"1": 2}}, "a token id of logit_bias is '1', expected an integer"),
    ({"logit_bias": {1: "2"}}, "logit_bias[1] is '2', expected a number"),
]


@pytest.mark.parametrize(("values", "message"), WRONG_TYPE)
def test_wrong_types_are_refused(values, message):
    with pytest.raises(TypeError) as caught:
        SamplingParams(**values)
    assert str(caught.value).startswith(f"SamplingParams: {message}")


@pytest.mark.parametrize(
    ("name", "close"), [("temprature", "temperature"), ("max_token", "max_tokens"), ("best", None)]
)
def test_unknown_names_are_refused_with_those_that_exist(name, close):
    with pytest.raises(TypeError) as caught:
        SamplingParams(**{name: 1})
    message = str(caught.value)
    assert message.startswith(f"SamplingParams: {name} is no parameter, expected one of n, max_tok")
    for field in dataclasses.fields(SamplingParams):
        assert field.name in message
    assert message.endswith(f"; did you mean {close}?" if close else "truncate_prompt_tokens")


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3)
)


@given(
    name=st.sampled_from([field.name for field in dataclasses.fields(SamplingParams)]),
    value=st.one_of(
        anything, st.lists(anything, max_size=3), st.dictionaries(anything, anything, max_size=3)
    ),
)
def test_anything_is_either_held_or_refused_by_name(name, value):
    try:
        params = SamplingParams(**{name: value})
    except (TypeError, ValueError) as error:
        message = str(error)
        assert message.startswith("SamplingParams: ")
        assert name in message
    else:
        hash(params)
        held = getattr(params, name)
        assert not isinstance(held, float) or math.isfinite(held)
        # What is held can be given again.
        assert SamplingParams(**{name: held}) == params


@pytest.mark.parametrize(
    ("generation_config", "params"),
    [
        # transformers: do_sample is false unless the file says otherwise; temperature is unused.
        ({}, {"temperature": 0}),
        ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0}),
        ({"temperature": 0.9, "top_p": 0.6}, {"temperature": 0}),
        # Llama 3's file.
        (
            {
                "bos_token_id": 128000,
                "eos_token_id": [128001, 128008, 128009],
                "do_sample": True,
                "temperature": 0.6,
                "top_p": 0.9,
                "transformers_version": "4.42.3",
            },
            {"temperature": 0.6, "top_p": 0.9},
        ),
        # Llama 2's file: max_length counts the prompt.
        (
            {"do_sample": True, "max_length": 4096, "pad_token_id": 0, "temperature": 0.6},
            {"temperature": 0.6},
        ),
        (
            {
                "do_sample": True,
                "top_k": 20,
                "min_p": 0.1,
                "repetition_penalty": 1.1,
                "max_new_tokens": 7,
                "min_new_tokens": 2,
                "num_return_sequences": 3,
                "stop_strings": ["x"],
            },
            {
                "top_k": 20,
                "min_p": 0.1,
                "repetition_penalty": 1.1,
                "max_tokens": 7,
                "min_tokens": 2,
                "n": 3,
                "stop": "x",
            },
        ),
        ({"repetition_penalty": 1.2}, {"temperature": 0, "repetition_penalty": 1.2}),
        ({"do_sample": True, "top_k": None, "temperature": None}, {}),
        (
            {
                "do_sample": True,
                "num_beams": 1,
                "typical_p": 1.0,
                "penalty_alpha": None,
                "epsilon_cutoff": 0.0,
                "no_repeat_ngram_size": 0,
                "suppress_tokens": [],
                "guidance_scale": 1,
            },
            {},
        ),
    ],
)
def test_generation_config(generation_config, params):
    assert sampling_params_from_generation_config(generation_config) == SamplingParams(**params)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("num_beams", 4, "1"),
        ("penalty_alpha", 0.6, "0"),
        ("typical_p", 0.5, "1"),
        ("top_h", 0.4, "null"),
        ("epsilon_cutoff", 3e-4, "0"),
        ("eta_cutoff", 3e-4, "0"),
        ("no_repeat_ngram_size", 3, "0"),
        ("encoder_repetition_penalty", 1.5, "1"),
        ("guidance_scale", 1.5, "1"),
        ("bad_words_ids", [[5]], "[]"),
        ("suppress_tokens", [5], "[]"),
        ("forced_eos_token_id", 2, "null"),
        ("min_length", 9, "0"),
        ("max_time", 1.5, "null"),
        ("sequence_bias", [[[5], 1.0]], "[]"),
        ("watermarking_config", {"bias": 2.5}, "null"),
    ],
)
def test_a_key_that_is_not_supported_is_named(key, value, expected):
    with pytest.raises(ValueError) as caught:
        sampling_params_from_generation_config({"do_sample": True, key: value})
    assert str(caught.value).startswith(
        f"generation_config.json: {key} is {value!r}, expected {expected} "
    )


@pytest.mark.parametrize(
    ("generation_config", "kind", "message"),
    [
        ({"do_sample": True, "top_p": 7}, ValueError, "SamplingParams: top_p is 7, expected 0 <"),
        ({"do_sample": True, "top_k": "5"}, TypeError, "SamplingParams: top_k is '5', expected"),
        ({"do_sample": "yes"}, TypeError, "do_sample is 'yes', expected true or false"),
    ],
)
def test_bad_values_name_the_file(generation_config, kind, message):
    with pytest.raises(kind) as caught:
        sampling_params_from_generation_config(generation_config)
    assert str(caught.value).startswith(f"generation_config.json: {message}")


@pytest.mark.parametrize(
    ("asked", "kept"),
    [(None, [1, 2, 3, 4]), (1, [4]), (3, [2, 3, 4]), (4, [1, 2, 3, 4]), (-1, [3, 4])],
)
def test_truncation_keeps_the_end(asked, kept):
    prompt = [1, 2, 3, 4]
    found = SamplingParams(truncate_prompt_tokens=asked).truncate(prompt, limit=2)
    assert found == kept and found is not prompt


@pytest.mark.parametrize("value", [0, -2, 2**31])
def test_truncation_to_nothing_is_refused(value):
    with pytest.raises(ValueError, match=f"truncate_prompt_tokens is {value}, expected 1 <="):
        SamplingParams(truncate_prompt_tokens=value)
