"""What a serving benchmark counts, against hand-computed values of a made-up engine and clock."""

import dataclasses
from types import SimpleNamespace

import pytest
from tiny_model import write_tiny_model

from cugraphs import LLM
from cugraphs.device_choice import plan_kv_cache
from cugraphs.gpu_specs import gpu_spec
from cugraphs.ladder import Ladder
from cugraphs.model_shapes import model_shape
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.serving_bench import (
    Answer,
    ServingResult,
    ServingRun,
    Spread,
    StepRecord,
    counters_between,
    spread_of,
)
from cugraphs.serving_bound import ServingWork, serving_work
from cugraphs.statistics import EngineStats, RequestTimes
from cugraphs.step_plan import StepPlan
from cugraphs.workloads import Demand

NOTHING = EngineStats(
    **{f.name: 0 for f in dataclasses.fields(EngineStats)}
    | {"replays": {}, "eager_steps": {}, "host_seconds": {}}
)


class FakeTime:
    """A clock that stands still until something takes time."""

    def __init__(self):
        self.now, self.slept = 100.0, []

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


class FakeRequest:
    """What the fake engine holds of a request, by its clock."""

    def __init__(self, request_id, prompt, max_tokens, now):
        self.request_id, self.prompt, self.left = request_id, prompt, max_tokens
        self.arrival, self.first, self.end, self.tokens = now, None, None, 0

    @property
    def finished(self):
        return self.left == 0

    def output(self):
        def since(moment):
            return None if moment is None else moment - self.arrival

        answer = SimpleNamespace(token_ids=(9,) * self.tokens)
        times = RequestTimes(0.0, since(self.first), None, since(self.end))
        return SimpleNamespace(outputs=(answer,), times=times, error=None)


class FakeEngine:
    """Two rows at a time; a step takes 1 s and 0.25 s more for each prompt that it reads."""

    def __init__(self, time):
        self.time, self.requests, self.aborted = time, [], []
        self.counts = {"steps": 0, "prompt_tokens": 0, "generated_tokens": 0, "replays": {}}

    def add_request(self, prompt_token_ids, params):
        assert params.temperature == 0 and params.ignore_eos
        number = 70 + len(self.requests)
        request = FakeRequest(number, prompt_token_ids, params.max_tokens, self.time.now)
        self.requests.append(request)
        return request

    def step(self):
        rows = [request for request in self.requests if not request.finished][:2]
        new = [request for request in rows if request.first is None]
        self.time.now += 1.0 + 0.25 * len(new)
        self.counts["prompt_tokens"] += sum(len(request.prompt) for request in new)
        for request in rows:
            request.first = request.first or self.time.now
            request.tokens += 1
            request.left -= 1
            request.end = self.time.now if request.finished else None
        self.counts["generated_tokens"] += len(rows)
        replays = self.counts["replays"]
        replays[len(rows)] = replays.get(len(rows), 0) + 1
        self.counts["steps"] += 1
        return rows

    def abort(self, request):
        self.aborted.append(request)

    def stats(self):
        replays = dict(self.counts["replays"])
        return dataclasses.replace(NOTHING, **{**self.counts, "replays": replays})


@pytest.fixture
def time():
    return FakeTime()


def serve(time, demands, **options):
    engine = FakeEngine(time)
    run = ServingRun(engine, demands, clock=time.clock, sleep=time.sleep, **options)
    run.run()
    return engine, run.result()


def test_times_of_a_batch_by_hand(time):
    """Prompts of 3, 5 and 2 tokens for 2, 3 and 1 tokens; two rows at a time.

    Steps end at 1.5 (two prompts), 2.5 (the first ends), 3.75 (the second's last token; the third's
    prompt and only token).
    """
    demands = [Demand((1, 2, 3), 2), Demand((4,) * 5, 3), Demand((6, 7), 1)]
    ended = []
    engine, result = serve(time, demands, on_finished=ended.append)
    first, second, third = result.answers
    assert (first.ttft_s, first.tpot_s, first.end_to_end_s) == (1.5, 1.0, 2.5)
    assert (second.ttft_s, second.tpot_s, second.end_to_end_s) == (1.5, 1.125, 3.75)
    assert (third.ttft_s, third.tpot_s, third.end_to_end_s) == (3.75, None, 3.75)
    assert ended == [first, second, third]
    assert (result.requests, result.finished, result.seconds) == (3, 3, 3.75)
    assert (result.prompt_tokens, result.generated_tokens) == (10, 6)
    assert result.per_s(result.generated_tokens) == 1.6
    assert [dataclasses.astuple(step) for step in result.steps] == [
        *((1.5, 1, 8, 2), (2.5, 1, 0, 2), (3.75, 1, 2, 2)),
    ]
    assert result.counters["replays"] == {2: 3} and result.counters["prompt_tokens"] == 10
    assert not engine.aborted and result.busy_s == 3.75


def test_requests_come_when_they_are_due_and_waiting_counts(time):
    """One at 0, one at 0.5 (in the middle of a step, so it joins after it), one at 10."""
    demands = [Demand((1,), 1, 0.0), Demand((1,), 2, 0.5), Demand((1, 1), 1, 10.0)]
    _, result = serve(time, demands)
    assert [answer.arrival_s for answer in result.answers] == [0.0, 0.5, 10.0]
    assert [answer.ttft_s for answer in result.answers] == [1.25, 2.0, 1.25]
    assert [answer.end_to_end_s for answer in result.answers] == [1.25, 3.0, 1.25]
    assert time.slept == [6.5]  # from 3.5, when the second ends
    assert (result.seconds, result.busy_s) == (11.25, 4.75)


def test_an_interrupt_leaves_what_is_done(time):
    engine = FakeEngine(time)
    step = engine.step

    def interrupted():
        if engine.counts["steps"] == 2:
            engine.counts["preemptions"] = 2  # what the interrupt itself costs is not the run's
            raise KeyboardInterrupt
        return step()

    engine.step = interrupted
    demands = [Demand((1,), 1), Demand((1,), 5), Demand((1,), 5), Demand((1,), 5, 99.0)]
    run = ServingRun(engine, demands, clock=time.clock, sleep=time.sleep)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    result = run.result()
    assert (result.requests, len(result.answers), result.finished) == (4, 3, 1)
    assert [answer.output_tokens for answer in result.answers] == [1, 2, 1]
    assert result.prompt_tokens == 3 and result.seconds == 2.75
    assert [request.request_id for request in engine.aborted] == [71, 72]
    assert result.counters["preemptions"] == 0


def test_nothing_done_is_no_error(time):
    result = ServingRun(FakeEngine(time), [Demand((1,), 1)]).result()
    assert (result.seconds, result.finished, result.per_s(3)) == (0.0, 0, 0.0)
    assert result.spreads() == {"ttft": None, "tpot": None, "end_to_end": None}


def test_percentiles_by_hand():
    """Of 1 to 11 ms: position p/100 * 10 from the least, between two by their distance."""
    seconds = [n / 1e3 for n in (5, 3, 1, 2, 4, 11, 10, 9, 8, 6, 7)]
    spread = spread_of([*seconds, None])
    assert dataclasses.astuple(spread) == pytest.approx((6.0, 6.0, 10.0, 10.9))
    assert spread_of([0.002]) == Spread(2.0, 2.0, 2.0, 2.0)
    assert spread_of([None]) is None and spread_of([]) is None


def test_counters_between_are_differences_but_for_what_is_so_now():
    before = dataclasses.replace(
        NOTHING, steps=5, replays={8: 3, 4: 1}, kv_blocks_used=7, host_seconds={"run": 1.0}
    )
    after = dataclasses.replace(
        NOTHING, steps=9, replays={8: 5, 4: 1, 2: 1}, kv_blocks_used=3, host_seconds={"run": 1.5}
    )
    found = counters_between(before, after)
    assert found["steps"] == 4 and found["replays"] == {8: 2, 2: 1}
    assert found["kv_blocks_used"] == 3 and found["host_seconds"] == {"run": 0.5}
    assert found.keys() == {f.name for f in dataclasses.fields(EngineStats)}


# ------------------------------------------------------------------------------------- the bound


WORK = ServingWork(
    weight_bytes=8 * 10**9,
    flops_per_token=15 * 10**9,
    flops_per_logits_row=10**9,
    kv_bytes_per_token=10**5,
)
GPU = gpu_spec("h200").with_figures("test", read_bytes_per_s=4e12, flops_per_s=8e14)


def test_a_steps_bound_by_hand():
    """At 4 TB/s and 800 TFLOP/s: 8 GB take 2 ms, as 100 tokens of 16 GFLOP would."""
    assert WORK.step_s(GPU, tokens=2, logits_rows=2) == pytest.approx(2e-3)
    assert WORK.step_s(GPU, tokens=100, logits_rows=100) == pytest.approx(2e-3)
    many = WORK.step_s(GPU, tokens=1000, logits_rows=8)
    assert many == pytest.approx((1000 * 15e9 + 8 * 1e9) / 8e14)


def test_a_runs_bound_is_that_of_its_steps(time, monkeypatch):
    """Steps of 8 prompt tokens, of two decode rows, and of a prompt of 2 beside a decode row.

    K and V are read with 3 + 1 tokens in the cache, with 5 + 1, and with 5 + 2.
    """
    demands = [Demand((1, 2, 3), 2), Demand((4,) * 5, 3), Demand((6, 7), 1)]
    _, result = serve(time, demands)
    assert WORK.run_s(GPU, result) == pytest.approx(3 * 2e-3 + (4 + 6 + 7) * 1e5 / 4e12)
    steps = []
    monkeypatch.setattr(ServingWork, "step_s", lambda work, gpu, **step: steps.append(step) or 1.0)
    WORK.run_s(GPU, result)
    assert steps == [
        {"tokens": 8, "logits_rows": 2},
        {"tokens": 2, "logits_rows": 2},
        {"tokens": 3, "logits_rows": 2},
    ]


def test_a_call_of_several_steps_counts_as_so_many():
    """4 steps of 10 rows read the weights 4 times; one of none costs nothing."""
    steps = [StepRecord(1.0, 1, 30, 10), StepRecord(2.0, 4, 0, 40), StepRecord(2.1, 0, 0, 0)]
    answers = [Answer(3, 0.0, 5, first_token_s=0.9, end_s=2.0) for _ in range(10)]
    result = ServingResult(10, 2.1, 2.1, answers, steps, {})
    kv_tokens = 10 * (4 + 5 + 6 + 7)
    assert WORK.run_s(GPU, result) == pytest.approx(5 * 2e-3 + kv_tokens * 1e5 / 4e12)


def test_the_work_of_8b_is_that_of_its_matrices():
    """6144, 4096 and 28672 x 4096 and 4096 x 14336 a layer; a head of 128256 x 4096."""
    config = LlamaConfig.from_hf(model_shape("llama-3.1-8b"), "8b")
    cache = plan_kv_cache(config, "bfloat16", 256, 2, None, 1 << 40)
    plan = StepPlan(
        Llama(config, "bfloat16"),
        cache,
        vocab_size=config.vocab_size,
        max_num_seqs=2,
        max_num_batched_tokens=16,
        ladder=Ladder(2),
    )
    work = serving_work(plan.mixed.program, cache)
    layer = (6144 + 4096 + 28672) * 4096 + 4096 * 14336
    # What follows attention in the last layer is computed for sampled rows alone; and what is fused
    # into a product, a sum or an activation, is less than a thousandth of it.
    both = work.flops_per_token + work.flops_per_logits_row
    assert both == pytest.approx(2 * (32 * layer + 128256 * 4096), rel=1e-3)
    assert 2 * 31 * layer < work.flops_per_token < 2 * 32 * layer
    assert work.kv_bytes_per_token == 2 * 2 * 32 * 8 * 128
    assert work.weight_bytes == 2 * (32 * (layer + 2 * 4096) + 4096 + 128256 * 4096)


# ------------------------------------------------------------------------------------ a real engine


def test_a_real_engine_serves_every_token(tmp_path):
    llm = LLM(write_tiny_model(tmp_path / "m"), device="cpu", max_num_seqs=3)
    demands = [Demand((5, 6, 7 + n), 4 + n, arrival_s=n * 1e-3) for n in range(7)]
    run = ServingRun(llm.engine, demands)
    run.run()
    result = run.result()
    assert [answer.output_tokens for answer in result.answers] == [4 + n for n in range(7)]
    assert all(0 < a.ttft_s <= a.end_to_end_s for a in result.answers)
    assert result.prompt_tokens == 21 and result.generated_tokens == sum(range(4, 11))
    counters = result.counters
    assert counters["generated_tokens"] == result.generated_tokens
    assert counters["prompt_tokens"] + counters["cached_tokens"] == 21
    assert counters["steps"] == sum(step.steps for step in result.steps)
    assert counters["requests_finished"] == 7
    assert sum(step.prompt_tokens for step in result.steps) == counters["prompt_tokens"]
    assert not llm.engine.has_unfinished()
    llm.engine.blocks.check_invariant()
