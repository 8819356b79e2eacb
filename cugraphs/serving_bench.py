"""Serves a workload with an engine, step by step, and tells how fast: tokens, latencies, counters.

Requests come when they are due, whether or not the engine keeps up, and what they wait for counts
from then on; when their tokens were sampled is the engine's own word. Knows no model, no device.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from cugraphs.outputs import RequestOutput
from cugraphs.sampling_params import SamplingParams
from cugraphs.statistics import EngineStats
from cugraphs.workloads import Demand

PERCENTILES = (50, 90, 99)
_GAUGES = (
    *("requests_waiting", "requests_running", "captures"),
    *("kv_blocks", "kv_blocks_used", "kv_blocks_cached"),
)


class Progress(Protocol):
    """Of what a step returns: which request it is of, and whether that has ended."""

    @property
    def request_id(self) -> int:
        """Given by the engine."""

    @property
    def finished(self) -> bool:
        """Whether it has every token."""


class Asked(Protocol):
    """A request that was added."""

    @property
    def request_id(self) -> int:
        """Given by the engine."""

    def output(self) -> RequestOutput:
        """All that it has so far."""


class ServingEngine(Protocol):
    """What the bench asks of an engine."""

    def add_request(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> Asked:
        """Queue a prompt."""

    def step(self) -> Sequence[Progress]:
        """Run a step, or some; whoever has ended is in it."""

    def abort(self, request: Any) -> None:  # noqa: ANN401 - what add_request gave
        """Stop a request."""

    def stats(self) -> EngineStats:
        """Counters since the start."""


@dataclass(eq=False)
class Answer:
    """What became of one request; times in seconds from the start of the run.

    Args:
        prompt_tokens: of its prompt.
        arrival_s: when it was due.
        output_tokens: so far.
        first_token_s: when it had its first token; None if it has none.
        end_s: when it had its last one; None if it has not ended.
    """

    prompt_tokens: int
    arrival_s: float
    output_tokens: int = 0
    first_token_s: float | None = None
    end_s: float | None = None

    @property
    def ttft_s(self) -> float | None:
        """From when it was due to its first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first, where there is one; of requests that ended."""
        if self.end_s is None or self.first_token_s is None or self.output_tokens < 2:
            return None
        return (self.end_s - self.first_token_s) / (self.output_tokens - 1)

    @property
    def end_to_end_s(self) -> float | None:
        """From when it was due to its end."""
        return None if self.end_s is None else self.end_s - self.arrival_s


@dataclass(frozen=True)
class Spread:
    """Milliseconds of many requests: their mean and percentiles, interpolated linearly."""

    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float


def spread_of(seconds: Sequence[float | None]) -> Spread | None:
    """The spread of those that are known; None if none is."""
    known = [value * 1e3 for value in seconds if value is not None]
    if not known:
        return None
    return Spread(float(np.mean(known)), *map(float, np.percentile(known, PERCENTILES)))


@dataclass(frozen=True)
class StepRecord:
    """One call of the engine's step: when it ended, and what was computed in it.

    Args:
        end_s: from the start of the run.
        steps: that ran; a call may run several, or none.
        prompt_tokens: computed.
        generated_tokens: sampled, one a row and step.
    """

    end_s: float
    steps: int
    prompt_tokens: int
    generated_tokens: int


@dataclass(frozen=True)
class ServingResult:
    """A run, or as much of it as there was time for.

    Args:
        requests: that were asked for.
        seconds: from the start to the end of the last step.
        busy_s: of them, those in which the engine had a request.
        answers: of the requests that have come, in order.
        steps: in order.
        counters: what the engine counted up to then.
    """

    requests: int
    seconds: float
    busy_s: float
    answers: Sequence[Answer]
    steps: Sequence[StepRecord]
    counters: Mapping[str, Any]

    @property
    def finished(self) -> int:
        """Requests that have ended."""
        return sum(answer.end_s is not None for answer in self.answers)

    @property
    def prompt_tokens(self) -> int:
        """Of the prompts that were read to their end, computed or found in the cache."""
        return sum(a.prompt_tokens for a in self.answers if a.first_token_s is not None)

    @property
    def generated_tokens(self) -> int:
        """Of all answers so far."""
        return sum(answer.output_tokens for answer in self.answers)

    def per_s(self, count: float) -> float:
        """So many in the run's seconds."""
        return count / self.seconds if self.seconds else 0.0

    def spreads(self) -> dict[str, Spread | None]:
        """Time to first token, time per output token, end to end."""
        return {
            "ttft": spread_of([answer.ttft_s for answer in self.answers]),
            "tpot": spread_of([answer.tpot_s for answer in self.answers]),
            "end_to_end": spread_of([answer.end_to_end_s for answer in self.answers]),
        }


@dataclass
class ServingRun:
    """One run of a workload. :meth:`result` holds at any time, also after an interrupt.

    Args:
        engine: with no request in it.
        demands: in order of arrival.
        clock: seconds.
        sleep: for so many of them.
        on_finished: called with each request that ends.
    """

    engine: ServingEngine
    demands: Sequence[Demand]
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    on_finished: Callable[[Answer], None] = lambda answer: None
    _answers: list[Answer] = field(default_factory=list)
    _running: dict[int, _Running] = field(default_factory=dict)
    _steps: list[StepRecord] = field(default_factory=list)
    _idle_s: float = 0.0

    def __post_init__(self) -> None:
        """Remember what the engine has counted so far."""
        self._before = self._after = self.engine.stats()

    def run(self) -> None:
        """Serve everything. Whatever stops it leaves no request in the engine."""
        waiting = list(reversed(self.demands))
        start = self.clock()
        try:
            while waiting or self._running:
                now = self.clock() - start
                while waiting and waiting[-1].arrival_s <= now:
                    self._add(waiting.pop(), start)
                if self._running:
                    self._step(start)
                else:
                    before = self.clock()
                    self.sleep(waiting[-1].arrival_s - now)
                    self._idle_s += self.clock() - before
        finally:
            for running in self._running.values():
                running.read(ended=False)
                self.engine.abort(running.request)

    def result(self) -> ServingResult:
        """What there is so far."""
        seconds = self._steps[-1].end_s if self._steps else 0.0
        return ServingResult(
            requests=len(self.demands),
            seconds=seconds,
            busy_s=max(seconds - self._idle_s, 0.0),
            answers=self._answers,
            steps=self._steps,
            counters=counters_between(self._before, self._after),
        )

    def _add(self, demand: Demand, start: float) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=demand.output_tokens, ignore_eos=True)
        added_s = self.clock() - start
        request = self.engine.add_request(demand.prompt_token_ids, params)
        answer = Answer(len(demand.prompt_token_ids), demand.arrival_s)
        self._answers.append(answer)
        self._running[request.request_id] = _Running(request, answer, added_s)

    def _step(self, start: float) -> None:
        """One call of the engine's step; who has ended in it, and what it computed."""
        for progress in self.engine.step():
            if progress.finished:
                running = self._running.pop(progress.request_id)
                running.read(ended=True)
                self.on_finished(running.answer)
        end_s = self.clock() - start
        before, self._after = self._after, self.engine.stats()
        self._steps.append(
            StepRecord(
                end_s=end_s,
                steps=self._after.steps - before.steps,
                prompt_tokens=self._after.prompt_tokens - before.prompt_tokens,
                generated_tokens=self._after.generated_tokens - before.generated_tokens,
            )
        )


@dataclass(frozen=True)
class _Running:
    """A request in the engine; its answer, and when it was added, from the start of the run."""

    request: Asked
    answer: Answer
    added_s: float

    def read(self, *, ended: bool) -> None:
        """Take what the engine tells of it."""
        output = self.request.output()
        if ended and output.error is not None:
            raise RuntimeError(f"serving: a request failed: {output.error}")
        self.answer.output_tokens = len(output.outputs[0].token_ids)
        times = output.times
        if times is None:
            return
        if times.time_to_first_token_s is not None:
            self.answer.first_token_s = self.added_s + times.time_to_first_token_s
        if ended and times.total_s is not None:
            self.answer.end_s = self.added_s + times.total_s


def counters_between(before: EngineStats, after: EngineStats) -> dict[str, Any]:
    """What was counted between two moments; what is no counter, as it is at the second."""
    found: dict[str, Any] = {}
    for stat in dataclasses.fields(EngineStats):
        old, new = getattr(before, stat.name), getattr(after, stat.name)
        if stat.name in _GAUGES:
            found[stat.name] = new
        elif isinstance(new, Mapping):
            gained = {key: value - old.get(key, 0) for key, value in new.items()}
            found[stat.name] = {key: value for key, value in gained.items() if value}
        else:
            found[stat.name] = new - old
    return found
