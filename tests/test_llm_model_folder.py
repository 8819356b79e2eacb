"""What ``LLM`` takes from a model folder, and says while it loads."""

import json

import pytest
from llm_answers import tokens_of
from tiny_model import write_tiny_model

from cugraphs import LLM, SamplingParams


def test_params_none_takes_generation_config(tmp_path):
    sampling = {"do_sample": True, "temperature": 0.6, "top_k": 9, "max_new_tokens": 7}
    folder = write_tiny_model(tmp_path / "m", generation_config=sampling)
    llm = LLM(folder, seed=0)
    expected = SamplingParams(temperature=0.6, top_k=9, max_tokens=7)
    assert llm.default_params() == expected
    same = LLM(folder, seed=0)
    assert tokens_of(llm.generate("a")[0]) == tokens_of(same.generate("a", expected)[0])
    assert "".join(llm.stream("a")) == "".join(same.stream("a", expected))


def test_without_do_sample_params_none_is_greedy(llm):
    assert llm.default_params().is_greedy
    greedy = SamplingParams(temperature=0)
    assert llm.generate("a")[0].outputs == llm.generate("a", greedy)[0].outputs


def test_too_many_eos_tokens_are_refused(tmp_path):
    folder = write_tiny_model(tmp_path / "m", generation_config={"eos_token_id": list(range(20))})
    with pytest.raises(ValueError, match="the model has 20 EOS tokens, expected at most 16"):
        LLM(folder)


def test_progress_counts_every_byte(folder):
    calls = []
    LLM(folder, progress=lambda done, total: calls.append((done, total)))
    index = json.loads((folder / "model.safetensors").read_bytes()[8:].split(b"}}")[0] + b"}}")
    stored = max(entry["data_offsets"][1] for name, entry in index.items() if name[0] != "_")
    assert calls[-1] == (stored, stored)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_device_and_dtype_are_said(folder, caplog):
    with caplog.at_level("INFO", "cugraphs"):
        LLM(folder, dtype="bfloat16")
    assert "device cpu" in caplog.text
    assert "float32, not in bfloat16" in caplog.text
