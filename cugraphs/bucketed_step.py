"""One step at the row counts of a ladder: a program per fusion class, a graph per rung.

Knows programs, memory and a ladder; not what a row is. Rows beyond the batch are padding.
"""

from __future__ import annotations

import logging
import time
from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, cast

from cugraphs.arena import allocate_arrays
from cugraphs.capture_report import CapturedRung, CaptureReport
from cugraphs.compiler import plan_arena, plan_program
from cugraphs.counted import counted
from cugraphs.device import CaptureError, Device, Replay
from cugraphs.executable import INPUTS, Executable, PlannedProgram
from cugraphs.kernel import Array, ArrayType, Dim
from cugraphs.ladder import Ladder
from cugraphs.meeting_places import MeetingPlaces, places_of
from cugraphs.program import Kind, Program
from cugraphs.trace import Tracer

AXIS = "rows"
GRAPHS_OFF = "graphs are off"

_log = logging.getLogger("cugraphs")


class BucketStep(Protocol):
    """Records a step."""

    def __call__(self, t: Tracer, rows: int) -> None:
        """Record it for at most ``rows`` rows; it declares the axis ``rows``."""


class ProgramMemory:
    """The arena of several programs on one device, and the arrays that they all use."""

    def __init__(
        self,
        planned: Sequence[PlannedProgram],
        device: Device,
        weights: Mapping[str, Array],
        state: Mapping[str, Array],
        *,
        poison: bool = False,
        debug: bool = False,
    ) -> None:
        """Lay out and allocate one arena, and host memory for its inputs.

        Args:
            planned: every program that will be bound.
            device: runs them.
            weights: an array of the device for every WEIGHT buffer; more are fine.
            state: an array of the device for every STATE buffer.
            poison: fill dead temporaries with NaN bytes (tests, debugging).
            debug: check before every run that no array was replaced.

        Raises:
            MemoryError: the arena does not fit.
        """
        self.device = device
        self.arena = plan_arena(planned, workspace=device.uses_workspace)
        self.arena.allocate(device.allocate_bytes, poison=False)
        device.poison({"arena": self.arena.memory})  # what is read before it is written shows
        places = places_of([each.program for each in planned])
        arrays = allocate_arrays(places, device.allocate_bytes) if places else {}
        # NaN bytes are all ones.
        self.places = MeetingPlaces(arrays, partial(device.poison, arrays))
        inputs = ArrayType((self.arena.regions[INPUTS].nbytes,), "uint8")
        self._bind = partial(
            Executable,
            arena=self.arena,
            device=device,
            staging=device.stage(self.arena.view(INPUTS, inputs)),
            weights=weights,
            state=ChainMap(arrays, cast(MutableMapping[str, Array], state)),
            places=self.places,
            poison=poison,
            debug=debug,
        )

    def executable(self, planned: PlannedProgram) -> Executable:
        """One of the programs, bound to the arrays."""
        return self._bind(planned)


@dataclass
class StepCounts:
    """What was run so far.

    Attributes:
        captures: graphs captured.
        replays: replays by rung.
        padding_rows: rows that were computed for nobody, but those of captured loops.
        loops: launches of a loop over steps, by rung.
        eager_steps: steps that ran eagerly, by the reason.
        off_ladder_steps: batches above the top rung.
    """

    captures: int = 0
    replays: Counter[int] = field(default_factory=Counter)
    loops: Counter[int] = field(default_factory=Counter)
    padding_rows: int = 0
    eager_steps: Counter[str] = field(default_factory=Counter)
    off_ladder_steps: int = 0


def plan_buckets(name: str, step: BucketStep, ladder: Ladder) -> dict[int, PlannedProgram]:
    """Plan a program for every fusion class of a ladder.

    Args:
        name: of the step.
        step: records it.
        ladder: the row counts.

    Returns:
        By the row count at which each is traced.
    """
    below = (0, *ladder.classes)
    return {
        rows: plan_program(f"{name}_{rows}", partial(step, rows=rows), least_rows=fewer + 1)
        for fewer, rows in zip(below, ladder.classes, strict=False)
    }


class BucketedStep:
    """Runs a batch at the rung that holds it, replayed where that is captured."""

    def __init__(
        self, ladder: Ladder, planned: Mapping[int, PlannedProgram], memory: ProgramMemory
    ) -> None:
        """Bind every program; nothing is captured yet.

        Args:
            ladder: the row counts.
            planned: from :func:`plan_buckets`.
            memory: was laid out for them.
        """
        self.ladder = ladder
        self.counts = StepCounts()
        self.capture_report = CaptureReport()
        self._device = memory.device
        self._executables = {rows: memory.executable(plan) for rows, plan in planned.items()}
        self._row_outputs = {
            buffer.name: axis.offset
            for plan in planned.values()
            for buffer in plan.program.of_kind(Kind.OUTPUT)
            for axis in buffer.type.shape[:1]
            if isinstance(axis, Dim)
        }
        self._places: dict[int, tuple[int, Executable, dict[str, int]]] = {}
        self._captured: set[int] = set()
        self._loops: set[int] = set()
        self._eager_reason = GRAPHS_OFF
        self._warned = False

    def inputs(self, rows: int) -> dict[str, Array]:
        """The host arrays to fill before ``rows`` rows run; as long as the rung, holding anything.

        Raises:
            ValueError: ``rows`` is below 1, or above the top rung and may not run eagerly.
        """
        _, executable, sizes = self._place(rows)
        return executable.inputs(sizes)

    def run(
        self,
        rows: int,
        on_device: Mapping[str, Array] | None = None,
        *,
        num_steps: int = 1,
        until: Callable[[], bool] | None = None,
    ) -> dict[str, Array]:
        """Queue steps of ``rows`` rows on what their inputs were filled with.

        Args:
            rows: of the batch.
            on_device: arrays of the device in place of inputs, as of :meth:`Executable.run`.
            num_steps: how many, one after the other on the same inputs.
            until: make a loop of them that may end earlier, as of :meth:`Executable.run`; after
                :meth:`add_loops`.

        Returns:
            The device's outputs, at the size of the rung; of the last step.
        """
        rung, executable, sizes = self._place(rows)
        outputs = executable.run(sizes, on_device, num_steps=num_steps, until=until)
        self._count(rows, rung, num_steps, is_loop=until is not None)
        return outputs

    def cut(self, outputs: Mapping[str, Array], rows: int) -> dict[str, Array]:
        """What :meth:`run` gave, cut to the rows of the batch."""
        extra = self._row_outputs
        return {n: a[: rows + extra[n]] if n in extra else a for n, a in outputs.items()}

    def _count(self, rows: int, rung: int, num_steps: int, *, is_loop: bool) -> None:
        if is_loop and rung in self._loops:
            self.counts.loops[rung] += 1
            return
        if rung in self._captured:
            self.counts.replays[rung] += num_steps
        elif rows > self.ladder.top:
            self.counts.eager_steps["above the ladder"] += num_steps
        else:
            self.counts.eager_steps[self._eager_reason] += num_steps
        self.counts.padding_rows += (rung - rows) * num_steps

    def split(self, rows: int) -> tuple[int, ...]:
        """The row counts that a batch runs in, one after the other.

        Raises:
            ValueError: it is above the top rung, and that is an error.
        """
        parts = self.ladder.dispatch(rows) or (rows,)
        if rows > self.ladder.top:
            self.counts.off_ladder_steps += 1
            if not self._warned:
                self._warned = True
                how = counted(len(parts), "replay") if len(parts) > 1 else "an eager step"
                _log.warning(
                    "a batch of %s is above the largest captured size %d and runs as %s; "
                    "capture a larger one (max_capture_size, buckets)",
                    counted(rows, "row"),
                    self.ladder.top,
                    how,
                )
        return parts

    def capture(
        self,
        fill_dead: Callable[[dict[str, Array]], None],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Capture every rung, the largest first. A failure leaves what is not captured eager.

        Before the first rung of each program it runs eagerly, on dead rows: that loads all that it
        needs, which a capture does not allow. A device without graphs captures nothing.

        Args:
            fill_dead: fills the inputs of a step with rows of which none is live.
            progress: called with each rung.
        """
        if not self._device.has_graphs:
            return
        for rung in reversed(self.ladder.rungs):
            executable, sizes = self.executable(rung), {AXIS: rung}
            start = time.perf_counter()
            if rung in self.ladder.classes:
                fill_dead(executable.inputs(sizes))
                executable.run(sizes)
            warm, before = time.perf_counter(), self._device.free_bytes
            try:
                graph = executable.capture(sizes)
            except CaptureError as error:
                self._eager_reason = f"not captured: {error}"
                stopped = f"{counted(rung, 'row')}: {error}; they and smaller batches run eagerly"
                self.capture_report.stopped = stopped
                _log.warning("%s", stopped)
                return
            self.capture_report.rungs.append(
                CapturedRung(
                    rows=rung,
                    warm_up_ms=(warm - start) * 1e3,
                    capture_ms=(time.perf_counter() - warm) * 1e3,
                    driver_bytes=max(before - self._device.free_bytes, 0),
                    num_nodes=graph.num_nodes,
                )
            )
            self._captured.add(rung)
            self.counts.captures += 1
            if progress is not None:
                progress(rung)

    def add_loops(self, control: Callable[[int, bool, int], Program]) -> None:
        """Let steps run as loops that end themselves; capture one for each rung that is captured.

        Where that fails the steps of a loop are replayed one by one, all of them, with a warning.

        Args:
            control: makes, for a rung, the program that decides whether there is another step;
                True: before the first one; and for the handle of a loop's condition, 0 where there
                is none. Its inputs are some of the step's.
        """
        for executable in self._executables.values():
            executable.control = lambda sizes, *when: control(sizes[AXIS], *when)
        for rung in reversed(self.captured):
            try:
                self.executable(rung).capture_loop({AXIS: rung})
            except CaptureError as error:
                _log.warning(
                    "%s: %s; their steps are replayed one by one", counted(rung, "row"), error
                )
                return
            self._loops.add(rung)

    @property
    def loops(self) -> tuple[int, ...]:
        """The rungs whose loops are one launch."""
        return tuple(sorted(self._loops))

    @property
    def captured(self) -> tuple[int, ...]:
        """The rungs that are replayed."""
        return tuple(sorted(self._captured))

    def graph(self, rung: int) -> Replay:
        """The graph of a captured rung.

        Raises:
            ValueError: it is not captured.
        """
        graph = self.executable(rung).bind({AXIS: rung}).graph
        if graph is None:
            raise ValueError(
                f"graph: rung {rung} is not captured, expected one of {list(self.captured)}"
            )
        return graph

    def _place(self, rows: int) -> tuple[int, Executable, dict[str, int]]:
        """The rung of a batch, what runs it, and at which sizes."""
        found = self._places.get(rows)
        if found is None:
            is_eager = rows > self.ladder.top and self.ladder.off_ladder == "eager"
            rung = rows if is_eager else self.ladder.rung_for(rows)
            found = self._places[rows] = rung, self.executable(rung), {AXIS: rung}
        return found

    def executable(self, rung: int) -> Executable:
        """What runs a rung."""
        return self._executables[self.ladder.class_for(rung)]
