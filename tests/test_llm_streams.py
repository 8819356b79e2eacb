"""Text in pieces; what errors and interrupts leave of a stream, and of a call beside it."""

import gc
import itertools

import numpy as np
import pytest
from llm_answers import GREEDY, PROMPTS, assert_idle
from tiny_model import BOS, write_tiny_model

from cugraphs import LLM, SamplingParams


def test_a_stream_is_the_text_in_pieces(llm):
    stream = llm.stream("The quick", GREEDY)
    assert stream.output.outputs[0].text == ""
    pieces = list(stream)
    expected = llm.generate("The quick", GREEDY)[0].outputs[0]
    assert "".join(pieces) == expected.text
    assert all(pieces)
    assert len(pieces) > 1
    assert stream.output.outputs[0] == expected
    assert list(stream) == []


def test_interleaved_streams_with_a_generate_in_between(llm):
    expected = [llm.generate(prompt, GREEDY)[0].outputs[0].text for prompt in PROMPTS[:3]]
    first, second = (llm.stream(prompt, GREEDY) for prompt in PROMPTS[:2])
    pieces = [[next(first), next(first)], [next(second)]]
    assert llm.generate(PROMPTS[2], GREEDY)[0].outputs[0].text == expected[2]
    for a, b in itertools.zip_longest(first, second, fillvalue=""):
        pieces[0].append(a)
        pieces[1].append(b)
    assert ["".join(p) for p in pieces] == expected[:2]


def test_characters_split_over_tokens_come_whole(llm):
    """The four bytes of an emoji are four tokens, or fewer; a rest is flushed as U+FFFD."""
    emoji = llm.tokenizer.encode("😀", add_bos=False)
    assert len(emoji) > 1
    params = SamplingParams(temperature=0, max_tokens=1, logit_bias={emoji[-1]: 100})
    prompt = [BOS, *emoji[:-1]]
    assert llm.generate(prompt, params)[0].outputs[0].text == "😀"
    broken = SamplingParams(temperature=0, max_tokens=1, logit_bias={emoji[0]: 100})
    assert llm.generate([BOS, 40], broken)[0].outputs[0].text == "\ufffd"


def test_a_closed_stream_frees_its_blocks(llm):
    stream = llm.stream("The quick", GREEDY)
    first = next(stream)
    assert llm.engine.has_unfinished()
    stream.close()
    assert_idle(llm)
    assert stream.output.outputs[0].finish_reason == "abort"
    assert stream.output.outputs[0].text.startswith(first)
    assert list(stream) == []
    stream.close()


def test_a_stream_that_nobody_holds_frees_its_blocks(llm):
    for piece in llm.stream("The quick", GREEDY):
        assert piece
        break
    gc.collect()
    assert llm.engine.step() == []
    assert_idle(llm)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_generate_leaves_no_trace(llm, monkeypatch, error, when):
    """Neither in itself nor in a stream that was under way, although its tokens are counted."""
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, frequency_penalty=1.0)
    expected = llm.generate("The quick", params)[0].outputs[0]
    stream = llm.stream("The quick", params)
    pieces = [next(stream), next(stream)]
    submit, calls = llm.runner.submit, itertools.count()

    def interrupted(*step, **options):
        call = next(calls)
        if call == 5 and when == "before":
            raise error
        ticket = submit(*step, **options)
        if call == 5:
            raise error
        return ticket

    monkeypatch.setattr(llm.runner, "submit", interrupted)
    with pytest.raises(error):
        llm.generate(PROMPTS, GREEDY)
    monkeypatch.undo()
    assert len(llm.engine._requests) == 1  # the stream's
    pieces += stream
    assert "".join(pieces) == expected.text
    assert stream.output.outputs[0] == expected
    assert llm.generate("The quick", params)[0].outputs[0] == expected


def test_an_error_ends_the_stream_that_met_it(llm, monkeypatch):
    stream = llm.stream("The quick", GREEDY)
    next(stream)

    def interrupted(*step, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.runner, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    monkeypatch.undo()
    assert_idle(llm)
    assert list(stream) == []


def test_weights_that_hold_nan_are_said_to(tmp_path):
    weights = {"model.norm.weight": np.full(32, np.nan, np.float32)}
    llm = LLM(write_tiny_model(tmp_path / "m", weights=weights))
    with pytest.raises(FloatingPointError) as caught:
        llm.generate(["a", "b"], GREEDY)
    assert "position 2 hold NaN or infinity, expected numbers; the weights are damaged" in str(
        caught.value
    )
    assert_idle(llm)
    stream = llm.stream("a", GREEDY)
    with pytest.raises(FloatingPointError):
        next(stream)
    assert list(stream) == []
    assert_idle(llm)
