"""Where the GPU's time of a step goes: each kind of op alone, and the whole step beside their sum.

An op is timed in a chain of all ops of its kind in the step (one for each layer), captured as a
graph and replayed behind the ops that come before them, so that it finds what it finds in the step.
The phases are NVTX ranges for NVIDIA's tools. Knows programs and the GPU; not how results are
shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from cugraphs.clock_stamps import ClockStamps, StampedLaunch
from cugraphs.cuda_device import CudaDevice
from cugraphs.decode_bench import RandomCacheRunner, time_rung
from cugraphs.device import QueueOp
from cugraphs.executable import BoundProgram, Executable
from cugraphs.joined_ops import queued_launches
from cugraphs.kernel import Array, Cost, Launch, bind_axis
from cugraphs.launch import device_arch
from cugraphs.pricing import count_launches, streamed_weights
from cugraphs.program import Op, Program
from cugraphs.replay_timing import replay_ms
from cugraphs.sampling_params import SamplingParams
from cugraphs.step_state import Chunk, fill_launch, fill_mixed

_LEAST_OPS = 20  # of a chain
_REPLAYS = 7
_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@dataclass(frozen=True)
class OpTime:
    """All ops of one kind in a step.

    Args:
        kernel: its name.
        detail: what tells it from others of the kernel: a product's ``out x in``.
        ops: of the kind, in the step.
        launches: of one op.
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

    @property
    def bytes_per_s(self) -> float:
        """Bytes that must move, a second."""
        return self.cost.bytes_accessed / self.us * 1e6

    @property
    def flops_per_s(self) -> float:
        """Flops a second."""
        return self.cost.flops / self.us * 1e6

    def share(self, read_bytes_per_s: float, flops_per_s: float) -> float:
        """The larger of its shares of the two ceilings."""
        return max(self.bytes_per_s / read_bytes_per_s, self.flops_per_s / flops_per_s)


@dataclass(frozen=True)
class StepProfile:
    """One step.

    Args:
        step: what it is, in words.
        ops: by kind, in the order of the step.
        replay_us: of the step as one graph.
        stamped_us: the same where kernels note the clock; None where none was run.
    """

    step: str
    ops: tuple[OpTime, ...]
    replay_us: float
    stamped_us: float | None = None

    @property
    def sum_us(self) -> float:
        """Of all ops, each timed alone."""
        return sum(op.total_us for op in self.ops)

    @property
    def gap_us(self) -> float:
        """What the replay takes beyond the sum; below 0 where more overlaps than is lost."""
        return self.replay_us - self.sum_us


@dataclass(frozen=True)
class Span:
    """An op's launch, or a product, on the GPU's clock.

    Args:
        op: its place in the program.
        kernel: the op's kernel.
        launch: of ours, with its blocks; None for a product, whose span is the time that is left
            between launches of ours.
        begin_us: from the step's first block: when it went on after its wait.
        end_us: when its last block ended.
    """

    op: int
    kernel: str
    launch: StampedLaunch | None
    begin_us: float
    end_us: float


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

    def ops_us(self, progress: Callable[[str], None], *, context: int) -> tuple[OpTime, ...]:
        """The time of each kind of op.

        Args:
            progress: called with each kind's name.
            context: tokens in the cache of each sequence, the current one included.
        """
        found = []
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
                    launches=count_launches(op, self.sizes, device_arch()),
                    us=us,
                    cost=op.cost(self.sizes, context=context),
                )
            )
            progress(f"{op.kernel.name} {detail}")
        return tuple(found)

    def _op_us(self, indices: Sequence[int]) -> float:
        rounds = -(-_LEAST_OPS // len(indices))
        chain: list[QueueOp] = [self.bound.ops[index] for index in indices] * rounds
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


def launches_of(
    program: Program, sizes: Mapping[str, int], arch: str, multiprocessors: int | None = None
) -> list[tuple[int, str, int]]:
    """What a step queues, in order: the op, the function and its blocks; "" and 0: a product."""
    found = []
    for index, parts in enumerate(queued_launches(program, sizes, arch, multiprocessors)):
        for part in parts:
            if isinstance(part, Launch):
                found.append((index, part.function, int(np.prod(part.grid))))
            else:
                found.append((index, "", 0))
    return found


def timeline(step: ProfiledStep) -> tuple[list[Span], float]:
    """One replay on the GPU's clock, and its us by events; of a device with clock stamps."""
    card = (device_arch(), step.device.multiprocessors)
    launches = launches_of(step.program, step.sizes, *card)
    ours = [(function, blocks) for _, function, blocks in launches if function]
    stamps = ClockStamps(step.device, sum(blocks for _, blocks in ours))
    try:
        stamps.clear()
        with nvtx_range("stamped replay"):
            (elapsed_ms,) = replay_ms(step.device, step.graph, 1)
        found = iter(stamps.read(ours))
    finally:
        stamps.close()
    kernels = [op.kernel.name for op in step.program.ops]
    parts = [
        (index, kernels[index], next(found) if function else None)
        for index, function, _ in launches
    ]
    return spans_of(parts), elapsed_ms * 1e3


def spans_of(parts: Sequence[tuple[int, str, StampedLaunch | None]]) -> list[Span]:
    """When each launch ran, from the stamps of its blocks; products fill what is between.

    Args:
        parts: op, kernel, and the launch with its stamps, None for a product; in order.
    """
    begins = [
        None if launch is None else float(launch.stamps["goes_on_ns"].min()) for *_, launch in parts
    ]
    comes = [
        None if launch is None else float(launch.stamps["waits_ns"].min()) for *_, launch in parts
    ]
    ends = [
        None if launch is None else float(launch.stamps["ends_ns"].max()) for *_, launch in parts
    ]
    start = min(ns for ns in comes if ns is not None)
    spans, reached = [], start
    for place, (index, kernel, launch) in enumerate(parts):
        begin, end = begins[place], ends[place]
        if begin is None or end is None:
            begin = reached
            end = next((ns for ns in comes[place + 1 :] if ns is not None), reached)
        spans.append(Span(index, kernel, launch, (begin - start) / 1e3, (end - start) / 1e3))
        reached = max(reached, end)
    return spans


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
    """``4096 x 14336`` of an op that streams a matrix."""
    shapes = [weight.type.shape for weight in streamed_weights(op)]
    return next((" x ".join(map(str, shape)) for shape in shapes if len(shape) == 2), "")
