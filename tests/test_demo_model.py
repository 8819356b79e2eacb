"""The model inside the package: what it is, and that it tells the story transformers tells."""

from importlib.resources import files

import pytest

from cugraphs import LLM, SamplingParams

# transformers 5.24 with torch 2.13, float32, greedy, from "Once upon a time" to EOS: 272 tokens.
# ruff: noqa: E501
STORY = (
    ", there was a small, playful girl named Susan. She lived in a little house with a blue door in "
    "a quiet town. Susan liked to jump in puddles, and she liked to read books, too.\n\nSusan had a "
    "good friend named Milo. One sunny morning, the two friends found a golden book under an old "
    'bench. "It is mine!" said Susan. "No, I saw it first!" said Milo. They both pulled as hard as '
    "they could. Crack! The golden book broke. Milo went home without a word, and Susan went home, "
    "too.\n\nSusan sat alone by the window. Nothing was fun anymore. She thought about Milo. "
    '"I was not kind," she thought. So she ran to find Milo. "I am sorry," said Susan. "I should '
    'not have pulled." "I am sorry, too," said Milo.\n\nThey fixed the golden book together. It did '
    "not look perfect, but they liked it even more. After that, they played with it together, and "
    "nobody had to pull. It was much more fun that way.\n\nSusan fell asleep with a smile that "
    "night, because now she knew that saying sorry can fix a friendship."
)


@pytest.fixture(scope="module")
def demo() -> LLM:
    return LLM("demo", device="cpu", max_num_seqs=4)


def test_it_has_what_small_public_models_lack(demo: LLM) -> None:
    config = demo.config
    assert 1_000_000 <= config.num_parameters <= 1_500_000
    assert not config.tie_word_embeddings
    assert config.num_key_value_heads < config.num_attention_heads
    assert config.rope.rope_type == "llama3"
    assert config.dtype == "bfloat16"


def test_it_is_at_most_3_mb() -> None:
    folder = files("cugraphs.models") / "demo"
    assert sum(len(item.read_bytes()) for item in folder.iterdir()) <= 3_000_000


def test_the_story_equals_transformers(demo: LLM) -> None:
    output = demo.generate("Once upon a time", SamplingParams(temperature=0))[0]
    assert output.outputs[0].text == STORY
    assert len(output.outputs[0].token_ids) == 272
    assert output.outputs[0].finish_reason == "stop"


def test_it_answers_a_question(demo: LLM) -> None:
    answer = demo.chat([{"role": "user", "content": "What do rabbits eat?"}])
    assert "carrots" in answer.outputs[0].text
