"""Where the time of a start goes: planning, weights, memory, binding, warm-up, and every graph.

Does what ``ModelRunner`` does at its start, step by step, with a clock between the steps. The model
arrives as an argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cugraphs.bucketed_step import AXIS, ProgramMemory
from cugraphs.cuda_device import CudaDevice
from cugraphs.cuda_graph import CudaGraph
from cugraphs.decode_bench import BenchModel
from cugraphs.executable import Executable
from cugraphs.kernel import Array
from cugraphs.ladder import Ladder, token_ladder
from cugraphs.replay_timing import launch_us
from cugraphs.step_plan import StepPlan
from cugraphs.step_state import fill_decode, fill_launch, fill_mixed
from cugraphs.token_ring import TokenRing


@dataclass(frozen=True)
class RungCapture:
    """One rung, or one token count of a mixed step, whose pieces are graphs.

    Args:
        kind: "full" or "piecewise".
        rows: of the rung.
        graphs: how many.
        nodes: of all of them.
        bind_ms: to prepare every launch.
        warm_up_ms: an eager step, where the rung is the first of its program; else 0.
        record_ms: the launches.
        instantiate_ms: the graphs.
        upload_ms: to queue their upload.
        driver_bytes: memory that the driver took for them, which it does in steps of 2 MiB.
    """

    kind: str
    rows: int
    graphs: int
    nodes: int
    bind_ms: float
    warm_up_ms: float
    record_ms: float
    instantiate_ms: float
    upload_ms: float
    driver_bytes: int

    @property
    def total_ms(self) -> float:
        """All of it."""
        capture_ms = self.record_ms + self.instantiate_ms + self.upload_ms
        return self.bind_ms + self.warm_up_ms + capture_ms


@dataclass
class CaptureTimes:
    """One start.

    Attributes:
        stages_ms: by name, in order.
        rungs: in order of capture.
    """

    stages_ms: dict[str, float] = field(default_factory=dict)
    rungs: list[RungCapture] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Any:  # noqa: ANN401 - a generator, as contextmanager wants it
        """Time what runs inside."""
        start = time.perf_counter()
        yield
        self.stages_ms[name] = (time.perf_counter() - start) * 1e3

    def sum_ms(self, kind: str, *fields: str) -> float:
        """The sum of some times over the rungs of a kind."""
        found = [rung for rung in self.rungs if rung.kind == kind]
        return float(sum(getattr(rung, name) for rung in found for name in fields))

    def graphs_ms(self, kind: str) -> float:
        """All rungs of a kind: binding, warm-up and capture."""
        return self.sum_ms(kind, "total_ms")

    def driver_bytes(self, kind: str) -> int:
        """Of all graphs of a kind."""
        return sum(rung.driver_bytes for rung in self.rungs if rung.kind == kind)


@dataclass(frozen=True)
class HostTimes:
    """What the host does for one step, at a rung.

    Args:
        rows: of the rung.
        launch_us: of the graph.
        queue_us: to fill the inputs, queue their copy and launch the graph.
    """

    rows: int
    launch_us: float
    queue_us: float


class CaptureBench:
    """Captures a model's ladder, as often as asked."""

    def __init__(self, bench: BenchModel, plan: StepPlan) -> None:
        """Take the model's plan and its state, without a KV cache to speak of.

        Args:
            bench: the model; its device is a GPU.
            plan: of its steps.
        """
        assert isinstance(bench.device, CudaDevice), "graphs are a GPU's"
        self._device = bench.device
        self._weights = bench.weights
        self._plan = plan
        self._decode: Mapping[int, Executable] = {}

    def run(
        self, *, piecewise: bool, progress: Callable[[str, int], None] | None = None
    ) -> CaptureTimes:
        """Make the memory of all programs and capture every rung, the largest first.

        Args:
            piecewise: capture the pieces of mixed steps too.
            progress: called with the kind and the rows of each rung.

        Raises:
            CaptureError: a rung cannot be captured.
            MemoryError: it does not fit.
        """
        device, plan, times = self._device, self._plan, CaptureTimes()
        with times.stage("memory"):
            state = {
                **device.kv_pool(plan.cache).arrays,
                **plan.state.allocate(device.zero_bytes),
                **TokenRing(device, plan.ring_rows).arrays,
            }
            memory = ProgramMemory(plan.programs, device, self._weights, state)
            device.stream.synchronize()
        self._decode = {rows: memory.executable(planned) for rows, planned in plan.decode.items()}
        for rung in reversed(plan.ladder.rungs):
            times.rungs.append(self._capture_rung(rung))
            if progress is not None:
                progress("full", rung)
        if piecewise:
            mixed = memory.executable(plan.mixed)
            for tokens in reversed(mixed_rungs(plan).rungs):
                times.rungs.append(self._capture_pieces(mixed, tokens))
                if progress is not None:
                    progress("piecewise", tokens)
        device.stream.synchronize()
        return times

    def host_times(self, rung: int) -> HostTimes:
        """What the host does for a step of a captured rung, of dead rows."""
        executable, sizes = self._decode[self._plan.ladder.class_for(rung)], {AXIS: rung}
        graph = executable.bind(sizes).graph
        assert graph is not None, f"rung {rung} is captured"
        samples = []
        for _ in range(30):
            self._device.stream.synchronize()
            start = time.perf_counter()
            _fill_dead(executable.inputs(sizes))
            executable.run(sizes)
            samples.append(time.perf_counter() - start)
        self._device.stream.synchronize()
        queue_us = sorted(samples)[len(samples) // 2] * 1e6
        return HostTimes(rung, launch_us(self._device, graph), queue_us)

    def _capture_rung(self, rung: int) -> RungCapture:
        executable, sizes = self._decode[self._plan.ladder.class_for(rung)], {AXIS: rung}
        start = time.perf_counter()
        executable.bind(sizes)
        bound = warm = time.perf_counter()
        if rung in self._plan.ladder.classes:
            _fill_dead(executable.inputs(sizes))
            executable.run(sizes)
            self._device.stream.synchronize()
            warm = time.perf_counter()
        free = self._device.free_bytes
        graph = executable.capture(sizes)
        assert isinstance(graph, CudaGraph), "a GPU's"
        return _rung_capture("full", rung, [graph], bound - start, warm - bound, free, self._device)

    def _capture_pieces(self, mixed: Executable, tokens: int) -> RungCapture:
        sizes = {"tokens": tokens, "seqs": 1, "logits": 1}
        start = time.perf_counter()
        mixed.bind(sizes)
        bound = time.perf_counter()
        inputs = mixed.inputs(sizes)
        inputs["changes"][:, 0] = -1
        fill_launch(inputs, 0)
        fill_mixed(inputs, ())
        mixed.run(sizes)
        self._device.stream.synchronize()
        warm, free = time.perf_counter(), self._device.free_bytes
        graphs = [g for g in mixed.capture_pieces("tokens", sizes) if isinstance(g, CudaGraph)]
        spent = bound - start, warm - bound
        return _rung_capture("piecewise", tokens, graphs, *spent, free, self._device)


def mixed_rungs(plan: StepPlan) -> Ladder:
    """The token counts of mixed steps that are captured."""
    return token_ladder(plan.state.num_slots, plan.max_num_batched_tokens)


def _rung_capture(
    kind: str,
    rows: int,
    graphs: list[CudaGraph],
    bind_s: float,
    warm_up_s: float,
    free_bytes: int,
    device: CudaDevice,
) -> RungCapture:
    return RungCapture(
        kind=kind,
        rows=rows,
        graphs=len(graphs),
        nodes=sum(graph.num_nodes for graph in graphs),
        bind_ms=bind_s * 1e3,
        warm_up_ms=warm_up_s * 1e3,
        record_ms=sum(graph.times.record_ms for graph in graphs),
        instantiate_ms=sum(graph.times.instantiate_ms for graph in graphs),
        upload_ms=sum(graph.times.upload_ms for graph in graphs),
        driver_bytes=max(free_bytes - device.free_bytes, 0),
    )


def _fill_dead(inputs: dict[str, Array]) -> None:
    inputs["changes"][:, 0] = -1
    fill_launch(inputs, 0)
    fill_decode(inputs, ())
