"""Where every byte of an engine is: weights, KV pool, state, arena, graphs, and what is free.

Also what of the arena each op of a program holds, as boxes of bytes by ops, which ``memory_plot``
draws. Knows planned programs and sizes; asks no device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cugraphs.arena import Arena
from cugraphs.counted import counted
from cugraphs.executable import INPUTS, PlannedProgram, input_offsets, output_region
from cugraphs.interpreter import TEMPORARIES
from cugraphs.kernel import WORKSPACE
from cugraphs.kv_cache import KVCacheShape
from cugraphs.pricing import streamed_weights
from cugraphs.program import Buffer, Kind, Op


@dataclass(frozen=True)
class MemoryPart:
    """One allocation, or what the driver keeps; None bytes are not known."""

    name: str
    nbytes: int | None
    note: str = ""


@dataclass(frozen=True)
class MemoryMap:
    """The parts of an engine's memory.

    Args:
        parts: in the order in which they are printed.
        arena: with its regions.
        total_bytes: of the device's memory; None is not known.
    """

    parts: tuple[MemoryPart, ...]
    arena: Arena
    total_bytes: int | None = None

    @property
    def used_bytes(self) -> int:
        """All parts whose size is known."""
        return sum(part.nbytes or 0 for part in self.parts)

    @property
    def free_bytes(self) -> int | None:
        """What is left; negative where it does not fit."""
        return None if self.total_bytes is None else self.total_bytes - self.used_bytes

    def with_rest(self, free_bytes: int, note: str) -> MemoryMap:
        """With what else is in use.

        Args:
            free_bytes: of ``total_bytes``, what really is free.
            note: whose the rest is.
        """
        assert self.total_bytes is not None
        rest = max(self.total_bytes - free_bytes - self.used_bytes, 0)
        part = MemoryPart("other", rest, note)
        return dataclasses.replace(self, parts=(*self.parts, part))

    def __str__(self) -> str:
        """A line per part, and the regions of the arena under it."""
        lines = []
        for part in self.parts:
            if part.name == "arena":
                lines.append(self.arena.memory_map())
            else:
                size = "unknown" if part.nbytes is None else f"{part.nbytes:,} bytes"
                lines.append(f"{part.name}: {size}{part.note and ' ' + part.note}")
        lines.append(f"together: {self.used_bytes:,} bytes")
        if self.free_bytes is not None:
            lines.append(f"free: {self.free_bytes:,} of {self.total_bytes:,} bytes")
        return "\n".join(lines)


def map_memory(
    programs: Sequence[PlannedProgram],
    cache: KVCacheShape,
    arena: Arena,
    *,
    graphs: MemoryPart | None = None,
    total_bytes: int | None = None,
) -> MemoryMap:
    """The memory of an engine that runs ``programs``.

    Args:
        programs: all that are bound to the arena; their weights and state are counted once.
        cache: the KV pool.
        arena: planned, with or without its memory.
        graphs: what the driver keeps for captured graphs; None where nothing is captured.
        total_bytes: of the device; None is not known.
    """
    in_cache = set(cache.types)
    weights = _bytes_by_name(programs, Kind.WEIGHT)
    state = _bytes_by_name(programs, Kind.STATE)
    pool = (
        f"in one allocation: {counted(cache.num_blocks, 'block')} of "
        f"{counted(cache.block_size, 'token')}, {cache.bytes_per_block:,} bytes each"
    )
    parts = [
        MemoryPart("weights", sum(weights.values()), "in one allocation"),
        MemoryPart("KV pool", cache.nbytes, pool),
        MemoryPart(
            "sequence state",
            sum(nbytes for name, nbytes in state.items() if name not in in_cache),
            "in one allocation",
        ),
        MemoryPart("arena", arena.nbytes),
    ]
    if graphs is not None:
        parts.append(graphs)
    return MemoryMap(tuple(parts), arena, total_bytes)


def map_fitted_memory(
    programs: Sequence[PlannedProgram],
    cache: KVCacheShape,
    arena: Arena,
    *,
    graphs: MemoryPart,
    total_bytes: int,
    utilization: float,
) -> tuple[MemoryMap, int]:
    """The memory of an engine whose KV pool takes what else is left of a device.

    Args:
        programs: as of ``map_memory``.
        cache: sizes of a block; how many blocks there are does not matter.
        arena: as of ``map_memory``.
        graphs: what the driver keeps for captured graphs.
        total_bytes: of the device.
        utilization: share of them that may be used.

    Returns:
        The map, and the blocks that sequences can have; 0 where not even one fits.
    """
    scratch_alone = dataclasses.replace(cache, num_blocks=1)
    least = map_memory(programs, scratch_alone, arena, graphs=graphs)
    left = int(total_bytes * utilization) - least.used_bytes
    num_blocks = max(left // cache.bytes_per_block, 0)
    fitting = dataclasses.replace(cache, num_blocks=1 + num_blocks)
    fitted = map_memory(programs, fitting, arena, graphs=graphs, total_bytes=total_bytes)
    return fitted, num_blocks


@dataclass(frozen=True)
class Box:
    """Bytes of the arena that are held for some ops of a program.

    Args:
        label: of whom: the weight or the kernel that fills it, or the name of an input.
        kind: "input", "output", "workspace", or the kernel whose temporary it is.
        offset: in the arena.
        nbytes: at the drawn sizes.
        first_op: from which op on it must not be overwritten.
        last_op: the last op that touches it.
    """

    label: str
    kind: str
    offset: int
    nbytes: int
    first_op: int
    last_op: int


def arena_boxes(planned: PlannedProgram, arena: Arena, sizes: Mapping[str, int]) -> list[Box]:
    """What a program holds of the arena, at which ops, with its dims bound to ``sizes``.

    An input is held from before the first op to its last reader, an output from its writer to the
    end of the step, scratch memory by its op alone.
    """
    program, last = planned.program, len(planned.program.ops) - 1
    writers = {buffer: (i, op) for i, op in enumerate(program.ops) for buffer in op.written}
    readers = {buffer: i for i, op in enumerate(program.ops) for buffer in op.operands}
    boxes = []

    def add(buffer: Buffer, kind: str, region: str, offset: int, first: int, end: int) -> None:
        label = _label(writers[buffer][1], buffer) if buffer in writers else buffer.name
        nbytes = buffer.type.bind(sizes).nbytes
        boxes.append(Box(label, kind, arena.regions[region].offset + offset, nbytes, first, end))

    for buffer, offset in input_offsets(program).items():
        add(buffer, "input", INPUTS, offset, 0, readers.get(buffer, 0))
    for buffer in program.of_kind(Kind.OUTPUT):
        add(buffer, "output", output_region(buffer), 0, writers[buffer][0], last)
    for buffer, offset in planned.assignment.offsets.items():
        live = planned.assignment.ranges[buffer]
        kind = writers[buffer][1].kernel.name
        add(buffer, kind, TEMPORARIES, offset, live.start, live.end)
    if WORKSPACE in arena.regions:
        region = arena.regions[WORKSPACE]
        for i, op in enumerate(program.ops):
            nbytes = op.workspace_bytes()
            if nbytes:
                boxes.append(Box(op.kernel.name, "workspace", region.offset, nbytes, i, i))
    return boxes


def _label(op: Op, buffer: Buffer) -> str:
    """``gate_up_proj`` for a matrix's result, ``sample.token_ids`` for one of several results."""
    if len(op.written) > 1:
        operand = op.kernel.operands[op.operands.index(buffer)]
        return f"{op.kernel.name}.{operand.name}"
    matrices = [weight for weight in streamed_weights(op) if len(weight.type.shape) > 1]
    if len(matrices) == 1:
        return matrices[0].name.removesuffix(".weight").rpartition(".")[2]
    return op.kernel.name


def _bytes_by_name(programs: Iterable[PlannedProgram], kind: Kind) -> dict[str, int]:
    """The sizes of all buffers of a kind; one name is one array in every program."""
    sizes: dict[str, int] = {}
    for planned in programs:
        for buffer in planned.program.of_kind(kind):
            sizes[buffer.name] = max(sizes.get(buffer.name, 0), buffer.type.nbytes)
    return sizes
