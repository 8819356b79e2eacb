"""How fast a kernel's cases run on the GPU, against what the card can do, measured in the same run.

Knows declarations and the GPU; not how results are shown. CuPy is imported only when called.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.cublaslt import MatrixShape
from cugraphs.cuda_device import CudaDevice
from cugraphs.kernel import (
    DTYPES,
    Access,
    Array,
    ArrayType,
    Axes,
    Case,
    Cost,
    Kernel,
    Launch,
    MatrixProduct,
    Operand,
)
from cugraphs.launch import prepare

READ_BYTES = 1 << 30  # several times any card's L2 cache
MATRIX_SIZE = 8192
_THREADS = 256
_LAUNCHES = 20  # in a graph, so that a replay's own start does not count
_REPLAYS = 7


@dataclass(frozen=True)
class Ceilings:
    """What the card can do: bytes read and bf16 flops, a second."""

    read_bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True)
class Speed:
    """One case: its time, and the work that the kernel's cost declares for it."""

    kernel: str
    case: str
    dtype: str
    seconds: float
    cost: Cost

    def rate(self, ceilings: Ceilings) -> tuple[str, float]:
        """The rate whose share of its ceiling is larger, in words, and that share."""
        bytes_per_s = self.cost.bytes_accessed / self.seconds
        flops_per_s = self.cost.flops / self.seconds
        memory = bytes_per_s / ceilings.read_bytes_per_s
        compute = flops_per_s / ceilings.flops_per_s
        if compute > memory:
            return f"{three_digits(flops_per_s / 1e12)} TFLOP/s", compute
        return f"{three_digits(bytes_per_s / 1e9)} GB/s", memory


def three_digits(value: float) -> str:
    """Three significant digits, all digits of the whole part from 1,000: ``0.123``, ``4,012``."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def measure_ceilings(device: CudaDevice) -> Ceilings:
    """Read 1 GiB with a kernel of our own, and multiply two bf16 matrices of 8192 x 8192."""
    import cupy

    elements = READ_BYTES // 4
    blocks = 8 * int(device.multiprocessors)
    x = device.allocate_bytes(READ_BYTES).view(np.float32)
    x[...] = cupy.arange(elements, dtype=np.float32)
    out = device.allocate_bytes(blocks * 4).view(np.float32)
    cupy.cuda.Device().synchronize()
    stream = int(device.stream.ptr)
    read = prepare(
        READ_BANDWIDTH,
        [out, x],
        {"blocks": blocks},
        stream=stream,
        cublaslt=device.cublaslt,
        workspace=None,
    )
    read_s = _seconds(device, read, launches=4)

    size = MATRIX_SIZE
    shape = MatrixShape(size, size, size, "bfloat16")
    # Random, since zeros would run faster; NumPy's, since CuPy's need cuRAND, which no extra
    # installs. The upper half of a float32 is a bfloat16.
    rng = np.random.default_rng(0)
    normal = [rng.standard_normal(size * size, dtype=np.float32) for _ in range(2)]
    a, b = (cupy.asarray(np.ascontiguousarray(values.view(np.uint16)[1::2])) for values in normal)
    product = cupy.empty(size * size, np.uint16)
    cupy.cuda.Device().synchronize()
    plan = device.cublaslt.plan(shape, stream=stream)
    workspace = device.allocate_bytes(MatrixProduct.workspace_bytes)

    def multiply() -> None:
        out, x, weight = (int(array.data.ptr) for array in (product, a, b))
        device.cublaslt.launch(plan, out, x, weight, int(workspace.data.ptr), stream)

    matrix_s = _seconds(device, [multiply], launches=4)
    return Ceilings(READ_BYTES / read_s, 2 * size**3 / matrix_s)


def time_case(
    device: CudaDevice, kernel: Kernel, case: Case, dtype: str, arrays: Sequence[Array]
) -> Speed | None:
    """Time a case as a captured chain of launches on the same operands; None if it launches none.

    Operands that fit are read from cache: a small case measures launches and caches, not memory.
    """
    names = {value: name for name, value in DTYPES.items()}
    types = [ArrayType(array.shape, names[array.dtype]) for array in arrays]
    produced, axes = kernel.infer(types, case.attrs)
    outputs = [np.zeros(type_.shape, DTYPES[type_.dtype]) for type_ in produced]
    operands = []
    for host in [*outputs, *arrays]:
        raw = device.allocate_bytes(host.nbytes)
        operands.append(raw.view(host.dtype).reshape(host.shape))
        if host.size:
            device.write(operands[-1], host)
    device.stream.synchronize()
    stream = int(device.stream.ptr)
    workspace = device.allocate_bytes(kernel.workspace_bytes(axes, dtype, case.attrs))
    launches = prepare(
        kernel,
        operands,
        case.attrs,
        stream=stream,
        cublaslt=device.cublaslt,
        workspace=workspace,
    )
    if not launches:
        return None
    seconds = _seconds(device, launches, launches=_LAUNCHES)
    return Speed(kernel.name, case.name, dtype, seconds, kernel.cost(axes, dtype, **case.attrs))


def _seconds(device: CudaDevice, work: Sequence[Callable[[], None]], *, launches: int) -> float:
    """The median time of one pass over ``work``, from replays of a graph of several passes."""
    import cupy

    stream = device.stream
    for launch in work:  # loads modules, warms up
        launch()
    stream.synchronize()
    with stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        try:
            for _ in range(launches):
                for launch in work:
                    launch()
        finally:
            graph = stream.end_capture()
    graph.upload(stream)
    times_ms = []
    for _ in range(_REPLAYS):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        graph.launch(stream)
        end.record(stream)
        end.synchronize()
        times_ms.append(float(cupy.cuda.get_elapsed_time(start, end)))
    return statistics.median(times_ms) / 1e3 / launches


# ------------------------------------------------------------------- the kernel that reads memory


def _reference(x: Array, *, blocks: int) -> tuple[Array]:
    """Each block's sum; block b reads the vectors of 256 threads at b, b + blocks, and so on."""
    width = blocks * _THREADS * 4
    padded = np.zeros(-(-len(x) // width) * width, np.float64)
    padded[: len(x)] = x
    sums = padded.reshape(-1, blocks, _THREADS * 4).sum(axis=(0, 2))
    return (sums.astype(np.float32),)


def _launches(axes: Axes, dtype: str, *, blocks: int) -> tuple[Launch, ...]:
    return (
        Launch(
            function=f"read_bandwidth<{_THREADS}>",
            grid=(blocks, 1, 1),
            block=_THREADS,
            scalars=(np.int64(axes["elements"] // 4),),
        ),
    )


def _cost(axes: Axes, dtype: str, *, blocks: int) -> Cost:
    return Cost(4 * axes["elements"], axes["elements"])


def _ones(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """Small whole numbers, whose float32 sums are exact in any order."""
    return (rng.integers(-8, 8, 40_000).astype(np.float32),)


READ_BANDWIDTH = Kernel(
    name="read_bandwidth",
    operands=(
        Operand("out", ("blocks",), "float32", Access.WRITE),
        Operand("x", ("elements",), "float32"),
    ),
    reference=_reference,
    cost=_cost,
    cases=(Case("several_rounds", _ones, {"blocks": 3}),),
    source=Path(__file__).with_name("read_bandwidth.cu"),
    launches=_launches,
)


def speeds_as_json(speeds: Sequence[Speed], ceilings: Ceilings) -> list[Mapping[str, Any]]:
    """Plain numbers for a script."""
    return [
        {
            "kernel": speed.kernel,
            "case": speed.case,
            "dtype": speed.dtype,
            "us": speed.seconds * 1e6,
            "bytes": speed.cost.bytes_accessed,
            "flops": speed.cost.flops,
            "share": speed.rate(ceilings)[1],
        }
        for speed in speeds
    ]
