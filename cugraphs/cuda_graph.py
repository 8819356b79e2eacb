"""Stream capture, and what comes of it: a CUDA graph that is uploaded, launched and inspected.

The capture is thread-local, so other threads may use CuPy meanwhile, and runs under an allocator
that refuses: memory that is allocated in a capture would be freed before the graph is replayed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cugraphs.device import CaptureError, Run
from cugraphs.held_collection import held_collection
from cugraphs.one_line import reason


@dataclass(frozen=True)
class CaptureTimes:
    """Host time of a capture: recording launches, instantiating the graph, queueing its upload."""

    record_ms: float
    instantiate_ms: float
    upload_ms: float


class CudaGraph:
    """One captured step, instantiated and uploaded.

    Attributes:
        times: what its capture took.
    """

    times: CaptureTimes

    def __init__(self, graph: Any, stream: Any) -> None:  # noqa: ANN401 - CuPy's, without types
        """Take an instantiated ``cupy.cuda.Graph``."""
        self._graph = graph
        self._stream = stream

    def launch(self) -> None:
        """Queue a replay."""
        self._graph.launch(self._stream)

    def upload(self) -> None:
        """Queue what the first replay would otherwise do first."""
        self._graph.upload(self._stream)

    @property
    def num_nodes(self) -> int:
        """Launches, copies and fills in it. Raises RuntimeError where the driver does not say."""
        from cuda.bindings import driver

        error, _, count = driver.cuGraphGetNodes(self._pointer(driver), 0)
        if error:
            raise RuntimeError(f"CudaGraph: cuGraphGetNodes fails with {error.name}")
        return int(count)

    def node_kinds(self) -> Counter[str]:
        """How many nodes there are of each kind: ``kernel``, ``memset``, ``mem_alloc``."""
        from cuda.bindings import driver

        return Counter(_kind(driver, node) for node in self._nodes())

    def pageable_copies(self) -> int:
        """Copies from or to host memory that is not pinned: a replay would read it unsafely."""
        from cuda.bindings import driver

        copies = [node for node in self._nodes() if _kind(driver, node) == "memcpy"]
        return sum(_touches_pageable(driver, node) for node in copies)

    def dot(self) -> str:
        """The graph in Graphviz's language, with each node's parameters."""
        return str(self._graph.debug_dot_str())

    def _nodes(self) -> list[Any]:
        from cuda.bindings import driver

        error, nodes, count = driver.cuGraphGetNodes(self._pointer(driver), self.num_nodes)
        if error:
            raise RuntimeError(f"CudaGraph: cuGraphGetNodes fails with {error.name}")
        return list(nodes[:count])

    def _pointer(self, driver: Any) -> Any:  # noqa: ANN401
        return driver.CUgraph(int(self._graph.graph))


def capture(stream: Any, run: Run) -> CudaGraph:  # noqa: ANN401
    """Record what ``run`` queues on ``stream``, instantiate it and upload it.

    Raises:
        CaptureError: a call in it failed or cannot be captured. The capture is ended, and the
            stream can be used as before.
    """
    import cupy

    graph: Any = None
    problem: Exception | None = None
    start = time.perf_counter()
    with refuse_allocations(stream):
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        try:
            run()
        except Exception as error:
            problem = error
        recorded = time.perf_counter()
        try:
            graph = stream.end_capture()
        except Exception as error:
            problem = problem or error
        ended = time.perf_counter()
    if problem is not None:
        where = " ".join(getattr(problem, "__notes__", ())) or "at its end"
        raise CaptureError(f"capture fails {where}: {reason(problem)}") from problem
    captured = CudaGraph(graph, stream)
    before = time.perf_counter()
    captured.upload()
    after = time.perf_counter()
    captured.times = CaptureTimes(
        (recorded - start) * 1e3, (ended - recorded) * 1e3, (after - before) * 1e3
    )
    return captured


@contextmanager
def refuse_allocations(stream: Any) -> Iterator[None]:  # noqa: ANN401
    """Make ``stream`` the current one and memory as it is: none is allocated and none collected.

    A collection could free device memory, which a capture does not allow.

    Raises:
        RuntimeError: something is allocated within.
    """
    import cupy

    def refuse(nbytes: int) -> None:
        raise RuntimeError(f"an allocation of {nbytes} bytes in a capture")

    with held_collection(), stream, cupy.cuda.using_allocator(refuse):
        yield


def _kind(driver: Any, node: Any) -> str:  # noqa: ANN401
    error, kind = driver.cuGraphNodeGetType(node)
    if error:
        raise RuntimeError(f"CudaGraph: cuGraphNodeGetType fails with {error.name}")
    return str(kind.name).removeprefix("CU_GRAPH_NODE_TYPE_").lower()


def _touches_pageable(driver: Any, node: Any) -> bool:  # noqa: ANN401
    error, copy = driver.cuGraphMemcpyNodeGetParams(node)
    if error:
        raise RuntimeError(f"CudaGraph: cuGraphMemcpyNodeGetParams fails with {error.name}")
    ends = (
        (copy.srcMemoryType, copy.srcHost, copy.srcDevice),
        (copy.dstMemoryType, copy.dstHost, copy.dstDevice),
    )
    kinds, pointers = driver.CUmemorytype, []
    for kind, host, unified in ends:
        if kind == kinds.CU_MEMORYTYPE_HOST:
            pointers.append(int(host))
        elif kind == kinds.CU_MEMORYTYPE_UNIFIED:  # the driver is to find out by the address
            pointers.append(int(unified))
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    return any(driver.cuPointerGetAttribute(attribute, pointer)[0] for pointer in pointers)
