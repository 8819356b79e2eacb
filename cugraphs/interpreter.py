"""Run a Program on NumPy arrays through its kernels' references: the oracle, and the CPU device.

The arrays decide where things live. ``interpret`` makes its own temporaries; the executable passes
views of the arena, and runs the same bound steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from cugraphs.arena import POISON, Arena, numpy_bytes
from cugraphs.buffer_assignment import BufferAssignment, live_ranges
from cugraphs.kernel import DTYPES, Array
from cugraphs.program import Buffer, Kind, Program

TEMPORARIES = "temporaries"  # the arena region that holds every program's temporaries


@dataclass(frozen=True, slots=True)
class BoundOp:
    """One op with its arrays: ``written`` receive what ``reference(*read)`` returns."""

    label: str
    reference: Callable[..., tuple[Array, ...]]
    written: tuple[Array, ...]
    read: tuple[Array, ...]
    dead: tuple[Array, ...]  # temporaries that no later op touches


def bind_ops(program: Program, arrays: Mapping[Buffer, Array]) -> list[BoundOp]:
    """Pair every op of ``program`` with its arrays, which already have their bound shapes."""
    ranges = live_ranges(program)
    bound = []
    for index, op in enumerate(program.ops):
        dead = {b: arrays[b] for b in op.operands if b in ranges and ranges[b].end == index}
        bound.append(
            BoundOp(
                label=f"op {index} {op.kernel.name}",
                reference=partial(op.kernel.reference, **op.attrs),
                written=tuple(arrays[buffer] for buffer in op.written),
                read=tuple(arrays[buffer] for buffer in op.read),
                dead=tuple(dead.values()),
            )
        )
    return bound


def run_ops(ops: Sequence[BoundOp], *, poison: bool = False) -> None:
    """Execute bound ops in order.

    Args:
        ops: from :func:`bind_ops`.
        poison: fill each temporary with NaN bytes after its last use, so that a wrong placement
            or a read of stale data shows; and check the type of every result.
    """
    for op in ops:
        try:
            results = op.reference(*op.read)
            for array, result in zip(op.written, results, strict=True):
                if poison:  # the assignment below would stretch and convert
                    assert result.shape == array.shape and result.dtype == array.dtype
                array[...] = result
        except Exception as error:
            error.add_note(f"in {op.label}")
            raise
        if poison:
            poison_arrays(op.dead)


def poison_arrays(arrays: Iterable[Array]) -> None:
    """Fill contiguous arrays with NaN bytes."""
    for array in arrays:
        array.reshape(-1).view(np.uint8)[...] = POISON


def interpret(
    program: Program,
    bound: Mapping[Buffer, Array],
    *,
    sizes: Mapping[str, int] | None = None,
    assignment: BufferAssignment | None = None,
) -> dict[Buffer, Array]:
    """Execute ``program``; STATE arrays in ``bound`` are updated in place.

    Args:
        program: the step.
        bound: an array for every WEIGHT, STATE and INPUT buffer, at its bound shape.
        sizes: the size of each dim of the program.
        assignment: if given, temporaries live at its offsets in one poisoned arena and are
            poisoned again after their last use, so a wrong assignment changes the result. Outputs
            are poisoned before the run.

    Returns:
        The OUTPUT arrays.

    Raises:
        ValueError: an array is missing or has another shape or dtype than its buffer.
    """
    sizes = sizes or {}
    arrays = dict(bound)
    for buffer in program.of_kind(Kind.WEIGHT, Kind.STATE, Kind.INPUT):
        check_array(buffer, arrays.get(buffer), sizes)
    arena = Arena()
    if assignment is not None:
        arena.add(TEMPORARIES, assignment.arena_bytes)
        arena.allocate(numpy_bytes)
    for buffer in program.of_kind(Kind.TEMP, Kind.OUTPUT):
        type_ = buffer.type.bind(sizes)
        if buffer.kind is Kind.TEMP and assignment is not None:
            arrays[buffer] = arena.view(TEMPORARIES, type_, assignment.offsets[buffer])
        else:
            arrays[buffer] = np.zeros(type_.shape, DTYPES[type_.dtype])
    outputs = {buffer: arrays[buffer] for buffer in program.of_kind(Kind.OUTPUT)}
    if assignment is not None:
        poison_arrays(outputs.values())
    run_ops(bind_ops(program, arrays), poison=assignment is not None)
    return outputs


def check_array(buffer: Buffer, array: Array | None, sizes: Mapping[str, int]) -> None:
    """Refuse an array that does not fit its buffer.

    Raises:
        ValueError: it is missing, its shape or dtype is another, or its elements do not lie one
            after the other; the message names the buffer.
    """
    if array is None:
        raise ValueError(f"bind: no array is given for {buffer.kind.value} {buffer.name!r}")
    expected = buffer.type.bind(sizes)
    if array.shape != expected.shape or array.dtype != DTYPES[expected.dtype]:
        raise ValueError(
            f"bind: {buffer.kind.value} {buffer.name!r} is {array.dtype}{list(array.shape)}, "
            f"expected {expected}"
        )
    if not array.flags.c_contiguous:
        raise ValueError(
            f"bind: {buffer.kind.value} {buffer.name!r} has strides {list(array.strides)}, "
            "expected a C-contiguous array; copy it with np.ascontiguousarray"
        )
