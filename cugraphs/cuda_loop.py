"""A graph that repeats a step until the step itself ends it: a conditional WHILE node.

The step is captured into the loop's body, and its last launch decides whether there is another.
CuPy has no call for conditional nodes, so they are made through cuda-bindings.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from cugraphs.cuda_graph import refuse_allocations
from cugraphs.device import CaptureError, Run
from cugraphs.one_line import reason

_NO_STEP = 0  # what the condition is whenever the graph is launched


class CudaLoop:
    """One loop over a step, instantiated and uploaded."""

    def __init__(self, graph: Any, stream: Any) -> None:  # noqa: ANN401
        """Instantiate.

        Args:
            graph: a CUgraph of the loop; destroyed with this object.
            stream: it is launched on.

        Raises:
            RuntimeError: the driver refuses it.
        """
        from cuda.bindings import driver

        self._launch = driver.cuGraphLaunch
        self._stream = driver.CUstream(int(stream.ptr))
        weakref.finalize(self, driver.cuGraphDestroy, graph)
        self._executable = _checked("cuGraphInstantiate", driver.cuGraphInstantiate(graph, 0))
        weakref.finalize(self, driver.cuGraphExecDestroy, self._executable)
        _checked("cuGraphUpload", driver.cuGraphUpload(self._executable, self._stream))

    def launch(self) -> None:
        """Queue the loop.

        Raises:
            RuntimeError: the driver refuses it.
        """
        _checked("cuGraphLaunch", self._launch(self._executable, self._stream))


def capture_loop(
    stream: Any,  # noqa: ANN401
    begin: Callable[[int], Run],
    repeat: Callable[[int], Run],
) -> CudaLoop:
    """Make a loop over a step.

    Args:
        stream: to capture and launch on.
        begin: given the handle of the loop's condition, makes the call that queues what comes
            before the loop; its last launch sets the condition to 1 if there is to be a step.
        repeat: the same for a step, whose last launch sets the condition to 0 to end the loop; the
            others have run before, and nothing in it copies from pageable memory.

    Raises:
        CaptureError: the driver or cuda-bindings lacks what this needs, or refuses it.
    """
    from cuda.bindings import driver

    try:
        graph = _checked("cuGraphCreate", driver.cuGraphCreate(0))
        try:
            context = _checked("cuCtxGetCurrent", driver.cuCtxGetCurrent())
            condition = _checked(
                "cuGraphConditionalHandleCreate",
                driver.cuGraphConditionalHandleCreate(
                    graph, context, _NO_STEP, driver.CU_GRAPH_COND_ASSIGN_DEFAULT
                ),
            )
            _capture_into(driver, stream, graph, begin(int(condition)))
            body = _add_while(driver, graph, condition, context)
            _capture_into(driver, stream, body, repeat(int(condition)))
        except BaseException:
            driver.cuGraphDestroy(graph)
            raise
        return CudaLoop(graph, stream)
    except (AttributeError, TypeError, RuntimeError) as error:
        where = " ".join(getattr(error, "__notes__", ()))
        raise CaptureError(f"a loop cannot be captured: {reason(error)} {where}".strip()) from error


def _add_while(driver: Any, graph: Any, condition: Any, context: Any) -> Any:  # noqa: ANN401
    """Add a WHILE node behind all nodes of a graph; the graph of its body, which is empty."""
    _, count = _checked("cuGraphGetNodes", driver.cuGraphGetNodes(graph, 0))
    before, count = _checked("cuGraphGetNodes", driver.cuGraphGetNodes(graph, count))
    params = driver.CUgraphNodeParams()
    params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = condition
    params.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
    params.conditional.size = 1
    params.conditional.ctx = context
    # Before CUDA 13 the form that takes types of dependencies had a name of its own.
    add_node = getattr(driver, "cuGraphAddNode_v2", driver.cuGraphAddNode)
    _checked("cuGraphAddNode", add_node(graph, before[:count], None, count, params))
    return params.conditional.phGraph_out[0]


def _capture_into(driver: Any, stream: Any, body: Any, run: Run) -> None:  # noqa: ANN401
    """Capture what ``run`` queues into an empty graph."""
    pointer = driver.CUstream(int(stream.ptr))
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    with refuse_allocations(stream):
        _checked(
            "cuStreamBeginCaptureToGraph",
            driver.cuStreamBeginCaptureToGraph(pointer, body, None, None, 0, mode),
        )
        try:
            run()
        finally:
            ended = driver.cuStreamEndCapture(pointer)
    _checked("cuStreamEndCapture", ended)


def _checked(name: str, result: Any) -> Any:  # noqa: ANN401
    """The value of a driver call, or its values.

    Raises:
        RuntimeError: it failed.
    """
    error, *values = result
    if error:
        raise RuntimeError(f"{name} fails with {error.name}")
    return values[0] if len(values) == 1 else values
