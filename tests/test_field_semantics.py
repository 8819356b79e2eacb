"""Every field of SamplingParams does what it says, for one sample and for several, on the CPU."""

import dataclasses

import pytest
from field_semantics import CHECKS
from tiny_model import write_tiny_model

from cugraphs import LLM, SamplingParams


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = write_tiny_model(tmp_path_factory.mktemp("fields") / "tiny")
    return LLM(folder, device="cpu", max_num_seqs=5, batch_invariant=True)


def test_every_field_is_checked():
    assert CHECKS.keys() == {field.name for field in dataclasses.fields(SamplingParams)}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("field", CHECKS)
def test_field(llm, field, n):
    CHECKS[field](llm, n)
