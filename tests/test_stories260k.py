"""The public stories260K checkpoint: Hugging Face's numbers, and the text its author published."""

import json
from pathlib import Path

import numpy as np
import pytest
from model_runs import CheckpointRun

from cugraphs import LLM, SamplingParams

# llama2.c, doc/stories260K.md: the text at temperature 0 from an empty prompt, 256 steps of which
# the first feeds BOS.
PUBLISHED = """\
Once upon a time, there was a little girl named Lily. She loved to play outside in the park. \
One day, she saw a big, red ball. She wanted to play with it, but it was too high.
Lily's mom said, "Lily, let's go to the park." Lily was sad and didn't know what to do. She said, \
"I want to play with your ball, but I can't find it."
Lily was sad and didn't know what to do. She said, "I'm sorry, Lily. I didn't know what to do."
Lily didn't want to help her mom, so she said, "I'm sorry, mom. I didn't know what to do." \
Her mom said, "Don't worry, Lily. We can help you.
"""


@pytest.fixture(scope="module")
def golden(stories260k: Path) -> dict[str, np.ndarray]:
    return dict(np.load(stories260k / "hf_golden.npz"))


def test_logits_within_1e_3(stories260k: Path, golden: dict[str, np.ndarray]) -> None:
    run = CheckpointRun(stories260k, max_num_seqs=256, max_model_len=256)
    for i in range(3):
        _, (logits,) = run.prefill([golden[f"greedy_{i}"].tolist()])
        np.testing.assert_allclose(logits, golden[f"logits_{i}"], atol=1e-3, rtol=0)


def test_greedy_tokens_through_the_api(stories260k: Path, golden: dict[str, np.ndarray]) -> None:
    prompts = json.loads((stories260k / "hf_golden_prompts.json").read_text())
    llm = LLM(stories260k, device="cpu", max_num_seqs=2)  # the third prompt joins when one ends
    greedy = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    for i, output in enumerate(llm.generate(prompts, greedy)):
        assert list(output.prompt_token_ids) == golden[f"prompt_{i}"].tolist()
        tokens = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        assert tokens == golden[f"greedy_{i}"].tolist()
        assert output.outputs[0].finish_reason == "length"


def test_the_published_text_from_bos(stories260k: Path) -> None:
    llm = LLM(stories260k, device="cpu", max_num_seqs=1)
    output = llm.generate("", SamplingParams(temperature=0, max_tokens=256))[0]
    assert output.prompt_token_ids == (1,)
    assert output.outputs[0].text == PUBLISHED.rstrip("\n")
    pieces = list(llm.stream("", SamplingParams(temperature=0, max_tokens=256)))
    assert "".join(pieces) == PUBLISHED.rstrip("\n")
    assert len(pieces) > 200  # as it is made, not at the end
