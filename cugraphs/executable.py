"""One program bound to memory: arena views for inputs, outputs and temporaries, run or replayed.

A program is planned at its largest row count. ``bind`` cuts shorter views at the same offsets.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from cugraphs.arena import Arena
from cugraphs.buffer_assignment import BufferAssignment, aligned
from cugraphs.device import Device, InputStaging, Loop, QueueOp, Replay, Run
from cugraphs.interpreter import TEMPORARIES, check_array
from cugraphs.kernel import DTYPES, WORKSPACE, Array, ArrayType, Dim, bind_axis
from cugraphs.meeting_places import MeetingPlaces, is_place
from cugraphs.program import Buffer, Kind, Program

INPUTS = "inputs"  # the arena region that holds every program's inputs, one program at a time
MAX_BINDINGS = 64  # bound sizes kept per program beside the captured ones: prefill sizes vary

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class PlannedProgram:
    """A fused program and the verified place of each of its temporaries."""

    program: Program
    assignment: BufferAssignment


def output_region(buffer: Buffer) -> str:
    """The arena region of an OUTPUT buffer, the same for its name in every program."""
    return f"outputs/{buffer.name}"


def input_offsets(program: Program) -> dict[Buffer, int]:
    """Where each input of the program lies in the region of inputs, in order of declaration."""
    offsets, end = {}, 0
    for buffer in program.of_kind(Kind.INPUT):
        offsets[buffer] = end
        end += aligned(buffer.type.nbytes)
    return offsets


def input_bytes(program: Program) -> int:
    """Bytes of the region that the program's inputs take at their largest."""
    return sum(aligned(buffer.type.nbytes) for buffer in program.of_kind(Kind.INPUT))


@dataclass(eq=False)
class BoundProgram:
    """A program at one set of sizes.

    Attributes:
        ops: a call for each op, that queues it.
        pieces: what a step calls: the ops, or graphs in place of runs of them.
        inputs: host arrays to fill, by name, in each of the staging buffers.
        input_bytes: of the region of inputs, what a step must send.
        device_inputs: the device's arrays that hold the inputs, by name.
        outputs: the device's arrays that hold its results, by name.
        graph: the whole step, where it is captured as one graph.
        loop: steps until one of them is the last, where that is captured.
        control: what decides before the first step of a loop that is not captured, and after each.
    """

    ops: Sequence[QueueOp]
    pieces: Sequence[QueueOp]
    inputs: tuple[dict[str, Array], ...]
    input_bytes: int
    device_inputs: dict[str, Array]
    outputs: dict[str, Array]
    graph: Replay | None = None
    loop: Loop | None = None
    control: tuple[Sequence[QueueOp], Sequence[QueueOp]] | None = None


class Executable:
    """Runs one planned program on a device, in an arena.

    Attributes:
        places: the context in which its ops are queued.
        control: makes, for sizes, the program that decides whether there is another step of a loop;
            True: before the first step; and for the handle of the loop's condition, 0 where there
            is none. Its inputs are some of the step's.
    """

    control: Callable[[Sizes, bool, int], Program] | None = None

    def __init__(
        self,
        planned: PlannedProgram,
        arena: Arena,
        device: Device,
        staging: InputStaging,
        weights: Mapping[str, Array],
        state: Mapping[str, Array],
        *,
        places: MeetingPlaces | None = None,
        poison: bool = False,
        debug: bool = False,
    ) -> None:
        """Bind weights and state by name.

        Args:
            planned: from the compiler; the arena was planned for it and is allocated.
            arena: holds the inputs, outputs and temporaries, in the device's memory.
            device: runs it.
            staging: host memory for the arena's inputs; all programs of the arena share it.
            weights: an array for every WEIGHT buffer; more are fine.
            state: an array for every STATE buffer.
            places: those of the state in which blocks meet; needed where the program has some.
            poison: fill outputs with NaN bytes before a run, and temporaries after their last use
                (tests, debugging).
            debug: check before every run that no array was replaced.

        Raises:
            ValueError: an array is missing or has another shape or dtype than its buffer.
        """
        self.planned = planned
        self._arena = arena
        self._device = device
        self._staging = staging
        has_places = any(map(is_place, planned.program.buffers))
        assert places is not None or not has_places, f"{planned.program.name}: no places"
        self.places: AbstractContextManager[None] = nullcontext()
        if places is not None and has_places:
            self.places = places
        self._poison = poison
        self._debug = debug
        self._given = {Kind.WEIGHT: weights, Kind.STATE: state}
        self._graphs: dict[tuple[str, int], dict[int, tuple[int, Replay]]] = {}
        self._fixed: dict[Buffer, Array] = {}
        self._bindings: OrderedDict[tuple[tuple[str, int], ...], BoundProgram] = OrderedDict()
        self._newest: tuple[Sizes, BoundProgram] | None = None
        for kind, arrays in self._given.items():
            for buffer in planned.program.of_kind(kind):
                check_array(buffer, arrays.get(buffer.name), {})
                self._fixed[buffer] = arrays[buffer.name]
        # Arrays of the arena at their largest; what is bound are their first rows.
        self._views: dict[Buffer, Array] = {
            buffer: arena.view(region, _largest(buffer.type), offset)
            for buffer, (region, offset) in _places(planned).items()
        }

    def bind(self, sizes: Sizes) -> BoundProgram:
        """The program at these sizes; made once per sizes and kept while recently used."""
        if self._newest is not None and self._newest[0] == sizes:  # inputs() and run() come in turn
            return self._newest[1]
        bound = self._bind(sizes)
        self._newest = dict(sizes), bound
        return bound

    def _bind(self, sizes: Sizes) -> BoundProgram:
        key = tuple(sorted(sizes.items()))
        if key in self._bindings:
            self._bindings.move_to_end(key)
            return self._bindings[key]
        program = self.planned.program
        places = input_offsets(program)
        types = {buffer: buffer.type.bind(sizes) for buffer in places}
        views = {buffer: _cut(array, buffer.type, sizes) for buffer, array in self._views.items()}
        arrays = self._fixed | views
        ops = self._device.bind(program, arrays, workspace=self._workspace(), poison=self._poison)
        bound = BoundProgram(
            ops=ops,
            pieces=self._pieces(ops, sizes),
            inputs=tuple(
                {
                    buffer.name: _view(twin, types[buffer], offset)
                    for buffer, offset in places.items()
                }
                for twin in self._staging.twins
            ),
            input_bytes=max((places[b] + type_.nbytes for b, type_ in types.items()), default=0),
            device_inputs={buffer.name: arrays[buffer] for buffer in places},
            outputs={buffer.name: arrays[buffer] for buffer in program.of_kind(Kind.OUTPUT)},
        )
        self._bindings[key] = bound
        self._drop_least_used()
        return bound

    def inputs(self, sizes: Sizes) -> dict[str, Array]:
        """The host arrays to fill for the next step at these sizes; they hold anything."""
        return self.bind(sizes).inputs[self._staging.next()]

    def run(
        self,
        sizes: Sizes,
        on_device: Mapping[str, Array] | None = None,
        *,
        num_steps: int = 1,
        until: Callable[[], bool] | None = None,
    ) -> dict[str, Array]:
        """Queue steps on what :meth:`inputs` was filled with; returns the device's outputs.

        They are replays where the step was captured. All of them find the same inputs.

        Args:
            sizes: of the dims.
            on_device: arrays of the device that take the place of what an input was filled with,
                by name; a shorter one takes that of its first rows.
            num_steps: how many.
            until: make a loop of them that may end earlier, as the control program
                decides. Where the loop is not captured and the host can see the device's memory,
                this says between steps whether it has ended; elsewhere all steps are made.

        Raises:
            RuntimeError: in debug mode, an array that is bound was replaced since.
        """
        bound = self.bind(sizes)
        if self._debug:
            self._check_addresses()
        if on_device:
            self._send_beside(on_device, bound)
        else:
            self._send(bound)
        if self._poison:
            self._device.poison(bound.outputs)
        with self.places:
            if until is not None and bound.loop is not None:
                bound.loop.launch()
            elif until is not None and self._device.shares_host_memory:
                self._run_until(until, bound, sizes)
            else:
                for _ in range(num_steps):
                    _queue_all(bound.pieces)
        return bound.outputs

    def _send(self, bound: BoundProgram) -> None:
        """Send the inputs, unless the arena holds the same: the GPU would wait for a copy."""
        sent = self._staging.sent(bound.input_bytes)
        if sent is not None:
            before, now = bound.inputs[sent], bound.inputs[1 - sent]
            if all(array.tobytes() == before[name].tobytes() for name, array in now.items()):
                return
        self._staging.send(bound.input_bytes)

    def _send_beside(self, on_device: Mapping[str, Array], bound: BoundProgram) -> None:
        """Send the inputs, then copy arrays of the device over them; only these if they are all."""
        given = [(bound.device_inputs[name], array) for name, array in on_device.items()]
        if sum(target.shape == array.shape for target, array in given) < len(bound.device_inputs):
            self._staging.send(bound.input_bytes)
        for target, array in given:
            whole = target.shape == array.shape
            self._device.copy(target if whole else target[: len(array)], array)
        self._staging.overwritten()

    def _run_until(self, until: Callable[[], bool], bound: BoundProgram, sizes: Sizes) -> None:
        """Run steps one by one until the loop has ended; the host sees the device's memory."""
        if bound.control is None:
            bound.control = self._decide(sizes, True, 0), self._decide(sizes, False, 0)
        begin, decide = bound.control
        _queue_all(begin)
        while not until():
            _queue_all(bound.pieces)
            _queue_all(decide)

    def capture(self, sizes: Sizes) -> Replay:
        """Capture the whole step at these sizes as one graph, on a device that has graphs.

        Raises:
            CaptureError: the capture failed; the step still runs eagerly.
        """
        bound = self.bind(sizes)
        bound.graph = self._device.capture(partial(_queue_all, bound.ops))
        bound.pieces = (partial(_replay, bound.graph),)
        return bound.graph

    def capture_loop(self, sizes: Sizes) -> None:
        """Capture a loop over the step at these sizes, which was captured before.

        Raises:
            CaptureError: the capture failed; the steps still run one by one.
        """
        bound = self.bind(sizes)

        def begin(condition: int) -> Run:
            return partial(_queue_all, self._decide(sizes, True, condition))

        def repeat(condition: int) -> Run:
            return partial(_queue_all, [*bound.ops, *self._decide(sizes, False, condition)])

        bound.loop = self._device.capture_loop(begin, repeat)

    def _decide(self, sizes: Sizes, begins: bool, condition: int) -> Sequence[QueueOp]:
        """A call for each op of the control program, on inputs of the step and on state."""
        assert self.control is not None, "only with a control program is there a loop"
        bound, program = self.bind(sizes), self.control(sizes, begins, condition)
        arrays = {b: bound.device_inputs[b.name] for b in program.of_kind(Kind.INPUT)}
        arrays |= {b: self._given[Kind.STATE][b.name] for b in program.of_kind(Kind.STATE)}
        for buffer, found in arrays.items():
            check_array(buffer, found, {})
        return self._device.bind(program, arrays, workspace=self._workspace(), poison=False)

    def capture_pieces(self, axis: str, sizes: Sizes) -> list[Replay]:
        """Capture every run of ops whose sizes follow from ``axis`` alone as a graph of its own.

        Attention and what depends on other axes run eagerly between them. Later bindings with the
        same size of ``axis`` use the graphs too.

        Raises:
            CaptureError: a capture failed; the step still runs eagerly.
        """
        bound = self.bind(sizes)
        graphs = {}
        for begin, end in pieces_of(self.planned.program, axis):
            graphs[begin] = (end, self._device.capture(partial(_queue_all, bound.ops[begin:end])))
        self._graphs[axis, sizes[axis]] = graphs
        bound.pieces = self._pieces(bound.ops, sizes)
        return [graph for _, graph in graphs.values()]

    def _drop_least_used(self) -> None:
        """Keep no more bindings than ``MAX_BINDINGS``, and every one that holds a graph."""
        eager = [key for key, bound in self._bindings.items() if bound.graph is None]
        if len(eager) > MAX_BINDINGS:
            del self._bindings[eager[0]]

    def _pieces(self, ops: Sequence[QueueOp], sizes: Sizes) -> list[QueueOp]:
        """The ops, with what is captured for one of the sizes in their place."""
        found = (self._graphs.get((axis, size)) for axis, size in sizes.items())
        graphs = next((each for each in found if each is not None), {})
        pieces: list[QueueOp] = []
        index = 0
        while index < len(ops):
            if index in graphs:
                index, graph = graphs[index]
                pieces.append(partial(_replay, graph))
            else:
                pieces.append(ops[index])
                index += 1
        return pieces

    def _check_addresses(self) -> None:
        for buffer, array in self._fixed.items():
            now = self._given[buffer.kind].get(buffer.name)
            if now is None or self._device.address(now) != self._device.address(array):
                raise RuntimeError(
                    f"{self.planned.program.name}: {buffer.kind.value} {buffer.name!r} was "
                    "replaced after it was bound, expected the same array: copy into it instead"
                )

    def _workspace(self) -> Array | None:
        """The arena's scratch memory for launches, where it has one."""
        if WORKSPACE not in self._arena.regions:
            return None
        nbytes = self._arena.regions[WORKSPACE].nbytes
        return self._arena.view(WORKSPACE, ArrayType((nbytes,), "uint8"))


def pieces_of(program: Program, axis: str) -> list[tuple[int, int]]:
    """The runs of ops, as (begin, end), whose sizes follow from ``axis`` alone, without attention.

    They can be captured once for each size of the axis, whatever the other axes are.
    """
    runs: list[tuple[int, int]] = []
    for index, op in enumerate(program.ops):
        dims = {size.name for size in op.axes.values() if isinstance(size, Dim)}
        if dims - {axis} or op.kernel.is_attention:
            continue
        if runs and runs[-1][1] == index:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs


def _places(planned: PlannedProgram) -> dict[Buffer, tuple[str, int]]:
    """The arena's region, and the offset in it, of each input, output and temporary."""
    found = {b: (INPUTS, offset) for b, offset in input_offsets(planned.program).items()}
    found |= {b: (output_region(b), 0) for b in planned.program.of_kind(Kind.OUTPUT)}
    return found | {b: (TEMPORARIES, at) for b, at in planned.assignment.offsets.items()}


def _largest(type_: ArrayType) -> ArrayType:
    """The type with every axis at its maximum."""
    return ArrayType(tuple(map(int, type_.shape)), type_.dtype)


def _cut(array: Array, type_: ArrayType, sizes: Sizes) -> Array:
    """The array at these sizes, of one that is as large as ``type_`` can be."""
    first = type_.shape[0] if type_.shape else 0
    return array[: bind_axis(first, sizes)] if isinstance(first, Dim) else array


def _queue_all(pieces: Sequence[QueueOp]) -> None:
    """Queue them in order; before the first one, the stream holds what is not a launch of ours."""
    after_ours = False
    for piece in pieces:
        after_ours = piece(after_ours)


def _replay(graph: Replay, after_ours: bool) -> bool:
    graph.launch()
    return False


def _view(raw: Array, type_: ArrayType, offset: int) -> Array:
    """An array of ``type_`` at ``offset`` bytes into host memory."""
    found: Array = raw[offset : offset + type_.nbytes].view(DTYPES[type_.dtype])
    return found.reshape(type_.shape)
