"""Serves a workload with an engine, step by step, and tells how fast: tokens, latencies, counters.

Time is the caller's: requests come when they are due, whether or not the engine keeps up, and what
they wait for counts from then on. Knows no model and no device.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from cugraphs.sampling_params import SamplingParams
from cugraphs.statistics import EngineStats
from cugraphs.workloads import Demand

PERCENTILES = (50, 90, 99)
_GAUGES = (
    *("requests_waiting", "requests_running", "captures"),
    *("kv_blocks", "kv_blocks_used", "kv_blocks_cached"),
)


class Served(Protocol):
    """What the bench needs to know of a request: which it is, and whether it has ended."""

    @property
    def request_id(self) -> int:
        """Given by the engine."""

    @property
    def finished(self) -> bool:
        """Whether it has every token."""


class ServingEngine(Protocol):
    """What the bench asks of an engine."""

    def add_request(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> Served:
        """Queue a prompt."""

    def step(self) -> Sequence[Served]:
        """Run one step; those that got a token."""

    def abort(self, request: Any) -> None:  # noqa: ANN401 - what add_request gave
        """Stop a request."""

    def stats(self) -> EngineStats:
        """Counters since the start."""


class BoundStep(Protocol):
    """The least seconds of a step."""

    def __call__(self, *, tokens: int, logits_rows: int, context_tokens: int) -> float:
        """As of ``ServingWork.bound_s``."""


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
    """One step: when it ended, and what was computed in it.

    Args:
        end_s: from the start of the run.
        prompt_tokens: computed.
        rows: that got a token.
    """

    end_s: float
    prompt_tokens: int
    rows: int


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
        bound_s: least seconds that the same steps could take; None where no ceiling is known.
    """

    requests: int
    seconds: float
    busy_s: float
    answers: Sequence[Answer]
    steps: Sequence[StepRecord]
    counters: Mapping[str, Any]
    bound_s: float | None

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

    @property
    def bound_share(self) -> float | None:
        """The bound's share of the time in which the engine had something to do."""
        return self.bound_s / self.busy_s if self.bound_s is not None and self.busy_s else None

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
        bound: of a step, where ceilings are known.
        clock: seconds.
        sleep: for so many of them.
        on_finished: called with each request that ends.
    """

    engine: ServingEngine
    demands: Sequence[Demand]
    bound: BoundStep | None = None
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    on_finished: Callable[[Answer], None] = lambda answer: None
    _answers: dict[int, Answer] = field(default_factory=dict)
    _requests: dict[int, Served] = field(default_factory=dict)  # that run
    _steps: list[StepRecord] = field(default_factory=list)
    _bound_s: float = 0.0
    _idle_s: float = 0.0

    def __post_init__(self) -> None:
        """Remember what the engine has counted so far."""
        self._before = self._after = self.engine.stats()

    def run(self) -> None:
        """Serve everything. Whatever stops it leaves no request in the engine."""
        waiting = list(reversed(self.demands))
        start = self.clock()
        try:
            while waiting or self._requests:
                now = self.clock() - start
                while waiting and waiting[-1].arrival_s <= now:
                    self._add(waiting.pop())
                if self._requests:
                    self._collect(self.engine.step(), start)
                else:
                    before = self.clock()
                    self.sleep(waiting[-1].arrival_s - now)
                    self._idle_s += self.clock() - before
        finally:
            for request in self._requests.values():
                self.engine.abort(request)

    def result(self) -> ServingResult:
        """What there is so far."""
        seconds = self._steps[-1].end_s if self._steps else 0.0
        return ServingResult(
            requests=len(self.demands),
            seconds=seconds,
            busy_s=max(seconds - self._idle_s, 0.0),
            answers=list(self._answers.values()),
            steps=self._steps,
            counters=counters_between(self._before, self._after),
            bound_s=None if self.bound is None else self._bound_s,
        )

    def _add(self, demand: Demand) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=demand.output_tokens, ignore_eos=True)
        request = self.engine.add_request(demand.prompt_token_ids, params)
        self._requests[request.request_id] = request
        answer = Answer(len(demand.prompt_token_ids), demand.arrival_s)
        self._answers[request.request_id] = answer

    def _collect(self, progressed: Sequence[Served], start: float) -> None:
        """Count the token of each, and what the step had to do."""
        now = self.clock() - start
        firsts = context_tokens = 0
        for request in progressed:
            answer = self._answers[request.request_id]
            if answer.first_token_s is None:
                answer.first_token_s = now
                firsts += 1
            else:
                context_tokens += answer.prompt_tokens + answer.output_tokens
            answer.output_tokens += 1
            if request.finished:
                answer.end_s = now
                del self._requests[request.request_id]
                self.on_finished(answer)
        rows = len(progressed)
        before, self._after = self._after, self.engine.stats()
        computed = self._after.prompt_tokens - before.prompt_tokens
        self._steps.append(StepRecord(now, computed, rows))
        if self.bound is not None:
            tokens = computed + rows - firsts
            self._bound_s += self.bound(
                tokens=tokens, logits_rows=rows, context_tokens=context_tokens
            )


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
