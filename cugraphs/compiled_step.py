"""``compile``: the pipeline for a step of your own, called with arrays by name.

Knows declared buffers and rows; not what the step computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from cugraphs.arena import Arena, allocate_arrays
from cugraphs.bucketed_step import AXIS, BucketedStep, ProgramMemory, StepCounts, plan_buckets
from cugraphs.capture_report import CaptureReport
from cugraphs.device import Device, Replay
from cugraphs.device_choice import choose_device
from cugraphs.executable import PlannedProgram
from cugraphs.kernel import Array, ArrayType, Dim
from cugraphs.ladder import Ladder, OffLadder
from cugraphs.memory_map import MemoryMap, MemoryPart
from cugraphs.step_arguments import StepArguments
from cugraphs.step_signature import StepSignature
from cugraphs.trace import Tracer


class RowStep(Protocol):
    """Records a step over a batch of rows."""

    def __call__(self, t: Tracer, rows: Dim, /) -> object:
        """Declare inputs, weights and state, call kernels, mark outputs.

        It is called once for each class of buckets, with the axis at the largest row count of the
        class, and should record the same arrays each time.
        """


def compile(
    step: RowStep,
    *,
    buckets: str | Sequence[int],
    device: str | Device = "auto",
    weights: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    dead: Mapping[str, Any] | None = None,
    max_rows: int | None = None,
    off_ladder: OffLadder = "split",
    graphs: bool = True,
    allow_rounding: bool = False,
    poison: bool = False,
    debug: bool = False,
) -> CompiledStep:
    """Trace, fuse, plan and bind a step, and capture it as one CUDA graph per bucket.

    Args:
        step: ``step(t, rows)`` records it; ``rows`` is the axis that the batch fills.
        buckets: row counts, or the name of a ladder's profile.
        device: "cpu", "cuda", "auto", or a device.
        weights: a NumPy (or, on a GPU, CuPy) array for every weight, copied once; more are fine.
        state: an array for every state, copied once: what the first call finds.
        dead: what padding rows hold, for each input that has rows: a number, or one row; 0 unless
            given. The step must leave its state alone on such rows.
        max_rows: rows of the largest batch; the largest bucket unless given.
        off_ladder: what a batch above the largest bucket does: "split" into several replays, run
            "eager", or be an "error".
        graphs: capture, on a device that can; False runs every kernel from Python.
        allow_rounding: round values that the declared dtype does not have; an error otherwise.
        poison: fill outputs with NaN bytes before a step, and temporaries after their last use.
        debug: check before every step that no weight or state was replaced.

    Raises:
        TypeError, ValueError: the step, an array or an argument does not fit; the message says
            which.
        CudaUnavailable: "cuda" is asked for and cannot be used.
        MemoryError: it does not fit.
    """
    name = getattr(step, "__name__", type(step).__name__)
    ladder = _ladder(name, buckets, max_rows, off_ladder)

    def record(t: Tracer, rows: int) -> None:
        step(t, t.dim(AXIS, rows))

    return CompiledStep(
        name,
        ladder,
        plan_buckets(name, record, ladder),
        choose_device(device) if isinstance(device, str) else device,
        weights or {},
        state or {},
        dead or {},
        graphs=graphs,
        allow_rounding=allow_rounding,
        poison=poison,
        debug=debug,
    )


class CompiledStep:
    """A step that is called with a batch of any size up to ``max_rows``. Made by :func:`compile`.

    ``step(x=..., y=...)`` takes an array for every declared input and returns the outputs by name.
    It picks the bucket, pads, and runs or replays. One thread at a time may call it.

    *Results.* Each output is a view of fixed memory (NumPy on the CPU, CuPy on a GPU), cut to the
    batch. It holds until the next call; ``read`` makes a host copy that lasts.

    *Order.* A call returns when the step is queued. Host arrays have been copied by then. On a GPU
    the step runs in a stream of its own, after what CuPy's current stream was given before the call
    and before what it is given next: results can be used, and CuPy inputs overwritten, as if the
    step had been queued there. ``read`` waits until it is done.

    Attributes:
        arrays: the weights and state where they are, by name. Code that works there may write into
            them, as ``arrays["total"][...] = 0``; replacing one has no effect (``debug`` finds it).
        planned: the programs and the places of their temporaries, by the row count of the trace.
        signature: what the step takes and gives.
    """

    def __init__(
        self,
        name: str,
        ladder: Ladder,
        planned: Mapping[int, PlannedProgram],
        device: Device,
        weights: Mapping[str, Any],
        state: Mapping[str, Any],
        dead: Mapping[str, Any],
        *,
        graphs: bool,
        allow_rounding: bool,
        poison: bool,
        debug: bool,
    ) -> None:
        """Check what is given, allocate, capture on dead rows, then load the state."""
        self.planned = planned
        self.signature = signature = StepSignature.of(name, AXIS, planned)
        self._ladder = ladder
        self._device = device
        splits = ladder.max_rows > ladder.top and ladder.off_ladder == "split"
        if splits:
            signature.check_splittable()
        self._arguments = StepArguments(
            signature, device, max_rows=ladder.max_rows, dead=dead, allow_rounding=allow_rounding
        )
        given_weights = self._arguments.weights(weights)
        given_state = self._arguments.state(state)
        fixed = {**signature.weights, **signature.state}
        self.arrays = allocate_arrays(fixed, device.allocate_bytes)
        whole = signature.outputs if splits else {}  # a split batch's results are put together here
        self._together = allocate_arrays(
            {n: ArrayType((ladder.max_rows, *t.shape[1:]), t.dtype) for n, t in whole.items()},
            device.allocate_bytes,
        )
        memory = ProgramMemory(
            list(planned.values()), device, self.arrays, self.arrays, poison=poison, debug=debug
        )
        self.arena: Arena = memory.arena
        self._buckets = BucketedStep(ladder, planned, memory)
        self._load(given_weights)
        if graphs:
            self._buckets.capture(lambda inputs: self._arguments.fill(inputs, {}, 0))
        self._load(given_state)  # after the warm-up, so that nothing has changed it

    def __call__(self, /, **inputs: Any) -> dict[str, Array]:  # noqa: ANN401 - what NumPy takes
        """Run a batch: an array for every input, by name. Returns the outputs, by name.

        Raises:
            TypeError: an input is missing or unknown, or its dtype cannot be converted.
            ValueError: a shape does not fit, or the batch is too large.
        """
        rows, given = self._arguments.batch(inputs)
        parts = self._buckets.split(rows)
        if len(parts) > 1:  # one may be a view of results, which the first part overwrites
            given = {name: array.copy() for name, array in given.items()}
        self._device.wait_for_caller()
        outputs = self._run(rows, given) if len(parts) == 1 else self._run_parts(parts, given)
        self._device.let_caller_wait()
        return outputs

    def read(self, what: str | Array) -> Array:
        """A host copy of a weight or state by name, or of an output that a call returned.

        It waits for all calls so far, and is not changed by later ones.

        Raises:
            ValueError: no weight or state has that name.
        """
        array = self._array(what) if isinstance(what, str) else what
        self._device.wait_for_caller()
        return np.array(self._device.read(array), copy=self._device.shares_host_memory or None)

    def write(self, name: str, values: Any) -> None:  # noqa: ANN401 - what NumPy takes
        """Copy values into a weight or state; the next call finds them.

        Raises:
            TypeError, ValueError: no weight or state has that name, or they do not fit it.
        """
        self._array(name)
        types = {**self.signature.weights, **self.signature.state}
        self._load({name: self._arguments.fitting(repr(name), values, types[name])})

    @property
    def counts(self) -> StepCounts:
        """Captures, replays by bucket, padding rows, and eager steps with their reason, so far."""
        return self._buckets.counts

    @property
    def captured(self) -> tuple[int, ...]:
        """The buckets that are replayed."""
        return self._buckets.captured

    @property
    def capture_report(self) -> CaptureReport:
        """Time, driver memory and nodes of every graph; prints as a table."""
        return self._buckets.capture_report

    def graph(self, rows: int) -> Replay:
        """The graph of a captured bucket: ``graph(8).dot()`` is it in Graphviz's language.

        Raises:
            ValueError: it is not captured.
        """
        return self._buckets.graph(rows)

    def memory_map(self) -> MemoryMap:
        """Where every byte is; prints as a table."""
        parts = [
            MemoryPart(
                "weights", _bytes_of(self.signature.weights), "in one allocation with state"
            ),
            MemoryPart("state", _bytes_of(self.signature.state)),
        ]
        if self._together:
            nbytes = sum(array.nbytes for array in self._together.values())
            parts.append(MemoryPart("split batches", nbytes, "results put together"))
        parts.append(MemoryPart("arena", self.arena.nbytes))
        if self.captured:
            report = self.capture_report
            note = f"that the driver took for {len(report)} of them"
            parts.append(MemoryPart("graphs", report.driver_bytes, note))
        device = self._device
        if device.shares_host_memory:  # everybody's: what this step leaves of it says nothing
            return MemoryMap(tuple(parts), self.arena)
        memory = MemoryMap(tuple(parts), self.arena, device.total_bytes)
        return memory.with_rest(device.free_bytes, device.other_memory)

    def _run(self, rows: int, given: Mapping[str, Array]) -> dict[str, Array]:
        """Queue one step on arrays that fit."""
        on_device = {n: array for n, array in given.items() if self._arguments.on_device(array)}
        host = {name: array for name, array in given.items() if name not in on_device}
        self._arguments.fill(self._buckets.inputs(rows), host, rows)
        return self._buckets.cut(self._buckets.run(rows, on_device), rows)

    def _run_parts(self, parts: Sequence[int], given: Mapping[str, Array]) -> dict[str, Array]:
        """Queue a step for each part of a batch, and put the results together."""
        begin = 0
        for rows in parts:
            outputs = self._run(rows, self._arguments.cut(given, begin, rows))
            for name, array in outputs.items():
                self._device.copy(self._together[name][begin : begin + rows], array)
            begin += rows
        return {name: array[:begin] for name, array in self._together.items()}

    def _load(self, arrays: Mapping[str, Array]) -> None:
        """Copy arrays that fit into weights or state."""
        self._device.wait_for_caller()
        for name, array in arrays.items():
            copy = self._device.copy if self._arguments.on_device(array) else self._device.write
            copy(self.arrays[name], array)
        self._device.let_caller_wait()

    def _array(self, name: str) -> Array:
        if name not in self.arrays:
            known = ", ".join(self.arrays) or "none"
            raise ValueError(
                f"{self.signature.name}: no weight or state is called {name!r}, only {known}"
            )
        return self.arrays[name]


def _bytes_of(types: Mapping[str, ArrayType]) -> int:
    return sum(type_.nbytes for type_ in types.values())


def _ladder(
    name: str, buckets: str | Sequence[int], max_rows: int | None, off_ladder: OffLadder
) -> Ladder:
    """The ladder of a profile, or of a list whose largest bucket is the top rung."""
    if isinstance(buckets, str):
        if max_rows is None:
            raise ValueError(
                f"{name}: max_rows is not given, expected the rows of the largest batch, which the "
                f"profile {buckets!r} goes up to; or list the buckets"
            )
        return Ladder(max_rows, buckets, off_ladder=off_ladder)
    sizes = list(buckets)
    if not sizes:
        raise ValueError(f"{name}: buckets is empty, expected row counts, as [1, 2, 4, 8]")
    top = max((size for size in sizes if isinstance(size, int)), default=1)
    if max_rows is not None and isinstance(max_rows, int) and max_rows < top:
        raise ValueError(
            f"{name}: max_rows is {max_rows}, expected at least the largest bucket, {top}"
        )
    return Ladder(
        top if max_rows is None else max_rows, sizes, max_capture_size=top, off_ladder=off_ladder
    )
