"""What an engine did so far, and how long each request waited: plain data, and who counts it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cugraphs.counted import counted

PHASES = ("schedule", "submit", "wait", "collect")


@dataclass(frozen=True)
class RequestTimes:
    """Seconds of one request.

    Args:
        queue_s: from its arrival until a step first ran some of it.
        time_to_first_token_s: from its arrival until its first token.
        time_per_output_token_s: mean over the tokens after the first, of all its samples; None
            where there are none.
        total_s: from its arrival until it ended.
        cached_tokens: of its prompt, over all samples, those that were found in the cache or taken
            from another sample.
    """

    queue_s: float | None
    time_to_first_token_s: float | None
    time_per_output_token_s: float | None
    total_s: float | None
    cached_tokens: int = 0


@dataclass(eq=False)
class RequestClock:
    """When a request came, began, got its first token and ended, in seconds of a steady clock."""

    arrival_s: float = field(default_factory=time.perf_counter)
    begin_s: float | None = None
    first_token_s: float | None = None
    end_s: float | None = None
    num_tokens: int = 0  # generated, by all samples, in the end
    num_first_tokens: int = 0  # samples that have one
    cached_tokens: int = 0

    def begin(self, now_s: float, cached_tokens: int) -> None:
        """A step runs some of it, a new sequence with so many tokens from the cache."""
        if self.begin_s is None:
            self.begin_s = now_s
        self.cached_tokens += cached_tokens

    def first_token(self, now_s: float) -> None:
        """The first token of one of its samples is there."""
        if self.first_token_s is None:
            self.first_token_s = now_s

    def end(self, lengths: Sequence[int]) -> None:
        """It ends now, with so many tokens in each of its samples."""
        self.end_s = time.perf_counter()
        self.num_tokens = sum(lengths)
        self.num_first_tokens = sum(length > 0 for length in lengths)

    @property
    def times(self) -> RequestTimes:
        """What can be said so far."""

        def since(begin_s: float | None, end_s: float | None) -> float | None:
            return None if begin_s is None or end_s is None else end_s - begin_s

        later = self.num_tokens - self.num_first_tokens
        per_token_s = since(self.first_token_s, self.end_s)
        if per_token_s is not None:  # the samples run side by side, each for its own share
            per_token_s = per_token_s * self.num_first_tokens / later if later else None
        return RequestTimes(
            queue_s=since(self.arrival_s, self.begin_s),
            time_to_first_token_s=since(self.arrival_s, self.first_token_s),
            time_per_output_token_s=per_token_s,
            total_s=since(self.arrival_s, self.end_s),
            cached_tokens=self.cached_tokens,
        )


@dataclass(frozen=True)
class EngineStats:
    """Counters since the start, and what is so now.

    Args:
        requests_waiting: sequences that are not admitted.
        requests_running: sequences that are.
        requests_finished: requests that have ended.
        requests_failed: of them, those that ended with an error.
        steps: that ran.
        prompt_tokens: computed, those of preempted sequences each time.
        generated_tokens: sampled.
        surplus_tokens: of them, those behind a stop string, which no answer has.
        cached_tokens: of prompts, found in the cache.
        forks: sequences that took over the blocks of another sample of their prompt.
        forked_tokens: that those hold, and that were not computed again.
        copied_blocks: that they have of their own, since both go on to write there.
        preemptions: sequences that gave their blocks back.
        kv_blocks: that sequences can own.
        kv_blocks_used: owned now.
        kv_blocks_cached: owned by nobody, with a prefix that may be used again.
        captures: graphs captured.
        replays: replayed decode steps, by rung.
        loops: launches of a captured loop over decode steps, by rung; each made one step or more.
        eager_steps: steps that ran eagerly, by reason.
        padding_rows: computed for nobody.
        off_ladder_steps: batches above the largest captured size.
        host_seconds: of the step's thread by phase: "schedule", "submit" (state and inputs; on the
            CPU the step itself), "wait" (for the device), "collect".
    """

    requests_waiting: int
    requests_running: int
    requests_finished: int
    requests_failed: int
    steps: int
    prompt_tokens: int
    generated_tokens: int
    surplus_tokens: int
    cached_tokens: int
    forks: int
    forked_tokens: int
    copied_blocks: int
    preemptions: int
    kv_blocks: int
    kv_blocks_used: int
    kv_blocks_cached: int
    captures: int
    replays: Mapping[int, int]
    loops: Mapping[int, int]
    eager_steps: Mapping[str, int]
    padding_rows: int
    off_ladder_steps: int
    host_seconds: Mapping[str, float]

    def __str__(self) -> str:
        """Some lines for people."""
        replays, loops = map(_by_rung, (self.replays, self.loops))
        eager = ", ".join(f"{count:,} ({why})" for why, count in self.eager_steps.items())
        phases = ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in self.host_seconds.items())
        return (
            f"requests: {self.requests_waiting:,} waiting, {self.requests_running:,} running, "
            f"{self.requests_finished:,} finished, {self.requests_failed:,} of them failed; "
            f"{counted(self.preemptions, 'preemption')}\n"
            f"tokens: {self.prompt_tokens:,} of prompts computed, {self.cached_tokens:,} cached, "
            f"{self.forked_tokens:,} of another sample in {counted(self.forks, 'fork')}, "
            f"{self.generated_tokens:,} generated in {counted(self.steps, 'step')}, of which "
            f"{self.surplus_tokens:,} behind a stop string\n"
            f"graphs: {self.captures:,} captured; replays: {replays}; loops: {loops}; eager steps: "
            f"{eager or 'none'}; off the ladder: {self.off_ladder_steps:,}; padding rows: "
            f"{self.padding_rows:,}\n"
            f"KV blocks: {self.kv_blocks_used:,} of {self.kv_blocks:,} used, "
            f"{self.kv_blocks_cached:,} cached; host seconds: {phases}"
        )


def _by_rung(counts: Mapping[int, int]) -> str:
    return (
        ", ".join(f"{counted(rung, 'row')} {n:,}" for rung, n in sorted(counts.items())) or "none"
    )


@dataclass
class EngineCounters:
    """What the engine counts itself; the rest it asks of its parts."""

    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    surplus_tokens: int = 0
    requests_finished: int = 0
    requests_failed: int = 0
    host_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    _begin_s: float = 0.0

    def begin_phases(self) -> None:
        """A phase begins now."""
        self._begin_s = time.perf_counter()

    def end_phase(self, name: str) -> float:
        """Count the seconds of a phase, and begin the next; returns the time."""
        now_s = time.perf_counter()
        self.host_seconds[name] += now_s - self._begin_s
        self._begin_s = now_s
        return now_s
