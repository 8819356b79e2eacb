"""A replay of a step on the GPU's own clock: launch by launch, and phase by phase within a launch.

Knows programs and stamps; not how they come from the GPU's memory, nor how they are drawn.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cugraphs.clock_stamps import STAMP, StampedLaunch
from cugraphs.joined_ops import queued_runs
from cugraphs.kernel import Array, Cost, Launch
from cugraphs.program import Program


class Timed:
    """Work that takes ``us``."""

    us: float
    cost: Cost

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
class QueuedLaunch:
    """A launch of ours, or a product of cuBLASLt.

    Args:
        op: the first one that it is made for, its place in the program.
        function: as it is launched; "" of a product.
        blocks: of it; 0 of a product.
        ops: that it is made for.
        phases: names of those that its blocks go through, for each op.
    """

    op: int
    function: str = ""
    blocks: int = 0
    ops: int = 1
    phases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Span:
    """An op's launch, a phase of it, or a product, on the GPU's clock.

    Args:
        op: its place in the program.
        kernel: the op's kernel.
        launch: of ours, with its blocks; None for a product, whose span is the time that is left
            between launches of ours. Of a phase, the blocks that have a part in it: each waits from
            the end of the phase that it was in before.
        begin_us: from the step's first block: when it went on after its wait; of a phase, when the
            one before it had ended.
        end_us: when its last block ended.
        phase: its name; "" for the whole launch.
        busy_us: of a phase, the time from begin to end of a block, on average of all blocks of the
            launch, also those that have no part in it.
    """

    op: int
    kernel: str
    launch: StampedLaunch | None
    begin_us: float
    end_us: float
    phase: str = ""
    busy_us: float = 0.0

    @property
    def label(self) -> str:
        """``decode_layer: qkv``."""
        return f"{self.kernel}: {self.phase}" if self.phase else self.kernel

    @property
    def us(self) -> float:
        """From begin to end."""
        return self.end_us - self.begin_us


@dataclass(frozen=True)
class PhaseTime(Timed):
    """A phase of all ops of one kind in a step.

    Args:
        kernel: of the ops.
        phase: its name.
        ops: of the kind.
        us: from the end of the phase before to its own, the last block's, on average of the ops.
        busy_us: of it, of an average block of the launch, between the moment when what it needs is
            there and the end of its part.
        cost: of the phase of one op.
    """

    kernel: str
    phase: str
    ops: int
    us: float
    busy_us: float
    cost: Cost


def launches_of(
    program: Program, sizes: Mapping[str, int], arch: str, multiprocessors: int | None = None
) -> list[QueuedLaunch]:
    """What a step queues, in order; arguments as of :func:`queued_runs`."""
    found = []
    for run, parts in queued_runs(program, sizes, arch, multiprocessors):
        for part in parts:
            if isinstance(part, Launch):
                blocks = int(np.prod(part.grid))
                found.append(QueuedLaunch(run.start, part.function, blocks, len(run), part.phases))
            else:
                found.append(QueuedLaunch(run.start))
    return found


def timeline_of(
    program: Program, queued: Sequence[QueuedLaunch], stamped: Sequence[StampedLaunch]
) -> list[Span]:
    """A replay's spans, of phases in the place of a launch that has some.

    Args:
        program: the step.
        queued: what it queues.
        stamped: those of them that are launches of ours.
    """
    left = iter(stamped)
    parts = [
        (each.op, program.ops[each.op].kernel.name, next(left) if each.function else None)
        for each in queued
    ]
    spans = []
    for each, span in zip(queued, spans_of(parts), strict=True):
        spans += phases_of(span, each.phases) if each.phases else [span]
    return spans


def spans_of(parts: Sequence[tuple[int, str, StampedLaunch | None]]) -> list[Span]:
    """When each launch ran, from the stamps of its blocks; products fill what is between.

    Args:
        parts: op, kernel, and the launch with its stamps, None for a product; in order.
    """
    # Integers: nanoseconds since 1970 are more than a float64 tells apart.
    begins = [
        None if launch is None else int(launch.stamps["goes_on_ns"].min()) for *_, launch in parts
    ]
    comes = [
        None if launch is None else int(launch.stamps["waits_ns"].min()) for *_, launch in parts
    ]
    ends = [None if launch is None else int(launch.stamps["ends_ns"].max()) for *_, launch in parts]
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


def phases_of(span: Span, names: Sequence[str]) -> list[Span]:
    """The phases of a launch, one after the other: each ends when its last block has ended it.

    Args:
        span: of a launch with stamps of phases.
        names: of those of an op; the launch is made for so many ops that they are its phases.

    Raises:
        RuntimeError: a phase was ended by no block.
    """
    launch = span.launch
    assert launch is not None and launch.phases is not None, f"{span.kernel} has no phases"
    begins, ends = (launch.phases[name].astype(np.int64) for name in ("begins_ns", "ends_ns"))
    has_part = (begins > 0) & (ends > 0)  # [blocks, phases]
    before = launch.stamps["waits_ns"].astype(np.int64)  # when each block ended what it was in
    first_ns = int(launch.stamps["goes_on_ns"].min())  # which is at begin_us
    found, reached_us = [], span.begin_us
    for number in range(begins.shape[1]):
        name, own = names[number % len(names)], has_part[:, number]
        if not own.any():
            raise RuntimeError(
                f"clock stamps: {launch.function} has no block that ends phase {number}, {name}, "
                "expected one"
            )
        stamps = np.zeros(int(own.sum()), STAMP)
        for field in STAMP.names or ():
            stamps[field] = launch.stamps[field][own]
        stamps["waits_ns"] = before[own]
        stamps["goes_on_ns"], stamps["ends_ns"] = begins[own, number], ends[own, number]
        before = np.where(own, ends[:, number], before)
        lasts_us = (int(stamps["ends_ns"].max()) - first_ns) / 1e3
        end_us = max(reached_us, span.begin_us + lasts_us)
        found.append(
            replace(
                span,
                op=span.op + number // len(names),
                launch=StampedLaunch(launch.function, stamps),
                begin_us=reached_us,
                end_us=end_us,
                phase=name,
                busy_us=_busy_us(stamps, len(own)),
            )
        )
        reached_us = end_us
    return found


def _busy_us(stamps: Array, blocks: int) -> float:
    busy = stamps["ends_ns"].astype(np.int64) - stamps["goes_on_ns"].astype(np.int64)
    return float(busy.sum()) / blocks / 1e3


def phase_times(
    spans: Sequence[Span], program: Program, sizes: Mapping[str, int], *, context: int
) -> tuple[PhaseTime, ...]:
    """The phases of each kind of op that has some, in order.

    Args:
        spans: of a replay.
        program: the step.
        sizes: of its dims.
        context: tokens in the cache of each sequence, the current one included.
    """
    found: dict[tuple[str, str, Cost], list[Span]] = {}
    for span in spans:
        if span.phase:
            cost = program.ops[span.op].phases(sizes, context=context)[span.phase]
            found.setdefault((span.kernel, span.phase, cost), []).append(span)
    return tuple(
        PhaseTime(
            kernel,
            phase,
            len(own),
            statistics.fmean(span.us for span in own),
            statistics.fmean(span.busy_us for span in own),
            cost,
        )
        for (kernel, phase, cost), own in found.items()
    )
