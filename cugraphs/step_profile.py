"""Where the GPU's time of a step goes: each kind of op alone, and the whole step beside their sum.

An op is timed in a chain of all ops of its kind in the step (one for each layer), captured as a
graph and replayed behind the ops that come before them, so that it finds what it finds in the step.
What it runs is in NVTX ranges for NVIDIA's tools. Knows programs and the GPU; not how results are
shown.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from cugraphs.clock_stamps import ClockStamps, ExpectedLaunch
from cugraphs.cuda_device import CudaDevice
from cugraphs.decode_bench import RandomCacheRunner, time_rung
from cugraphs.device import QueueOp
from cugraphs.executable import BoundProgram, Executable
from cugraphs.kernel import Array, Cost, bind_axis
from cugraphs.launch import device_arch
from cugraphs.pricing import streamed_weights
from cugraphs.program import Op, Program
from cugraphs.replay_timing import replay_ms
from cugraphs.sampling_params import SamplingParams
from cugraphs.step_state import Chunk, fill_launch, fill_mixed
from cugraphs.step_timeline import (
    PhaseTime,
    QueuedLaunch,
    Span,
    Timed,
    launches_of,
    timeline_of,
)

_LEAST_OPS = 20  # of a chain
_REPLAYS = 7
_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@dataclass(frozen=True)
class OpTime(Timed):
    """All ops of one kind in a step.

    Args:
        kernel: its name.
        detail: what tells it from others of the kernel: a product's ``out x in``.
        ops: of the kind, in the step.
        launches: of all of them; fewer than ops where neighbours are one.
        us: of one op, in a chain of its kind.
        cost: of one op.
    """

    kernel: str
    detail: str
    ops: int
    launches: int
    us: float
    cost: Cost

    @property
    def total_us(self) -> float:
        """Of the whole step."""
        return self.ops * self.us


@dataclass(frozen=True)
class StepProfile:
    """One step.

    Args:
        step: what it is, in words.
        ops: by kind, in the order of the step.
        replay_us: of the step as one graph.
        stamped_us: the same where kernels note the clock; None where none was run.
        phases: of ops whose launches note them, in that replay.
    """

    step: str
    ops: tuple[OpTime, ...]
    replay_us: float
    stamped_us: float | None = None
    phases: tuple[PhaseTime, ...] = ()

    @property
    def sum_us(self) -> float:
        """Of all ops, each timed alone."""
        return sum(op.total_us for op in self.ops)

    @property
    def gap_us(self) -> float:
        """What the replay takes beyond the sum; below 0 where more overlaps than is lost."""
        return self.replay_us - self.sum_us


class ProfiledStep:
    """A bound program whose inputs are on the device: it can be replayed, and run op by op.

    Attributes:
        device: that runs it.
        program: the step.
        sizes: of its dims.
        bound: its ops, and its graph.
    """

    def __init__(
        self, runner: ProfiledRunner, executable: Executable, sizes: Mapping[str, int]
    ) -> None:
        """Take a step that has run, so that nothing is loaded any more."""
        assert isinstance(runner.device, CudaDevice), "profiles are a GPU's"
        self._places = executable.places
        self._runner = runner  # owns the memory that graphs know by address
        self.device = runner.device
        self.program = executable.planned.program
        self.sizes = dict(sizes)
        self.bound: BoundProgram = executable.bind(sizes)

    @property
    def graph(self) -> Any:  # noqa: ANN401 - a Replay
        """Of the whole step."""
        assert self.bound.graph is not None
        return self.bound.graph

    @property
    def launches(self) -> list[QueuedLaunch]:
        """What it queues."""
        card = (device_arch(), self.device.multiprocessors)
        return launches_of(self.program, self.sizes, *card)

    def ops_us(self, progress: Callable[[str], None], *, context: int) -> tuple[OpTime, ...]:
        """The time of each kind of op.

        Args:
            progress: called with each kind's name.
            context: tokens in the cache of each sequence, the current one included.
        """
        found, queued = [], Counter(launch.op for launch in self.launches)
        for indices in kinds_of(self.program, self.sizes):
            op = self.program.ops[indices[0]]
            detail = _detail(op)
            with nvtx_range(f"{op.kernel.name} {detail}"):
                us = self._op_us(indices)
            found.append(
                OpTime(
                    kernel=op.kernel.name,
                    detail=detail,
                    ops=len(indices),
                    launches=sum(queued[index] for index in indices),
                    us=us,
                    cost=op.cost(self.sizes, context=context),
                )
            )
            progress(f"{op.kernel.name} {detail}")
        return tuple(found)

    def _op_us(self, indices: Sequence[int]) -> float:
        rounds = -(-_LEAST_OPS // len(indices))
        chain: list[QueueOp] = [self.bound.ops[index] for index in indices] * rounds
        with self._places:  # the ops are several launches, between which an interrupt can come
            _queue_each(self.bound.ops[: indices[0]])
            graph = self.device.capture(lambda: _queue_each(chain))
            graph.launch()
        return statistics.median(replay_ms(self.device, graph, _REPLAYS)) * 1e3 / len(chain)


class ProfiledRunner(RandomCacheRunner):
    """A runner whose steps can be taken apart; a prompt is computed where that is asked for."""

    def prefill(self, token_ids: Array) -> dict[str, int]:
        """Run a step over one prompt, at the sizes that are returned, and no others.

        Its one row of logits is computed and not sampled from: a new token would move the sequence
        on, and a replay would begin where the prompt ends.
        """
        table = list(range(1, 1 + -(-len(token_ids) // self.plan.cache.block_size)))
        self.write_slot(
            0,
            _GREEDY,
            seed=0,
            sample_index=0,
            stop_token_ids=(),
            prompt_token_ids=(),
            output_token_ids=(),
        )
        chunk = Chunk(token_ids, 0, table, 0, samples=False)
        self.mirror.place(chunk)
        self._send_what_a_step_cannot()
        sizes = {"tokens": len(token_ids), "seqs": 1, "logits": 1}
        inputs = self.mixed.executable.inputs(sizes)
        self.mirror.take(inputs["changes"])
        fill_launch(inputs, self.ring.begin())
        fill_mixed(inputs, [chunk])
        self.mixed.executable.run(sizes)
        return sizes


def decode_step(
    runner: ProfiledRunner, rows: int, *, prompt_tokens: int, replays: int
) -> tuple[ProfiledStep, float]:
    """A decode step of ``rows`` rows, and the mean time of its replays in us."""
    with nvtx_range("decode replays"):
        times = time_rung(runner, rows, rows=rows, prompt_tokens=prompt_tokens, replays=replays)
    step = ProfiledStep(runner, runner.decode.executable(rows), {"rows": rows})
    return step, statistics.mean(times[replays // 4 :]) * 1e3


def prefill_step(
    runner: ProfiledRunner, tokens: int, *, replays: int
) -> tuple[ProfiledStep, float]:
    """A step over one prompt of ``tokens`` tokens, and the mean time of its replays in us."""
    token_ids = np.random.default_rng(3).integers(0, runner.plan.vocab_size, tokens, np.int32)
    sizes = runner.prefill(token_ids)
    runner.mixed.executable.capture(sizes)
    step = ProfiledStep(runner, runner.mixed.executable, sizes)
    with nvtx_range("prefill replays"):
        return step, statistics.mean(replay_ms(step.device, step.graph, replays)[1:]) * 1e3


def kinds_of(program: Program, sizes: Mapping[str, int]) -> list[list[int]]:
    """The ops of the program by kernel, sizes, dtype and scalars, as indices, in first order."""
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for index, op in enumerate(program.ops):
        axes = {name: bind_axis(size, sizes) for name, size in op.axes.items()}
        dtype = op.kernel.dtype_of([buffer.type for buffer in op.operands])
        key = (op.kernel.name, *sorted(axes.items()), dtype, *sorted(op.attrs.items()))
        kinds.setdefault(key, []).append(index)
    return list(kinds.values())


def timeline(step: ProfiledStep) -> tuple[list[Span], float]:
    """One replay on the GPU's clock, and its us by events; of a device with clock stamps."""
    queued = step.launches
    ours = [
        ExpectedLaunch(each.function, each.blocks, each.ops * len(each.phases))
        for each in queued
        if each.function
    ]
    stamps = ClockStamps(step.device, ours)
    try:
        stamps.clear()
        with nvtx_range("stamped replay"):
            (elapsed_ms,) = replay_ms(step.device, step.graph, 1)
        found = stamps.read()
    finally:
        stamps.close()
    return timeline_of(step.program, queued, found), elapsed_ms * 1e3


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """A named range of host time, for NVIDIA's tools."""
    from cupy.cuda import nvtx

    nvtx.RangePush(f"cugraphs: {name}")
    try:
        yield
    finally:
        nvtx.RangePop()


def _queue_each(ops: Sequence[QueueOp]) -> None:
    """Queue them so that each begins when the one before it has ended."""
    for op in ops:
        op(False)


def _detail(op: Op) -> str:
    """``4096 x 14336`` of an op that streams one matrix."""
    shapes = [weight.type.shape for weight in streamed_weights(op) if len(weight.type.shape) == 2]
    return " x ".join(map(str, shapes[0])) if len(shapes) == 1 else ""
