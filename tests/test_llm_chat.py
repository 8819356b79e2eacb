"""Conversations, as the model's template renders them."""

import pytest
from llm_answers import GREEDY
from tiny_model import ASSISTANT, BOS, write_tiny_model

from cugraphs import LLM


def test_chat_answers_the_rendered_conversation(llm):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]
    text = llm.render_chat(messages)
    assert text == "<|bos|><|system|>Be brief.<|end|><|user|>Hello<|end|><|assistant|>"
    output = llm.chat(messages, GREEDY)
    assert output.prompt_token_ids[0] == BOS  # once
    assert BOS not in output.prompt_token_ids[1:]
    assert output.prompt_token_ids[-1] == ASSISTANT
    assert output.outputs == llm.generate(text, GREEDY)[0].outputs
    assert "".join(llm.chat(messages, GREEDY, stream=True)) == output.outputs[0].text


def test_bad_messages(llm):
    with pytest.raises(ValueError, match="no such role"):
        llm.chat([{"role": "cat", "content": "miaow"}])
    with pytest.raises(ValueError, match=r"messages\[0\]: content is missing"):
        llm.chat([{"role": "user"}])


def test_a_model_without_a_template_says_where_one_is_expected(tmp_path):
    llm = LLM(write_tiny_model(tmp_path / "m", chat_template=None))
    with pytest.raises(ValueError, match=r"no chat template, expected chat_template\.jinja"):
        llm.chat([{"role": "user", "content": "a"}])
