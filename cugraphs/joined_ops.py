"""Which neighbouring ops of a program may be one launch of their kernel.

Knows programs and launches' declarations; not how a launch is packed, nor any device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from cugraphs.kernel import MAX_STACK, Access, Launch, MatrixProduct, bind_axis, running_on
from cugraphs.meeting_places import HERE, NEXT_PLACE
from cugraphs.program import Buffer, Kind, Op, Program


def joined_ops(program: Program, launches: Sequence[Launch | None]) -> list[range]:
    """All ops, in order, as runs of one or more that are one launch.

    Args:
        program: the step.
        launches: the one launch of each op; None where there are several, or others' launches.
    """
    uses = Counter(buffer for op in program.ops for buffer in op.operands)
    runs: list[range] = []
    updated: set[Buffer] = set()  # by the last of the runs, but for places
    for index, (op, launch) in enumerate(zip(program.ops, launches, strict=True)):
        own = _own(op, launch)
        if (
            runs
            and launch is not None
            and launch.stack
            and len(runs[-1]) < MAX_STACK
            and launches[index - 1] == launch
            and _continues(program.ops[index - 1], op, launch, uses)
            # Nothing orders what one op stores before what another reads, but for places.
            and updated.isdisjoint(own)
        ):
            runs[-1] = range(runs[-1].start, index + 1)
        else:
            runs.append(range(index, index + 1))
            updated.clear()
        updated.update(buffer for buffer, access in own.items() if access is Access.UPDATE)
    return runs


def queued_launches(
    program: Program, sizes: Mapping[str, int], arch: str, multiprocessors: int | None = None
) -> list[list[Launch | MatrixProduct]]:
    """What each op queues on a GPU; nothing where the launch of an op before it is its own too.

    Arguments are those of :func:`queued_runs`.
    """
    queued: list[list[Launch | MatrixProduct]] = [[] for _ in program.ops]
    for run, parts in queued_runs(program, sizes, arch, multiprocessors):
        queued[run.start] = parts
    return queued


def queued_runs(
    program: Program, sizes: Mapping[str, int], arch: str, multiprocessors: int | None = None
) -> list[tuple[range, list[Launch | MatrixProduct]]]:
    """What the ops of a program queue on a GPU, in order: ops that are one launch together.

    Args:
        program: the step.
        sizes: of its dims.
        arch: of the card (``"sm_90"``); empty: what every GPU runs.
        multiprocessors: of the card; None: as many as any launch wants.
    """
    queued: list[list[Launch | MatrixProduct]] = []
    for op in program.ops:
        axes = {name: bind_axis(size, sizes) for name, size in op.axes.items()}
        dtype = op.kernel.dtype_of([buffer.type for buffer in op.operands])
        launches: tuple[Launch | MatrixProduct, ...] = ()
        if op.kernel.launches is not None and op.kernel.has_work(axes):
            launches = op.kernel.launches(axes, dtype, **op.attrs)
        queued.append(running_on(arch, launches, multiprocessors))
    only = [
        parts[0] if len(parts) == 1 and isinstance(parts[0], Launch) else None for parts in queued
    ]
    return [(run, queued[run.start]) for run in joined_ops(program, only)]


def _continues(before: Op, op: Op, launch: Launch, uses: Mapping[Buffer, int]) -> bool:
    """Whether an op goes on with what the one before it leaves, as ``Launch.stack`` says."""
    if before.kernel is not op.kernel or (before.attrs, before.axes) != (op.attrs, op.axes):
        return False
    earlier, now = _named(before), _named(op)
    handed_on = earlier["out"]
    if handed_on is not now["x"] or handed_on.kind is not Kind.TEMP or uses[handed_on] != 2:
        return False
    common = {*(launch.operands or ())} - {"out", "x"}
    if any(earlier.get(name) is not now.get(name) for name in common):
        return False
    if HERE not in launch.stack:
        return True
    # An op clears the place in which the next ones meet, while nobody reads there any more.
    return earlier[NEXT_PLACE] is now[HERE] and now[NEXT_PLACE] is not earlier[HERE]


def _own(op: Op, launch: Launch | None) -> dict[Buffer, Access]:
    """What an op has of its own in a launch with others, but for places."""
    stack = () if launch is None else launch.stack
    return {
        buffer: operand.access
        for operand, buffer in zip(op.kernel.operands, op.operands, strict=False)
        if operand.name in stack and not operand.scratch
    }


def _named(op: Op) -> dict[str, Buffer]:
    pairs = zip(op.kernel.operands, op.operands, strict=False)
    return {operand.name: buffer for operand, buffer in pairs}
