"""Where an answer ends: EOS, stop tokens and strings, min_tokens, max_tokens."""

import pytest
from llm_answers import GREEDY, alone, tokens_of
from tiny_model import END_OF_TURN, EOS, MAX_MODEL_LEN, write_tiny_model

from cugraphs import LLM, SamplingParams


@pytest.mark.parametrize("eos", [EOS, END_OF_TURN])
def test_every_eos_token_of_generation_config_ends_the_answer(llm, eos):
    params = SamplingParams(temperature=0, max_tokens=9, logit_bias={eos: 100})
    answer = llm.generate("x", params)[0].outputs[0]
    assert (answer.token_ids, answer.text) == ((eos,), "")
    assert (answer.finish_reason, answer.stop_reason) == ("stop", None)


def test_ignore_eos_goes_on(llm):
    params = SamplingParams(temperature=0, max_tokens=9, logit_bias={EOS: 100}, ignore_eos=True)
    answer = llm.generate("x", params)[0].outputs[0]
    assert (answer.token_ids, answer.finish_reason) == ((EOS,) * 9, "length")


def test_min_tokens_holds_every_stop_back(llm):
    params = SamplingParams(
        temperature=0,
        max_tokens=20,
        min_tokens=5,
        stop_token_ids=[50],
        logit_bias={EOS: 100, END_OF_TURN: 80, 50: 60, 60: 40},
        stop=[llm.tokenizer.token(60)],
    )
    answer = llm.generate("x", params)[0].outputs[0]
    assert answer.token_ids == (60,) * 5 + (EOS,)
    assert answer.text == llm.tokenizer.token(60) * 5
    assert answer.finish_reason == "stop"


def test_min_tokens_does_not_hold_back_an_eos_that_is_ignored(llm):
    params = SamplingParams(
        temperature=0, max_tokens=4, min_tokens=3, ignore_eos=True, logit_bias={EOS: 100}
    )
    assert alone(llm, "x", params) == [EOS] * 4


def test_stop_token_ids(llm):
    free = alone(llm, "The quick", GREEDY)
    stop = free[7]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, stop_token_ids=[stop])
    answer = llm.generate("The quick", params)[0].outputs[0]
    expected = free[: free.index(stop) + 1]
    assert list(answer.token_ids) == expected
    assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
    assert answer.text == llm.tokenizer.decode(expected[:-1])
    kept = llm.generate(
        "The quick",
        SamplingParams(
            temperature=0,
            max_tokens=24,
            ignore_eos=True,
            stop_token_ids=[stop],
            include_stop_str_in_output=True,
        ),
    )[0].outputs[0]
    assert kept.text == llm.tokenizer.decode(expected)


def test_an_eos_token_among_stop_token_ids_stops_where_eos_does_not(llm):
    bias = {EOS: 100}
    for ignore_eos, reason in ((True, EOS), (False, None)):
        params = SamplingParams(
            temperature=0, stop_token_ids=[EOS], ignore_eos=ignore_eos, logit_bias=bias
        )
        answer = llm.generate("x", params)[0].outputs[0]
        assert (answer.token_ids, answer.stop_reason) == ((EOS,), reason)


def test_stop_strings_at_every_place_of_the_text(llm):
    """Each stop string that occurs in the text, over one or several tokens, cuts before it."""
    long = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    free = llm.generate("A little girl", long)[0].outputs[0]
    text = free.text
    assert len(text) > 20
    cases = [(i, length) for i in range(0, len(text) - 4, 2) for length in (1, 3, 4)]
    stops = [text[i : i + length] for i, length in cases]
    for include in (False, True):
        params = [
            SamplingParams(
                temperature=0,
                max_tokens=20,
                ignore_eos=True,
                stop=["never\0", stop],
                include_stop_str_in_output=include,
            )
            for stop in stops
        ]
        outputs = llm.generate(["A little girl"] * len(stops), params)
        for stop, output in zip(stops, outputs, strict=True):
            answer = output.outputs[0]
            at = text.find(stop)
            assert answer.text == text[: at + len(stop) * include]
            assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
            assert answer.token_ids == free.token_ids[: len(answer.token_ids)]
            # No token more than it takes to complete the stop string.
            shorter = llm.tokenizer.decode(answer.token_ids[:-1])
            assert stop not in shorter


def test_streaming_never_shows_a_part_of_a_stop_string(llm):
    free = llm.generate("A little girl", GREEDY)[0].outputs[0].text
    stop = free[10:14]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, stop=stop)
    stream = llm.stream("A little girl", params)
    assert "".join(stream) == free[: free.find(stop)]
    assert stream.output.outputs[0].stop_reason == stop


def test_max_tokens_none_ends_at_the_models_limit(llm):
    output = llm.generate("a", SamplingParams(temperature=0, ignore_eos=True))[0]
    assert len(output.prompt_token_ids) + len(tokens_of(output)) == MAX_MODEL_LEN
    assert output.outputs[0].finish_reason == "length"
    more = SamplingParams(temperature=0, ignore_eos=True, max_tokens=10_000)
    assert tokens_of(llm.generate("a", more)[0]) == tokens_of(output)


def test_eos_is_the_union_of_both_configs(tmp_path):
    folder = write_tiny_model(
        tmp_path / "m", config={"eos_token_id": [EOS, 9]}, generation_config={"eos_token_id": 11}
    )
    llm = LLM(folder)
    for token, ends in ((EOS, True), (9, True), (11, True), (END_OF_TURN, False)):
        params = SamplingParams(temperature=0, max_tokens=4, logit_bias={token: 100})
        answer = llm.generate("x", params)[0].outputs[0]
        assert (answer.finish_reason == "stop") == ends
        assert answer.token_ids == ((token,) if ends else (token,) * 4)
