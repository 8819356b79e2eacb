"""Every field of SamplingParams does on the GPU what it says, and what it does on the CPU."""

import dataclasses

import pytest
from field_semantics import CHECKS, PROMPT

from cugraphs import LLM, SamplingParams

pytestmark = pytest.mark.gpu

# Each field away from its default, in fields that go together.
FIELDS = [
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 7},
    {"temperature": 1.0, "seed": 1, "n": 3, "max_tokens": 20, "logprobs": 3},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.7, "logit_bias": {9: 3}},
    {"temperature": 0.0, "frequency_penalty": 1.1, "n": 2, "prompt_logprobs": 2},
    {"temperature": 1.2, "seed": 2**63, "min_tokens": 9, "stop_token_ids": [50, 60, 70]},
    {"temperature": 0.0, "stop": ["e", "th"], "include_stop_str_in_output": True},
    {"temperature": 1.0, "seed": 9, "skip_special_tokens": False, "truncate_prompt_tokens": 3},
]


@pytest.fixture(scope="module")
def llms(folder):
    options = {"max_num_seqs": 5, "dtype": "float32", "batch_invariant": True}
    return [LLM(folder, device=device, **options) for device in ("cpu", "cuda")]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("field", CHECKS)
def test_field(llms, field, n):
    CHECKS[field](llms[1], n)


@pytest.mark.parametrize("fields", FIELDS, ids=["+".join(fields) for fields in FIELDS])
def test_answers_are_those_of_the_cpu(llms, fields):
    params = SamplingParams(**{"max_tokens": 24, "ignore_eos": True, **fields})
    (on_cpu,), (on_gpu,) = (llm.generate(PROMPT, params) for llm in llms)
    for found, expected in zip(on_gpu.outputs, on_cpu.outputs, strict=True):
        without = {"logprobs": None}  # their last bits differ
        assert dataclasses.replace(found, **without) == dataclasses.replace(expected, **without)


def test_no_field_is_left_at_its_default():
    tried = {name for fields in FIELDS for name in fields} | {"max_tokens", "ignore_eos"}
    assert tried == {field.name for field in dataclasses.fields(SamplingParams)}
