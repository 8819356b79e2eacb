"""How long replays of a graph take: on the GPU by events, and on the host until launch returns."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

from cugraphs.cuda_device import CudaDevice
from cugraphs.device import Replay

LAUNCHES = 30  # that :func:`launch_us` times


def replay_ms(device: CudaDevice, graph: Replay, count: int) -> list[float]:
    """The GPU's time for each of ``count`` replays, queued one after the other without a wait."""
    import cupy

    events: list[Any] = [cupy.cuda.Event() for _ in range(count + 1)]
    events[0].record(device.stream)
    for event in events[1:]:
        graph.launch()
        event.record(device.stream)
    device.stream.synchronize()
    return [
        float(cupy.cuda.get_elapsed_time(start, end)) for start, end in itertools.pairwise(events)
    ]


def launch_us(device: CudaDevice, graph: Replay) -> float:
    """The host's median time for one launch, while the GPU has nothing else to do."""
    samples = []
    for _ in range(LAUNCHES):
        device.stream.synchronize()
        start = time.perf_counter()
        graph.launch()
        samples.append(time.perf_counter() - start)
    device.stream.synchronize()
    return statistics.median(samples) * 1e6
