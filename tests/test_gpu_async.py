"""Steps in flight, several at once and as loops on a GPU: the tokens of one at a time."""

import contextlib

import numpy as np
import pytest
from step_ways import OTHERS, finish, make_engine, requests_of_every_kind
from tiny_model import BOS

from cugraphs import SamplingParams

pytestmark = pytest.mark.gpu

MANY = 10_000
STRESS = {"max_num_seqs": 128, "max_num_batched_tokens": 1024, "poison": False}


@pytest.fixture(scope="module")
def expected(folder, device):
    """What each gets on the GPU, one step at a time."""
    engine = make_engine(folder, device=device, mode="full")
    return answers(engine, requests_of_every_kind())


def answers(engine, asked):
    requests = [engine.add_request(*each) for each in asked]
    finish(engine)
    return [request.output() for request in requests]


def test_one_at_a_time_is_what_the_cpu_gives(folder, expected):
    found = answers(make_engine(folder), requests_of_every_kind())
    same = [
        a.outputs[0].token_ids == b.outputs[0].token_ids
        for a, b in zip(expected, found, strict=True)
    ]
    greedy = [params.temperature == 0 for _, params in requests_of_every_kind()]
    assert all(equal for equal, is_greedy in zip(same, greedy, strict=True) if is_greedy)
    # A drawn token can differ where its random number falls between two sums that differ.
    assert sum(same) >= len(same) - 2


@pytest.mark.parametrize("way", OTHERS)
@pytest.mark.parametrize("num_blocks", [None, 20], ids=["roomy", "tight"])
def test_answers_are_those_of_one_at_a_time(folder, device, expected, way, num_blocks):
    engine = make_engine(folder, way, device=device, mode="full", num_blocks=num_blocks)
    requests = []
    for prompt, params in requests_of_every_kind():
        requests.append(engine.add_request(prompt, params))
        for _ in range(2):
            engine.step()
    finish(engine)
    for request, wanted in zip(requests, expected, strict=True):
        output = request.output()
        for found, known in zip(output.outputs, wanted.outputs, strict=True):
            assert found.token_ids == known.token_ids and found.text == known.text
            assert (found.finish_reason, found.stop_reason) == (
                known.finish_reason,
                known.stop_reason,
            )
    if way.startswith("loops"):
        assert engine._runner.decode.loops == engine._runner.decode.captured
        assert sum(engine._runner.counts.loops.values()) > 0


@pytest.mark.parametrize("way", ["async", "16 at once, async", "loops of 16"])
def test_aborts_and_failures_midway_leave_the_others_alone(folder, device, expected, way):
    engine = make_engine(folder, way, device=device, mode="full")
    rng = np.random.default_rng(3)
    live = {}
    submit = engine._runner.submit

    def failing(*step, **how):
        tickets = submit(*step, **how)
        if rng.random() < 0.1:
            raise OSError("planted")
        return tickets

    engine._runner.submit = failing
    for number, (prompt, params) in enumerate(requests_of_every_kind()):
        live[number] = engine.add_request(prompt, params)
        for _ in range(int(rng.integers(0, 4))):
            with contextlib.suppress(OSError):
                engine.step()
        if rng.random() < 0.3:
            engine.abort(live.pop(int(rng.choice(list(live)))))
    engine._runner.submit = submit
    finish(engine)
    for number, request in live.items():
        tokens = [answer.token_ids for answer in request.output().outputs]
        assert tokens == [answer.token_ids for answer in expected[number].outputs]


def short_requests():
    rng = np.random.default_rng(6)
    for number in range(MANY):
        prompt = [BOS, *rng.integers(5, 150, int(rng.integers(1, 12))).tolist()]
        yield (
            prompt,
            SamplingParams(
                temperature=0.0 if number % 2 else 1.0,
                seed=number,
                max_tokens=int(rng.integers(1, 14)),
                ignore_eos=number % 3 == 0,
            ),
        )


@pytest.fixture(scope="module")
def many_expected(folder, device):
    engine = make_engine(folder, "async", device=device, mode="full", **STRESS)
    return [output.outputs[0].token_ids for output in served(engine)]


def served(engine):
    """Requests that come as others go, some more than there are slots."""
    waiting, requests = short_requests(), []
    while True:
        scheduler = engine.scheduler
        while len(scheduler.running) + len(scheduler.waiting) < 1.1 * scheduler.max_num_seqs:
            asked = next(waiting, None)
            if asked is None:
                finish(engine)
                return [request.output() for request in requests]
            requests.append(engine.add_request(*asked))
        engine.step()


@pytest.mark.parametrize("way", ["8 at once, async", "loops of 16"])
def test_ten_thousand_short_requests(folder, device, many_expected, way):
    engine = make_engine(folder, way, device=device, mode="full", **STRESS)
    found = [output.outputs[0].token_ids for output in served(engine)]
    assert found == many_expected
