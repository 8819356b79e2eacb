"""What goes wrong with a request ends that one, and says so; others get what they get alone."""

import asyncio

import numpy as np
import pytest
from step_ways import WAYS, finish, make_engine
from tiny_model import BOS, CONFIG, write_tiny_model

from cugraphs import LLM, AsyncLLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
BAD = 159  # a token whose embedding is NaN
SAMPLES = SamplingParams(n=3, seed=1, max_tokens=9, logit_bias={BAD: -100.0})
OPTIONS = {"device": "cpu", "max_num_seqs": 4, "max_model_len": 64, "batch_invariant": True}
NOT_NUMBERS = "the logits at position {} hold NaN or infinity, expected numbers; the weights are"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(7)
    hidden = CONFIG["hidden_size"]
    embeddings = rng.normal(size=(163, hidden)).astype(np.float32)
    embeddings[BAD] = np.nan
    weights = {"model.embed_tokens.weight": embeddings}
    return write_tiny_model(tmp_path_factory.mktemp("failures") / "tiny", weights=weights)


def prompts():
    """Every third one holds the bad token, with which its later tokens are no numbers."""
    rng = np.random.default_rng(1)
    found = []
    for number in range(9):
        prompt = [BOS, *rng.integers(5, 150, int(rng.integers(5, 30))).tolist()]
        found.append([*prompt[:3], BAD, *prompt[3:]] if number % 3 == 1 else prompt)
    return found


@pytest.fixture(scope="module")
def expected(folder):
    engine = make_engine(folder, max_num_seqs=1, prefix_caching=False)
    requests = [engine.add_request(prompt, GREEDY) for prompt in prompts() if BAD not in prompt]
    finish(engine)
    return [request.output().outputs for request in requests]


@pytest.mark.parametrize("way", WAYS)
def test_a_prompt_without_numbers_fails_alone(folder, expected, way):
    engine = make_engine(folder, way)
    requests = [engine.add_request(prompt, GREEDY, streams=True) for prompt in prompts()]
    told = []
    while engine.has_unfinished():
        told += [output for output in engine.step() if output.finished]
        engine.blocks.check_invariant()
    finish(engine)
    good = [r for r, prompt in zip(requests, prompts(), strict=True) if BAD not in prompt]
    bad = [r for r, prompt in zip(requests, prompts(), strict=True) if BAD in prompt]
    assert [request.output().outputs for request in good] == expected
    assert all(request.output().error is None for request in good)
    for request in bad:
        output = request.output()
        assert output.error.startswith(NOT_NUMBERS.format(len(output.prompt_token_ids)))
        (answer,) = output.outputs
        assert (answer.finish_reason, answer.token_ids, answer.text) == ("error", (), "")
        (last,) = [o for o in told if o.request_id == output.request_id]
        assert last.error == output.error and last.outputs[0].finish_reason == "error"
    stats = engine.stats()
    assert (stats.requests_finished, stats.requests_failed) == (9, 3)
    assert stats.generated_tokens - stats.surplus_tokens == 6 * 12


@pytest.mark.parametrize("way", ["sync", "async", "loops of 4"])
def test_what_a_failed_prompt_has_written_is_not_found_by_others(folder, way):
    engine = make_engine(folder, way)
    for prompt in prompts():
        engine.add_request(prompt, GREEDY if len(prompt) % 2 else SAMPLES)
        finish(engine)
        found = engine.blocks.cached_prefix(np.int32(prompt))
        assert bool(found) == (BAD not in prompt)


def broken_at(count, call):
    """Fails the so manieth time."""
    calls = []

    def fails(*args):
        calls.append(args)
        if len(calls) == count:
            raise KeyError("planted")
        return call(*args)

    return fails


@pytest.mark.parametrize("way", ["sync", "async", "loops of 16"])
@pytest.mark.parametrize("part", ["_detokenizer.push", "_stops.push", "_detokenizer.flush"])
def test_a_text_that_cannot_be_made_fails_its_request_alone(folder, part, way, monkeypatch):
    engine = make_engine(folder, way)
    params = SamplingParams(
        n=3, seed=5, max_tokens=9, ignore_eos=True, stop="\x00never", logit_bias={BAD: -100.0}
    )
    good, bad = (engine.add_request([BOS, *range(20, 33)], params) for _ in range(2))
    owner, name = part.split(".")
    owner = getattr(bad.completions[1], owner)
    count = 1 if name == "flush" else 4
    monkeypatch.setattr(owner, name, broken_at(count, getattr(owner, name)))
    finish(engine)
    assert [len(c.token_ids) for c in good.output().outputs] == [9, 9, 9]
    output = bad.output()
    assert output.error == "KeyError: 'planted'" and output.finished
    assert output.outputs[1].finish_reason == "error"
    assert {a.finish_reason for a in output.outputs} <= {"error", "length"}
    assert len(output.outputs[1].token_ids) == (9 if name == "flush" else 4)


def test_a_logprob_that_cannot_be_told_fails_its_request_alone(folder, monkeypatch):
    engine = make_engine(folder)
    params = SamplingParams(
        temperature=0, max_tokens=3, ignore_eos=True, prompt_logprobs=0, logprobs=0
    )
    good, bad = (engine.add_request([BOS, 40 + i, 50], params) for i in range(2))
    decode = engine._tokenizer.decode

    def fails(token_ids, **options):
        if list(token_ids) == [41]:  # of the second prompt
            raise KeyError("planted")
        return decode(token_ids, **options)

    monkeypatch.setattr(engine._tokenizer, "decode", fails)
    finish(engine)
    assert bad.output().error == "KeyError: 'planted'"
    assert good.output().error is None and len(good.output().prompt_logprobs) == 3


def test_an_abort_whose_text_cannot_be_made_is_one_all_the_same(folder, monkeypatch):
    engine = make_engine(folder)
    request, other = (engine.add_request([BOS, 40], GREEDY) for _ in range(2))
    for _ in range(3):
        engine.step()
    monkeypatch.setattr(request.completions[0]._detokenizer, "flush", lambda: 1 / 0)
    engine.abort(request)
    assert request.output().outputs[0].finish_reason == "abort"
    finish(engine)
    assert len(other.output().outputs[0].token_ids) == 12


def test_a_callback_that_fails_is_logged(folder, caplog):
    engine = make_engine(folder)
    told = []
    engine.on_finished += [lambda times: 1 / 0, told.append]
    requests = [engine.add_request([BOS, 40 + i], GREEDY) for i in range(2)]
    finish(engine)
    assert all(len(r.output().outputs[0].token_ids) == 12 for r in requests) and len(told) == 2
    assert [r.message for r in caplog.records] == ["Engine: a callback in on_finished failed"] * 2


def test_generate_says_which_prompt_it_was(folder):
    llm = LLM(folder, **OPTIONS)
    with pytest.raises(FloatingPointError) as caught:
        llm.generate([[BOS, 40], [BOS, 41], [BOS, BAD, 42]], GREEDY)
    assert str(caught.value).startswith("LLM.generate: prompts[2]: " + NOT_NUMBERS.format(3))
    assert not llm.engine.has_unfinished() and llm.stats().kv_blocks_used == 0
    assert len(llm.generate([[BOS, 40]], GREEDY)[0].outputs[0].token_ids) == 12


def test_a_stream_says_it_once(folder):
    llm = LLM(folder, **OPTIONS)
    stream = llm.stream([BOS, BAD], GREEDY)
    with pytest.raises(FloatingPointError, match=r"LLM\.stream: the logits at position 2 hold NaN"):
        next(stream)
    assert list(stream) == [] and stream.output.outputs[0].finish_reason == "error"


@pytest.mark.parametrize("options", [{}, {"async_scheduling": True, "num_scheduler_steps": 4}])
def test_of_many_tasks_the_one_that_failed_is_told(folder, expected, options):
    async def main():
        async with AsyncLLM(folder, **OPTIONS, **options) as llm:

            async def stream(prompt):
                deltas = [delta async for delta in llm.generate(prompt, GREEDY)]
                return tuple(token for delta in deltas for token in delta.token_ids)

            streams = [stream(prompt) for prompt in prompts()]
            whole = [llm.complete(prompt, GREEDY) for prompt in prompts()]
            found = await asyncio.gather(*streams, *whole, return_exceptions=True)
            while llm.stats().requests_running:
                await asyncio.sleep(0.001)
            assert llm.stats().kv_blocks_used == 0 and llm.stats().requests_failed == 6
            return found[:9], found[9:]

    streamed, whole = asyncio.run(main())
    good = iter(expected)
    for prompt, tokens, output in zip(prompts(), streamed, whole, strict=True):
        if BAD in prompt:
            message = "AsyncLLM: " + NOT_NUMBERS.format(len(prompt))
            for error in (tokens, output):
                assert isinstance(error, FloatingPointError) and str(error).startswith(message)
        else:
            wanted = next(good)
            assert tokens == wanted[0].token_ids and output.outputs == wanted
