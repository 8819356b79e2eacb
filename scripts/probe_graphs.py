"""Asks the GPU, driver and CuPy at hand what the design of captured steps relies on.

    python scripts/probe_graphs.py

Six questions, each answered by trying it: a cuBLASLt product on its own handle inside a
thread-local capture; programmatic launches inside the body of a conditional WHILE node; launches
there whose blocks wait for each other (cooperative ones); a captured graph as child node of that
body; a mapped pinned word that a captured kernel writes and the host
polls; driver memory that comes back when graphs are destroyed. docs/architecture.md records what
one machine said.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN002, ANN201, ANN202, ANN204, D102, D103, D107
# CuPy and cuda-bindings have no types here, and this script is nothing but calls into them.

from __future__ import annotations

import sys
import time
import traceback

import cupy
import numpy as np
from cuda.bindings import driver

from cugraphs.cublaslt import CublasLt, MatrixShape

SOURCE = r"""
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned value);

// Adds 1 to count; ends the loop at the limit, or when the host has raised stop.
extern "C" __global__ void loop_head(int* count, int limit, const volatile int* stop,
                                     unsigned long long handle) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  *count += 1;
  if (*count >= limit || *stop) cudaGraphSetConditional(handle, 0);
}
extern "C" __global__ void increment(int* value) {
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  *value += 1;
}
// One 64-bit word with system scope: tag in the upper half, token in the lower.
extern "C" __global__ void publish(unsigned long long* ring, const int* count) {
  const unsigned long long word = ((unsigned long long)*count << 32) | (unsigned)(*count * 7);
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(ring + *count % 64), "l"(word)
               : "memory");
}
// All blocks wait for each other, once in each iteration.
extern "C" __global__ void meet(int* arrived, const int* count) {
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const int expected = *count * gridDim.x;
  atomicAdd(arrived, 1);
  for (int looks = 0; *(volatile int*)arrived < expected; ++looks) {
    if (looks > 10000000) __trap();
  }
}
extern "C" __global__ void empty_step(int* value) { if (value == nullptr) __trap(); }
"""


def check(result):
    """The values of a cuda-bindings call, or its error."""
    error, *values = result
    if int(error):
        raise RuntimeError(str(error))
    return values[0] if len(values) == 1 else values


class Probe:
    """A stream and the kernels of the probe."""

    def __init__(self):
        self.stream = cupy.cuda.Stream(non_blocking=True)
        module = cupy.RawModule(code=SOURCE, options=("-std=c++17",))
        self.kernels = {
            name: module.get_function(name).kernel.ptr
            for name in ("loop_head", "increment", "publish", "meet", "empty_step")
        }

    def launch(self, name, *args, programmatic=False, stream=None, meeting_blocks=0):
        config, attributes = driver.CUlaunchConfig(), []
        config.gridDimX, config.gridDimY, config.gridDimZ = meeting_blocks or 1, 1, 1
        config.blockDimX = config.blockDimY = config.blockDimZ = 1
        config.hStream = driver.CUstream((stream or self.stream).ptr)
        if programmatic:
            attribute = driver.CUlaunchAttribute()
            ids = driver.CUlaunchAttributeID
            attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if meeting_blocks:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            attributes.append(attribute)
        if attributes:
            config.attrs, config.numAttrs = attributes, len(attributes)
        buffers = [np.array([arg]) for arg in args]
        pointers = np.array([b.ctypes.data for b in buffers], np.uint64)
        function = driver.CUfunction(self.kernels[name])
        check(driver.cuLaunchKernelEx(config, function, pointers.ctypes.data, 0))

    def while_graph(self, record, *, limit, count, stop):
        """An executable graph: a WHILE node whose body runs loop_head and what ``record`` adds."""
        graph = check(driver.cuGraphCreate(0))
        context = check(driver.cuCtxGetCurrent())
        assign = 1  # CU_GRAPH_COND_ASSIGN_DEFAULT
        handle = check(driver.cuGraphConditionalHandleCreate(graph, context, 1, assign))
        params = driver.CUgraphNodeParams()
        params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        params.conditional.handle = handle
        params.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
        params.conditional.size = 1
        params.conditional.ctx = context
        check(driver.cuGraphAddNode(graph, None, None, 0, params))
        body = params.conditional.phGraph_out[0]
        stream = driver.CUstream(self.stream.ptr)
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(driver.cuStreamBeginCaptureToGraph(stream, body, None, None, 0, mode))
        arguments = (np.uint64(count.data.ptr), np.int32(limit), np.uint64(stop))
        arguments += (np.uint64(int(handle)),)
        try:
            self.launch("loop_head", *arguments)
            record(body)
        finally:
            check(driver.cuStreamEndCapture(stream))
        executable = check(driver.cuGraphInstantiate(graph, 0))
        return graph, executable

    def run(self, executable):
        check(driver.cuGraphLaunch(executable, driver.CUstream(self.stream.ptr)))
        self.stream.synchronize()


def probe_cublaslt_capture(probe):
    workspace = cupy.empty(32 << 20, cupy.uint8)
    lt = CublasLt()
    results, rng = [], np.random.default_rng(0)
    for dtype, bits in (("float32", cupy.float32), ("float16", cupy.float16)):
        m, n, k = 8, 96, 64
        with probe.stream:
            # NumPy's random numbers: CuPy's need cuRAND, which no extra installs.
            x, w, bias = (
                cupy.asarray(rng.standard_normal(shape, np.float32).astype(bits))
                for shape in ((m, k), (n, k), n)
            )
            out = cupy.full((m, n), cupy.nan, bits)
        shape = MatrixShape(m, n, k, dtype, has_bias=True)
        plan = lt.plan(shape, bias.data.ptr, stream=probe.stream.ptr)
        probe.stream.synchronize()

        def refuse(size):
            raise RuntimeError(f"an allocation of {size} bytes in a capture")

        local = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        with probe.stream, cupy.cuda.using_allocator(refuse):
            probe.stream.begin_capture(int(local))
            lt.launch(
                plan, out.data.ptr, x.data.ptr, w.data.ptr, workspace.data.ptr, probe.stream.ptr
            )
            graph = probe.stream.end_capture()
        graph.launch(probe.stream)
        probe.stream.synchronize()
        expected = x.get().astype(np.float64) @ w.get().astype(np.float64).T + bias.get()
        error = float(np.abs(out.get() - expected).max())
        results.append(f"{dtype} max error {error:.2e}")
        if not error < (1e-4 if dtype == "float32" else 0.05):
            raise RuntimeError(results[-1])
    return f"cuBLASLt {lt.version}: captured thread-local and replayed; " + ", ".join(results)


def probe_programmatic_in_body(probe):
    count, value = cupy.zeros(1, cupy.int32), cupy.zeros(1, cupy.int32)
    stop = cupy.zeros(1, cupy.int32)

    def record(body):
        for _ in range(3):
            probe.launch("increment", np.uint64(value.data.ptr), programmatic=True)

    _, executable = probe.while_graph(record, limit=1000, count=count, stop=stop.data.ptr)
    start = time.perf_counter()
    probe.run(executable)
    us = (time.perf_counter() - start) * 1e6 / 1000
    if int(count[0]) != 1000 or int(value[0]) != 3000:
        raise RuntimeError(f"count {int(count[0])}, value {int(value[0])}, expected 1000 and 3000")
    return f"1000 iterations of 1 + 3 programmatic kernels, {us:.2f} us each, all counted"


def probe_meeting_in_body(probe):
    blocks = int(cupy.cuda.Device().attributes["MultiProcessorCount"])
    answers = []
    for programmatic in (False, True):
        count, arrived = cupy.zeros(1, cupy.int32), cupy.zeros(1, cupy.int32)
        stop = cupy.zeros(1, cupy.int32)
        arguments = [np.uint64(array.data.ptr) for array in (arrived, count)]
        how = {"programmatic": programmatic, "meeting_blocks": blocks}

        def record(body, arguments=arguments, how=how):
            probe.launch("meet", *arguments, **how)

        _, executable = probe.while_graph(record, limit=1000, count=count, stop=stop.data.ptr)
        start = time.perf_counter()
        probe.run(executable)
        us = (time.perf_counter() - start) * 1e6 / 1000
        if int(count[0]) != 1000 or int(arrived[0]) != 1000 * blocks:
            raise RuntimeError(f"count {int(count[0])}, arrivals {int(arrived[0])}")
        answers.append(f"{us:.2f} us{' programmatic' * programmatic}")
    return f"1000 iterations of {blocks} blocks that meet, {', '.join(answers)} each"


def probe_child_graph(probe):
    count, value = cupy.zeros(1, cupy.int32), cupy.zeros(1, cupy.int32)
    stop = cupy.zeros(1, cupy.int32)
    with probe.stream:
        probe.stream.begin_capture()
        for _ in range(3):
            probe.launch("increment", np.uint64(value.data.ptr), programmatic=True)
        rung = probe.stream.end_capture()
    child = driver.CUgraph(rung.graph)

    def record(body):
        stream = driver.CUstream(probe.stream.ptr)
        info = check(driver.cuStreamGetCaptureInfo(stream))
        dependencies = info[3]
        node = check(driver.cuGraphAddChildGraphNode(body, dependencies, len(dependencies), child))
        replace = driver.CUstreamUpdateCaptureDependencies_flags
        flag = replace.CU_STREAM_SET_CAPTURE_DEPENDENCIES
        check(driver.cuStreamUpdateCaptureDependencies(stream, [node], None, 1, int(flag)))

    _, executable = probe.while_graph(record, limit=1000, count=count, stop=stop.data.ptr)
    start = time.perf_counter()
    probe.run(executable)
    us = (time.perf_counter() - start) * 1e6 / 1000
    if int(count[0]) != 1000 or int(value[0]) != 3000:
        raise RuntimeError(f"count {int(count[0])}, value {int(value[0])}, expected 1000 and 3000")
    return f"1000 iterations with a child graph of 3 kernels, {us:.2f} us each"


def probe_mapped_word(probe):
    flags = 0x02  # cudaHostAllocMapped
    ring_ptr = cupy.cuda.runtime.hostAlloc(64 * 8 + 4096, flags)
    import ctypes

    host = np.frombuffer((ctypes.c_uint8 * (64 * 8 + 4096)).from_address(ring_ptr), np.uint8)
    host[:] = 0
    ring, stop = host[:512].view(np.uint64), host[512:516].view(np.int32)
    device_ring = int(check(driver.cuMemHostGetDevicePointer(ring_ptr, 0)))
    device_stop = int(check(driver.cuMemHostGetDevicePointer(ring_ptr + 512, 0)))
    count = cupy.zeros(1, cupy.int32)

    def record(body):
        probe.launch("publish", np.uint64(device_ring), np.uint64(count.data.ptr))

    _, executable = probe.while_graph(record, limit=2**31 - 1, count=count, stop=device_stop)
    check(driver.cuGraphLaunch(executable, driver.CUstream(probe.stream.ptr)))
    seen, wrong, deadline = 0, 0, time.perf_counter() + 10
    while seen < 2000 and time.perf_counter() < deadline:
        words = ring.copy()
        tags, tokens = words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)
        wrong += int(np.count_nonzero(tokens != (tags * np.uint64(7)) & np.uint64(0xFFFFFFFF)))
        seen = max(seen, int(tags.max()))
    raised = time.perf_counter()
    at_raise = int((ring.copy() >> np.uint64(32)).max())
    stop[0] = 1
    probe.stream.synchronize()
    took_us = (time.perf_counter() - raised) * 1e6
    after = int(count[0]) - at_raise
    if wrong or seen < 2000:
        raise RuntimeError(f"{seen} seen, {wrong} torn words")
    return (
        f"host polled tags up to {seen} while the loop ran, 0 torn words; a raised stop flag ended "
        f"it within {took_us:.0f} us and {after} iterations"
    )


def probe_graph_memory(probe):
    value = cupy.zeros(1, cupy.int32)

    def free():
        return cupy.cuda.runtime.memGetInfo()[0]

    def make():
        with probe.stream:
            probe.stream.begin_capture()
            for _ in range(400):
                probe.launch("empty_step", np.uint64(value.data.ptr))
            graph = probe.stream.end_capture()
            graph.upload(probe.stream)
        return graph

    first = make()
    first.launch(probe.stream)
    probe.stream.synchronize()
    lines = []
    for _ in range(2):
        before = free()
        graphs = [make() for _ in range(51)]
        for graph in graphs:
            graph.launch(probe.stream)
        probe.stream.synchronize()
        held = before - free()
        graph = None
        del graphs
        import gc

        gc.collect()
        probe.stream.synchronize()
        kept = before - free()
        device = driver.CUdevice(cupy.cuda.Device().id)
        check(driver.cuDeviceGraphMemTrim(device))
        lines.append(
            f"51 graphs of 400 nodes held {held / 2**20:.0f} MiB, {kept / 2**20:.0f} MiB stay "
            f"after destroying them, {(before - free()) / 2**20:.0f} after a trim"
        )
    return "; again: ".join(lines)


def main() -> int:
    """Run every probe; exit code 1 if one failed."""
    device = cupy.cuda.Device()
    name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
    version = cupy.cuda.runtime.driverGetVersion()
    print(f"{name}, driver CUDA {version}, CuPy {cupy.__version__}")
    probe, failed = Probe(), 0
    for test in (
        probe_cublaslt_capture,
        probe_programmatic_in_body,
        probe_meeting_in_body,
        probe_child_graph,
        probe_mapped_word,
        probe_graph_memory,
    ):
        try:
            print(f"{test.__name__}: {test(probe)}", flush=True)
        except Exception as error:
            failed += 1
            print(f"{test.__name__}: FAILED {type(error).__name__}: {error}", flush=True)
            traceback.print_exc(limit=4)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
