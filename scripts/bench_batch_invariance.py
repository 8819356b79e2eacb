"""What batch invariance costs: matrix products of a Llama 8B with and without it, on this GPU.

    python scripts/bench_batch_invariance.py
    python scripts/bench_batch_invariance.py --rows 1 --rows 64

Times bfloat16 products as a captured chain over weights that do not fit into the L2 cache, on
random numbers; the median of several replays. The default mode is our own kernel up to 4 rows and
cuBLASLt, with the algorithms of the tuning table, above.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cugraphs.cuda_device import CudaDevice
from cugraphs.kernel import DTYPES
from cugraphs.kernels import LINEAR
from cugraphs.launch import prepare

# out_features and in_features of Llama 3.1 8B.
SHAPES = {
    "qkv_proj": (6144, 4096),
    "o_proj": (4096, 4096),
    "gate_up_proj": (28672, 4096),
    "down_proj": (4096, 14336),
    "lm_head": (128256, 4096),
}
ROWS = (1, 4, 16, 64, 256, 2048, 8192)
COLD_BYTES = 256 << 20  # several times any L2 cache
CHAIN_S = 2e-3  # about as long as a chain takes on a fast card
MEMORY_BYTES_PER_S, FLOPS_PER_S = 4.4e12, 4e14  # for that guess only
REPLAYS = 7


def main() -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", action="append", type=int, help="only so many; repeatable")
    rows = parser.parse_args().rows or ROWS
    device = CudaDevice()
    print(f"{device.gpu_name}: us of a bfloat16 product, default / batch_invariant = price\n")
    print(f"| out x in | {' | '.join(f'{count} rows' for count in rows)} |")
    print("|---" * (1 + len(rows)) + "|")
    for name, (out_features, in_features) in SHAPES.items():
        cells = []
        for count in rows:
            default, invariant = (
                1e6 * product_s(device, count, out_features, in_features, batch_invariant=flag)
                for flag in (False, True)
            )
            cells.append(f"{default:.1f} / {invariant:.1f} = {invariant / default:.2f}")
        print(f"| {name} {out_features} x {in_features} | {' | '.join(cells)} |", flush=True)


def product_s(
    device: CudaDevice, rows: int, out_features: int, in_features: int, *, batch_invariant: bool
) -> float:
    """Seconds of one product."""
    weight_bytes = 2 * out_features * in_features
    guess_s = max(
        weight_bytes / MEMORY_BYTES_PER_S, rows * out_features * in_features * 2 / FLOPS_PER_S
    )
    num_weights = max(1, -(-COLD_BYTES // weight_bytes))
    x = random_array(device, (rows, in_features))
    out = random_array(device, (rows, out_features))
    attrs = {"batch_invariant": batch_invariant}
    axes = {"tokens": rows, "in_features": in_features, "out_features": out_features}
    workspace = device.allocate_bytes(LINEAR.workspace_bytes(axes, "bfloat16", attrs))
    weights = [random_array(device, (out_features, in_features)) for _ in range(num_weights)]
    products = [
        prepare(
            LINEAR,
            [out, x, weight],
            attrs,
            stream=int(device.stream.ptr),
            cublaslt=device.cublaslt,
            workspace=workspace,
        )
        for weight in weights
    ]
    count = max(3, round(CHAIN_S / guess_s))
    chain = [launch for i in range(count) for launch in products[i % num_weights]]
    return chain_s(device, chain) / count


def random_array(device: CudaDevice, shape: tuple[int, int]) -> Any:  # noqa: ANN401 - CuPy's
    """Normal numbers, 16 million different ones."""
    array = device.allocate_bytes(2 * shape[0] * shape[1])
    numbers = some_numbers(device)
    for first in range(0, array.size, numbers.size):
        part = array[first : first + numbers.size]
        part[...] = numbers[: part.size]
    return array.view(DTYPES["bfloat16"]).reshape(shape)


_NUMBERS: list[Any] = []


def some_numbers(device: CudaDevice) -> Any:  # noqa: ANN401
    """The bytes of the same normal numbers each time. Zeros would run faster."""
    if not _NUMBERS:
        values = np.random.default_rng(0).standard_normal(1 << 24, np.float32)
        numbers = device.allocate_bytes(2 * values.size)
        device.write(numbers, values.astype(DTYPES["bfloat16"]).view(np.uint8))
        device.stream.synchronize()
        _NUMBERS.append(numbers)
    return _NUMBERS[0]


def chain_s(device: CudaDevice, chain: Sequence[Callable[[], None]]) -> float:
    """Seconds of a captured chain of launches: the median of several replays."""
    import cupy

    cupy.cuda.Device().synchronize()
    stream = device.stream
    for launch in chain[:4]:  # loads modules, warms up
        launch()
    stream.synchronize()
    with stream:
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
        try:
            for launch in chain:
                launch()
        finally:
            graph = stream.end_capture()
    graph.upload(stream)
    times_ms = []
    for _ in range(REPLAYS + 1):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        graph.launch(stream)
        end.record(stream)
        end.synchronize()
        times_ms.append(float(cupy.cuda.get_elapsed_time(start, end)))
    return statistics.median(times_ms[1:]) / 1e3


if __name__ == "__main__":
    main()
