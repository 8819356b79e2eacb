"""Decode steps of one batch, driven in three ways: what the GPU idles between them, what hosts do.

A step leaves the state as the next one needs it, so all that the host has to do is to launch steps
and to read tokens; that is what is timed here. The model arrives as an argument.
"""

from __future__ import annotations

import enum
import statistics
import time
from collections import deque
from dataclasses import dataclass
from functools import partial

import numpy as np

from cugraphs.decode_bench import SETTLING_STEPS, BenchModel, RandomCacheRunner, rest, settle
from cugraphs.ladder import Ladder
from cugraphs.step_stamps import StampedPlan, newest_stamps
from cugraphs.step_state import fill_launch
from cugraphs.token_ring import MAX_STEPS

REPLAYS_TOGETHER = 8
_WARM_UP_STEPS = 8
_NEWCOMERS = 16  # that are timed


class Drive(enum.Enum):
    """Who decides that there is a next step."""

    HOST = "host"  # it reads each step's tokens, waiting for the stream, and launches the next
    REPLAYS = "replays"  # it launches several, and the next ones while they run
    LOOP = "loop"  # the GPU: one launch of a loop that ends itself, and the next while it runs

    @property
    def num_steps(self) -> int:
        """Steps of a launch."""
        return {Drive.HOST: 1, Drive.REPLAYS: REPLAYS_TOGETHER, Drive.LOOP: MAX_STEPS}[self]

    @property
    def launches_under_way(self) -> int:
        """How many are queued at a time."""
        return 1 if self is Drive.HOST else 2


@dataclass(frozen=True)
class LoopTimes:
    """What steps take when they are driven in one way.

    Args:
        batch: sequences.
        drive: the way.
        steps: that were timed.
        step_us: from the begin of one step to that of the next, the mean.
        idle_share: of the time that no step was running, by the GPU's clock.
        gap_us: between two steps, the median.
        host_us: of the host's processors for a step: launching it and reading its tokens.
        newcomer_steps: how long a sequence that comes in the midst of a step waits until a step
            that has it begins, in steps; the mean.
    """

    batch: int
    drive: Drive
    steps: int
    step_us: float
    idle_share: float
    gap_us: float
    host_us: float
    newcomer_steps: float

    @property
    def host_us_per_token(self) -> float:
        """Of the host's processors."""
        return self.host_us / self.batch


def loop_length(prompt_tokens: int, steps: int) -> int:
    """Tokens of the longest sequence that is timed over so many steps."""
    timed = _WARM_UP_STEPS + max(steps, (_NEWCOMERS + 1) * (2 * REPLAYS_TOGETHER + 1))
    return prompt_tokens + SETTLING_STEPS + timed + 1


def stamped_runner(bench: BenchModel, batch: int, length: int) -> RandomCacheRunner:
    """A runner whose decode steps of the batch are captured, loop, and are stamped."""
    plan = bench.plan(Ladder(batch, [batch]), length=length, kind=StampedPlan)
    runner = RandomCacheRunner(bench, plan, "full")
    runner.decode.add_loops(plan.loop_control)
    return runner


def time_drive(
    runner: RandomCacheRunner, drive: Drive, *, batch: int, prompt_tokens: int, steps: int
) -> LoopTimes:
    """Drive ``steps`` steps, then let newcomers come."""
    rest(runner.device)
    driver = _Driver(runner, drive, batch)
    driver.settle(prompt_tokens)
    driver.run(_WARM_UP_STEPS)
    cpu_s = time.process_time()
    made = driver.run(steps)
    cpu_s = time.process_time() - cpu_s
    stamps = newest_stamps(runner, made)
    gaps = stamps[1:, 0] - stamps[:-1, 1]
    step_us = float(stamps[-1, 0] - stamps[0, 0]) / (made - 1) / 1e3
    driver.settle(prompt_tokens)
    waits = [driver.newcomer(step_us * 1e-6) for _ in range(_NEWCOMERS + 1)][1:]
    return LoopTimes(
        batch=batch,
        drive=drive,
        steps=made,
        step_us=step_us,
        idle_share=float(gaps.sum()) / float(stamps[-1, 0] - stamps[0, 0]),
        gap_us=float(np.median(gaps)) / 1e3,
        host_us=cpu_s * 1e6 / made,
        newcomer_steps=statistics.mean(waits),
    )


@dataclass(frozen=True)
class _Launched:
    first: int
    num_steps: int


class _Driver:
    """Launches the steps of one batch and reads their tokens."""

    def __init__(self, runner: RandomCacheRunner, drive: Drive, batch: int) -> None:
        self._runner, self._drive, self._batch = runner, drive, batch
        self._random = np.random.default_rng(3)

    def settle(self, prompt_tokens: int) -> None:
        """Put the sequences behind their prompts."""
        settle(self._runner, self._batch, prompt_tokens)

    def run(self, steps: int) -> int:
        """Drive so many steps; how many were made."""
        launched = made = 0
        under_way: deque[_Launched] = deque()
        depth = self._drive.launches_under_way
        while launched < steps or under_way:
            while launched < steps and len(under_way) < depth:
                under_way.append(self._launch(min(self._drive.num_steps, steps - launched)))
                launched += under_way[-1].num_steps
            made += self._read(under_way.popleft())
        return made

    def newcomer(self, step_s: float) -> float:
        """Steps that a newcomer waits for one that has it, from a moment within some step."""
        ring = self._runner.ring
        depth = self._drive.launches_under_way
        under_way = [self._launch() for _ in range(depth)]
        if self._drive is not Drive.HOST:
            ring.wait(under_way[0].first, self._batch, loop=self._loop(under_way[0]))
        time.sleep(step_s * self._random.uniform(0.1, 0.9))
        came_s = time.perf_counter()
        ring.stop()
        for launched in under_way:
            self._read(launched)
        first = self._launch(num_steps=1)
        ring.wait(first.first, self._batch)
        return (time.perf_counter() - came_s) / step_s - 1

    def _launch(self, num_steps: int | None = None) -> _Launched:
        runner, count = self._runner, num_steps or self._drive.num_steps
        inputs = runner.decode.inputs(self._batch)
        inputs["changes"][:, 0] = -1
        first = runner.ring.begin(count)
        fill_launch(inputs, first, count)
        inputs["row_ids"][:] = range(self._batch)
        launched = _Launched(first, count)
        until = None
        if self._loop(launched) is not None:
            until = partial(runner.ring.has_ended, first)
        self._outputs = runner.decode.run(self._batch, num_steps=count, until=until)
        return launched

    def _loop(self, launched: _Launched) -> int | None:
        """The first step of the loop, where it is one."""
        is_loop = self._drive is Drive.LOOP and launched.num_steps > 1
        return launched.first if is_loop else None

    def _read(self, launched: _Launched) -> int:
        """Read the tokens of all steps of a launch as they come; how many steps there were."""
        if self._drive is Drive.HOST:
            self._runner.device.read(self._outputs["token_ids"])
            return 1
        loop = self._loop(launched)
        for step in range(launched.num_steps):
            tokens = self._runner.ring.wait(launched.first + step, self._batch, loop=loop)
            if tokens is None:
                return step
        return launched.num_steps
