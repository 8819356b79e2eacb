"""Give every TEMP buffer of a Program an offset, so that buffers live together share no byte.

Greedy by size: largest first, each at the lowest offset that is free during its whole live range
(Pisarchyk and Lee 2020, arXiv:2001.03288; in XLA, GlobalDecreasingSizeBestFitHeap).

Buffers count at the maximum of their dims. A smaller binding only shortens them at the same
offsets, so one assignment serves every row count of its program.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from cugraphs.counted import counted
from cugraphs.program import Buffer, Kind, Program

ALIGNMENT_BYTES = 256  # what a device allocation guarantees; every vector load is aligned


@dataclass(frozen=True, slots=True)
class LiveRange:
    """Op indices, both inclusive: the op that writes the buffer, the last op that touches it."""

    start: int
    end: int


@dataclass(frozen=True)
class BufferAssignment:
    """Where each TEMP buffer of one program lives.

    Args:
        offsets: byte offset of each TEMP buffer.
        ranges: its live range.
        arena_bytes: bytes that all of them need together.
        peak_live_bytes: the most bytes live at one op, a lower bound on any placement.
    """

    offsets: dict[Buffer, int]
    ranges: dict[Buffer, LiveRange]
    arena_bytes: int
    peak_live_bytes: int

    @property
    def total_bytes(self) -> int:
        """What the buffers would need if none shared memory with another."""
        return sum(aligned(buffer.type.nbytes) for buffer in self.offsets)

    def verify(self, program: Program) -> None:
        """Check the assignment against the program, independently of how it was made.

        Raises:
            ValueError: a TEMP buffer has no offset, is misaligned, ends beyond the arena, is read
                before it is written, or shares a byte with another one while both are live.
        """
        ranges = live_ranges(program)
        live: dict[int, list[Buffer]] = {}
        for buffer, live_range in ranges.items():
            offset = self.offsets.get(buffer)
            if offset is None:
                raise ValueError(f"verify: {buffer!r} has no offset")
            if offset % ALIGNMENT_BYTES or offset < 0:
                raise ValueError(
                    f"verify: {buffer!r} is at {offset}, expected a multiple of {ALIGNMENT_BYTES}"
                )
            if offset + buffer.type.nbytes > self.arena_bytes:
                raise ValueError(
                    f"verify: {buffer!r} ends at {offset + buffer.type.nbytes}, "
                    f"expected at most {self.arena_bytes}"
                )
            for index in range(live_range.start, live_range.end + 1):
                live.setdefault(index, []).append(buffer)
        for index, buffers in live.items():
            buffers.sort(key=self.offsets.__getitem__)
            for low, high in pairwise(buffers):
                if self.offsets[low] + low.type.nbytes > self.offsets[high]:
                    raise ValueError(
                        f"verify: {low!r} at {self.offsets[low]} and {high!r} at "
                        f"{self.offsets[high]} overlap while live at op {index}"
                    )

    def report(self) -> str:
        """One line: arena bytes, the lower bound, and what no sharing would cost."""
        return (
            f"{counted(len(self.offsets), 'temporary', 'temporaries')}: {self.arena_bytes:,} "
            f"bytes, lower bound {self.peak_live_bytes:,}, without sharing {self.total_bytes:,}"
        )


def live_ranges(program: Program) -> dict[Buffer, LiveRange]:
    """The live range of every TEMP buffer.

    Raises:
        ValueError: a TEMP buffer is read before an op has written it.
    """
    start: dict[Buffer, int] = {}
    end: dict[Buffer, int] = {}
    for index, op in enumerate(program.ops):
        for buffer in op.read:
            if buffer.kind is Kind.TEMP:
                if buffer not in start:
                    raise ValueError(
                        f"live_ranges: op {index} {op.kernel.name} reads {buffer!r}, "
                        "which no earlier op writes"
                    )
                end[buffer] = index
        for buffer in op.written:
            if buffer.kind is Kind.TEMP:
                start.setdefault(buffer, index)
                end[buffer] = index
    return {buffer: LiveRange(start[buffer], end[buffer]) for buffer in start}


def assign_buffers(program: Program) -> BufferAssignment:
    """Place every TEMP buffer of ``program``. Deterministic.

    Buffers that meet at an op are found through that op, so the time grows with the sum of the
    live ranges and not with the square of the buffer count.
    """
    ranges = live_ranges(program)
    sizes = {buffer: aligned(buffer.type.nbytes) for buffer in ranges}
    order = sorted(ranges, key=lambda b: (-sizes[b], ranges[b].start, b.id))
    placed_at: list[list[Buffer]] = [[] for _ in program.ops]  # placed buffers live at each op
    offsets: dict[Buffer, int] = {}
    for buffer in order:
        live_range = ranges[buffer]
        span = range(live_range.start, live_range.end + 1)
        neighbours = {other for index in span for other in placed_at[index]}
        offset = 0
        for other in sorted(neighbours, key=offsets.__getitem__):
            if offset + sizes[buffer] <= offsets[other]:
                break
            offset = max(offset, offsets[other] + sizes[other])
        offsets[buffer] = offset
        for index in span:
            placed_at[index].append(buffer)
    ends = (offset + sizes[buffer] for buffer, offset in offsets.items())
    peak = max((sum([sizes[buffer] for buffer in live]) for live in placed_at), default=0)
    return BufferAssignment(offsets, ranges, max(ends, default=0), peak)


def aligned(nbytes: int) -> int:
    """``nbytes`` rounded up to the alignment; an empty buffer still takes one unit."""
    return max(-(-nbytes // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES
