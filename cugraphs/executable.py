"""One program bound to memory: arena views for inputs, outputs and temporaries, and run.

A program is planned at its largest row count. ``bind`` cuts shorter views at the same offsets.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cugraphs.arena import Arena
from cugraphs.buffer_assignment import BufferAssignment
from cugraphs.device import Device
from cugraphs.interpreter import TEMPORARIES, check_array
from cugraphs.kernel import WORKSPACE, Array, ArrayType
from cugraphs.program import Buffer, Kind, Program

MAX_BINDINGS = 64  # bound sizes kept per program; every decode rung fits, prefill sizes come and go


@dataclass(frozen=True)
class PlannedProgram:
    """A fused program and the verified place of each of its temporaries."""

    program: Program
    assignment: BufferAssignment


def region_name(buffer: Buffer) -> str:
    """The arena region of an INPUT or OUTPUT buffer, the same for its name in every program."""
    return f"{buffer.kind.value}s/{buffer.name}"


@dataclass(frozen=True)
class BoundProgram:
    """A program at one set of sizes.

    Args:
        run: queues one step.
        inputs: host arrays to fill before it, by name.
        outputs: the device's arrays that hold its results, by name.
    """

    run: Callable[[], None]
    inputs: dict[str, Array]
    outputs: dict[str, Array]


class Executable:
    """Runs one planned program on a device, in an arena."""

    def __init__(
        self,
        planned: PlannedProgram,
        arena: Arena,
        device: Device,
        weights: Mapping[str, Array],
        state: Mapping[str, Array],
        *,
        poison: bool = False,
    ) -> None:
        """Bind weights and state by name.

        Args:
            planned: from the compiler; the arena was planned for it and is allocated.
            arena: holds the inputs, outputs and temporaries, in the device's memory.
            device: runs it.
            weights: an array for every WEIGHT buffer; more are fine.
            state: an array for every STATE buffer.
            poison: fill outputs with NaN bytes before a run, and temporaries after their last use
                (tests, debugging).

        Raises:
            ValueError: an array is missing or has another shape or dtype than its buffer.
        """
        self.planned = planned
        self._arena = arena
        self._device = device
        self._poison = poison
        self._fixed: dict[Buffer, Array] = {}
        self._bindings: OrderedDict[tuple[tuple[str, int], ...], BoundProgram] = OrderedDict()
        for kind, arrays in ((Kind.WEIGHT, weights), (Kind.STATE, state)):
            for buffer in planned.program.of_kind(kind):
                check_array(buffer, arrays.get(buffer.name), {})
                self._fixed[buffer] = arrays[buffer.name]
        # What the host fills, at the largest sizes; every binding takes the first rows.
        self._host = {
            buffer.name: device.host_array(arena.view(region_name(buffer), buffer.type))
            for buffer in planned.program.of_kind(Kind.INPUT)
        }

    def bind(self, sizes: Mapping[str, int]) -> BoundProgram:
        """The program at these sizes; made once per sizes and kept while recently used."""
        key = tuple(sorted(sizes.items()))
        if key in self._bindings:
            self._bindings.move_to_end(key)
            return self._bindings[key]
        arrays = dict(self._fixed)
        program, offsets = self.planned.program, self.planned.assignment.offsets
        for buffer in program.of_kind(Kind.INPUT, Kind.OUTPUT):
            arrays[buffer] = self._arena.view(region_name(buffer), buffer.type.bind(sizes))
        for buffer in program.of_kind(Kind.TEMP):
            type_ = buffer.type.bind(sizes)
            arrays[buffer] = self._arena.view(TEMPORARIES, type_, offsets[buffer])
        inputs = {buffer.name: arrays[buffer] for buffer in program.of_kind(Kind.INPUT)}
        outputs = {buffer.name: arrays[buffer] for buffer in program.of_kind(Kind.OUTPUT)}
        host = {name: self._host[name][: len(array)] for name, array in inputs.items()}
        run = self._device.bind(
            program,
            arrays,
            {name: (array, host[name]) for name, array in inputs.items()},
            workspace=self._workspace(),
            poison=self._poison,
        )
        bound = BoundProgram(run, host, outputs)
        self._bindings[key] = bound
        if len(self._bindings) > MAX_BINDINGS:
            self._bindings.popitem(last=False)
        return bound

    def _workspace(self) -> Array | None:
        """The arena's scratch memory for launches, where it has one."""
        if WORKSPACE not in self._arena.regions:
            return None
        nbytes = self._arena.regions[WORKSPACE].nbytes
        return self._arena.view(WORKSPACE, ArrayType((nbytes,), "uint8"))

    def run(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """Run one step over whatever the bound inputs hold now; returns the device's outputs."""
        bound = self.bind(sizes)
        if self._poison:
            self._device.poison(bound.outputs)
        bound.run()
        return bound.outputs
