"""Steps in flight, several at once, as loops that end themselves: the tokens of one at a time."""

import numpy as np
import pytest
from step_ways import OTHERS, finish, make_engine, requests_of_every_kind
from tiny_model import BOS, EOS

from cugraphs import LLM, SamplingParams
from cugraphs.ladder import Ladder


@pytest.fixture(scope="module")
def expected(folder):
    """What each gets alone, one step at a time."""
    outputs = []
    for prompt, params in requests_of_every_kind():
        engine = make_engine(folder, max_num_seqs=2)
        request = engine.add_request(prompt, params)
        finish(engine)
        outputs.append(request.output())
    return outputs


@pytest.mark.parametrize("way", OTHERS)
@pytest.mark.parametrize("num_blocks", [None, 20], ids=["roomy", "tight"])
def test_answers_are_those_of_one_at_a_time(folder, expected, way, num_blocks):
    """They come step by step, so that others join while some run, and slots are taken again."""
    engine = make_engine(folder, way, num_blocks=num_blocks)
    requests, counted = [], []
    for prompt, params in requests_of_every_kind():
        requests.append(engine.add_request(prompt, params))
        for _ in range(2):
            engine.step()
            engine.blocks.check_invariant()
            counted.append(engine.stats().generated_tokens)
    finish(engine)
    counted.append(engine.stats().generated_tokens)
    assert (engine.scheduler.num_preemptions > 0) == (num_blocks is not None)
    for request, wanted in zip(requests, expected, strict=True):
        output = request.output()
        assert output.outputs == wanted.outputs and output.prompt_logprobs == wanted.prompt_logprobs
    tokens = sum(len(answer.token_ids) for wanted in expected for answer in wanted.outputs)
    stats = engine.stats()
    assert stats.generated_tokens - stats.surplus_tokens == tokens
    assert counted == sorted(counted)  # a counter of Prometheus may not fall


@pytest.mark.parametrize("way", OTHERS)
def test_aborts_midway_leave_the_others_alone(folder, expected, way):
    """Whose slot is free at once takes the next prompt, while steps with the old row are queued."""
    engine = make_engine(folder, way)
    rng = np.random.default_rng(9)
    asked, live, done = requests_of_every_kind(), {}, {}
    for number, (prompt, params) in enumerate(asked):
        live[number] = engine.add_request(prompt, params)
        for _ in range(int(rng.integers(0, 3))):
            engine.step()
            engine.blocks.check_invariant()
        if rng.random() < 0.4:
            dropped = int(rng.choice(list(live)))
            request = live.pop(dropped)
            engine.abort(request)
            assert request.finished
            for found, wanted in zip(
                request.output().outputs, expected[dropped].outputs, strict=True
            ):
                assert found.token_ids == wanted.token_ids[: len(found.token_ids)]
    done = dict(live)
    finish(engine)
    assert len(done) < len(asked)
    for number, request in done.items():
        assert request.output().outputs == expected[number].outputs


@pytest.mark.parametrize("way", OTHERS)
def test_a_step_that_fails_is_taken_back_with_all_that_follow_it(folder, expected, way):
    engine = make_engine(folder, way)
    runner = engine._runner
    submit, collect = runner.submit, runner.collect
    requests = [engine.add_request(*asked) for asked in requests_of_every_kind()]
    failures = 0
    for number in range(200):
        if not engine.has_unfinished():
            break

        def failing_submit(*step, number=number, **how):
            tickets = submit(*step, **how)
            if number % 5 == 2:
                raise OSError("planted")
            return tickets

        def failing_collect(ticket, number=number):
            outputs = collect(ticket)
            if number % 5 == 4:
                raise OSError("planted")
            return outputs

        runner.submit, runner.collect = failing_submit, failing_collect
        try:
            engine.step()
        except OSError:
            failures += 1
        engine.blocks.check_invariant()
    runner.submit, runner.collect = submit, collect
    finish(engine)
    assert failures > 10
    for request, wanted in zip(requests, expected, strict=True):
        output = request.output()
        assert output.outputs == wanted.outputs and output.prompt_logprobs == wanted.prompt_logprobs


@pytest.mark.parametrize("num_steps", [2, 4])
@pytest.mark.parametrize("ahead", [1, 3, 6])
@pytest.mark.parametrize("behind", ["loops", "loops and single steps"])
def test_loops_that_end_early_with_others_behind_them(folder, expected, num_steps, ahead, behind):
    """The host stops loops before their first step or between two; those behind start there."""
    engine = make_engine(folder, "loops of 4")
    engine._pipeline._num_steps, engine._pipeline._steps_ahead = num_steps, ahead
    runner, ring, rng = engine._runner, engine._runner.ring, np.random.default_rng(num_steps)
    submit, collect, has_ended = runner.submit, runner.collect, ring.has_ended
    most_steps, not_made = engine._pipeline._most_steps, 0
    if behind != "loops":  # as where blocks are scarce, or rows are more than the ladder has
        engine._pipeline._most_steps = lambda: min(most_steps(), int(rng.choice([1, 4])))

    def stopped_at_once(*step, **how):
        if rng.random() < 0.2:
            ring.stop(ring.next_step)
        return submit(*step, **how)

    def stopped_within(loop):
        if rng.random() < 0.3:
            ring.stop(loop)
        return has_ended(loop)

    def counted(ticket):
        nonlocal not_made
        outputs = collect(ticket)
        loops = {step.ticket.loop for step in engine._pipeline._in_flight}
        not_made += outputs is None and len(loops) > 1
        return outputs

    runner.submit, runner.collect, ring.has_ended = stopped_at_once, counted, stopped_within
    requests = [engine.add_request(*asked) for asked in requests_of_every_kind()]
    finish(engine)
    for request, wanted in zip(requests, expected, strict=True):
        assert request.output().outputs == wanted.outputs
    assert not_made > 0  # while others were behind


def test_steps_are_ahead_of_their_tokens(folder):
    engine = make_engine(folder, "async")
    engine.add_request([BOS, 40], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
    for _ in range(3):
        engine.step()
        assert engine.scheduler.num_in_flight == 1
    engine = make_engine(folder, "4 at once")
    engine.add_request([BOS, 40], SamplingParams(temperature=0, max_tokens=10, ignore_eos=True))
    in_flight = []
    while engine.has_unfinished():
        engine.step()
        in_flight.append(engine.scheduler.num_in_flight)
    # The prompt, four steps, four; of the last four one is of use, the others have dead rows.
    assert in_flight[:9] == [0, 3, 2, 1, 0, 3, 2, 1, 0] and in_flight[-1] == 0


def test_tokens_of_steps_at_once_stream_one_by_one(folder):
    engine = make_engine(folder, "16 at once, async")
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    request = engine.add_request([BOS, 40], params, streams=True)
    lengths, outputs = [], []
    while engine.has_unfinished():
        outputs += engine.step()
        lengths.append(len(request.output().outputs[0].token_ids))
    assert lengths[:20] == list(range(1, 21))
    assert [len(o.outputs[0].token_ids) for o in outputs] == [1] * 20
    assert "".join(o.outputs[0].text for o in outputs) == request.output().outputs[0].text
    assert [o.finished for o in outputs] == [False] * 19 + [True]


@pytest.mark.parametrize(("way", "most"), [("async", 2), ("loops of 64", 2), ("sync", 1)])
def test_a_newcomer_waits_for_no_more_than_what_is_in_flight(folder, way, most):
    """Steps until its first token, its own included; a loop ends when it comes."""
    engine = make_engine(folder, way)
    long = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    engine.add_request([BOS, 40], long)
    for _ in range(5):
        engine.step()
    newcomer = engine.add_request([BOS, 50], long)
    steps = engine.stats().steps
    while not newcomer.output().outputs[0].token_ids:
        engine.step()
    # On the CPU a loop has made all of its steps by now: those that are there are collected first.
    in_flight = 64 if way == "loops of 64" else 0
    assert engine.stats().steps - steps <= most + in_flight
    finish(engine)


@pytest.mark.parametrize("ends", ["by a stop string", "aborted"])
def test_loops_end_for_those_who_can_join_and_for_no_others(folder, ends, monkeypatch):
    engine = make_engine(folder, "loops of 16", max_num_seqs=1)
    text, stops = engine._text, []
    engine._pipeline._give = lambda tokens: (text.put(tokens), text.drain())
    stop_loops = engine._runner.stop_loops
    monkeypatch.setattr(engine._runner, "stop_loops", lambda: (stops.append(1), stop_loops()))
    greedy = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    first = engine.add_request([BOS, 40], greedy)
    finish(engine)
    stop = first.output().outputs[0].text[2:6]  # of the third token, or soon after
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=stop)
    first = engine.add_request([BOS, 40], params)
    for _ in range(2):
        engine.step()
    stops.clear()
    second = engine.add_request([BOS, 50], greedy)
    assert not stops  # the only slot is taken
    if ends == "aborted":
        engine.abort(first)
    while not first.finished:
        engine.step()
    assert stops and engine.scheduler.waiting
    finish(engine)
    assert len(second.output().outputs[0].token_ids) == 40


@pytest.mark.parametrize(("way", "queued"), [("4 at once", 3), ("loops of 4", 4)])
def test_steps_go_together_while_a_prompt_waits_for_blocks(folder, way, queued):
    """It could not join before somebody ends, so nobody takes steps one by one for it."""
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    alone = make_engine(folder, max_num_seqs=1)
    prompts = [[BOS, *range(20, 48)], [BOS, *range(90, 128)]]
    expected = [alone.add_request(prompt, params) for prompt in prompts]
    finish(alone)
    engine = make_engine(folder, way, num_blocks=17)  # 16 of 4 tokens, of which 14 and 16 are used
    first, second = (engine.add_request(prompt, params) for prompt in prompts)
    in_flight = []
    while engine.scheduler.waiting:
        engine.step()
        in_flight.append(engine.scheduler.num_in_flight)
    assert sum(count >= queued for count in in_flight) >= 4
    finish(engine)
    found = [request.output().outputs for request in (first, second)]
    assert found == [request.output().outputs for request in expected]


@pytest.mark.parametrize("way", ["sync", "async", "loops of 4"])
def test_a_slot_is_taken_again_after_an_end_that_steps_were_queued_behind(folder, way):
    """Those made no token, so the slot stands a token earlier than was thought when they were."""
    greedy = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    common = [BOS, *range(50, 57)]
    fresh = make_engine(folder, max_num_seqs=1)
    expected = fresh.add_request([*common, 60], greedy)
    finish(fresh)
    for length in range(4, 9):  # with one of them the slot seems to stand where the prefix ends
        engine = make_engine(folder, way, max_num_seqs=1)
        engine.add_request([*common, 70], greedy)
        finish(engine)
        ends = SamplingParams(temperature=0, max_tokens=9, logit_bias={EOS: 100.0})
        ended = engine.add_request([BOS, *range(20, 19 + length)], ends)
        request = engine.add_request([*common, 60], greedy)
        finish(engine)
        assert ended.output().outputs[0].token_ids == (EOS,)
        assert request.output().outputs == expected.output().outputs
        assert engine.stats().cached_tokens == 8


def test_a_batch_above_the_ladder_is_stepped_one_by_one(folder, expected):
    ladder = Ladder(4, [1, 2], max_capture_size=2, off_ladder="split")
    engine = make_engine(folder, "4 at once, async", ladder=ladder)
    requests = [engine.add_request(*asked) for asked in requests_of_every_kind()]
    finish(engine)
    for request, wanted in zip(requests, expected, strict=True):
        assert request.output().outputs == wanted.outputs
    assert engine.stats().off_ladder_steps > 0


def test_llm_takes_the_options(folder):
    options = {"device": "cpu", "max_num_seqs": 3, "max_model_len": 64, "batch_invariant": True}
    prompts = ["The quick", "Once upon", "a", "over the", "dog"]
    params = [SamplingParams(seed=i, max_tokens=7 + 5 * i) for i in range(5)]
    expected = LLM(folder, **options).generate(prompts, params)
    for more in (
        {"async_scheduling": True},
        {"num_scheduler_steps": 8, "step_loops": False},
        {"num_scheduler_steps": 64, "step_loops": False, "async_scheduling": True},
        {"num_scheduler_steps": 8, "async_scheduling": True},
    ):
        llm = LLM(folder, **options, **more)
        assert llm.runner.has_loops == ("step_loops" not in more and "num_scheduler_steps" in more)
        found = llm.generate(prompts, params)
        assert [o.outputs for o in found] == [o.outputs for o in expected]
        pieces = list(llm.stream(prompts[0], params[0]))
        assert "".join(pieces) == expected[0].outputs[0].text
        assert not llm.engine.has_unfinished() and llm.engine.scheduler.num_in_flight == 0
        assert llm.engine.blocks.num_free == llm.engine.blocks.num_usable


@pytest.mark.parametrize("steps", [0, 65, True, 2.0, "8"])
def test_num_scheduler_steps_out_of_range_is_refused_before_anything_is_loaded(steps):
    with pytest.raises(ValueError, match=r"num_scheduler_steps is .*, expected an integer of 1 to"):
        LLM("/there/is/no/such/folder", device="cpu", num_scheduler_steps=steps)
