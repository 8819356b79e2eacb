"""Stream capture, and what comes of it: a CUDA graph that is uploaded, launched and inspected.

The capture is thread-local, so other threads may use CuPy meanwhile, and runs under an allocator
that refuses: memory that is allocated in a capture would be freed before the graph is replayed.
"""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

from cugraphs.device import CaptureError, Run
from cugraphs.one_line import reason


class CudaGraph:
    """One captured step, instantiated and uploaded."""

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

        graph = driver.CUgraph(int(self._graph.graph))
        error, _, count = driver.cuGraphGetNodes(graph, 0)
        if not error:
            error, nodes, count = driver.cuGraphGetNodes(graph, count)
        if error:
            raise RuntimeError(f"CudaGraph: cuGraphGetNodes fails with {error.name}")
        return list(nodes[:count])


def capture(stream: Any, run: Run) -> CudaGraph:  # noqa: ANN401
    """Record what ``run`` queues on ``stream``, instantiate it and upload it.

    Raises:
        CaptureError: a call in it failed or cannot be captured. The capture is ended, and the
            stream can be used as before.
    """
    import cupy

    def refuse(nbytes: int) -> None:
        raise RuntimeError(f"an allocation of {nbytes} bytes in a capture")

    collecting = gc.isenabled()
    gc.disable()  # a collection could free device memory, which a capture does not allow
    graph: Any = None
    problem: Exception | None = None
    try:
        with stream, cupy.cuda.using_allocator(refuse):
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
            try:
                run()
            except Exception as error:
                problem = error
            try:
                graph = stream.end_capture()
            except Exception as error:
                problem = problem or error
    finally:
        if collecting:
            gc.enable()
    if problem is not None:
        where = " ".join(getattr(problem, "__notes__", ())) or "at its end"
        raise CaptureError(f"capture fails {where}: {reason(problem)}") from problem
    captured = CudaGraph(graph, stream)
    captured.upload()
    return captured


def _kind(driver: Any, node: Any) -> str:  # noqa: ANN401
    error, kind = driver.cuGraphNodeGetType(node)
    if error:
        raise RuntimeError(f"CudaGraph: cuGraphNodeGetType fails with {error.name}")
    return str(kind.name).removeprefix("CU_GRAPH_NODE_TYPE_").lower()


def _touches_pageable(driver: Any, node: Any) -> bool:  # noqa: ANN401
    error, copy = driver.cuGraphMemcpyNodeGetParams(node)
    if error:
        raise RuntimeError(f"CudaGraph: cuGraphMemcpyNodeGetParams fails with {error.name}")
    host = driver.CUmemorytype.CU_MEMORYTYPE_HOST
    pointers = [int(copy.srcHost)] * (copy.srcMemoryType == host)
    pointers += [int(copy.dstHost)] * (copy.dstMemoryType == host)
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    return any(driver.cuPointerGetAttribute(attribute, pointer)[0] for pointer in pointers)
