"""How long launches take on the GPU where they find their operands in no cache.

A chain of runs, each over memory of its own, is captured as one CUDA graph, so that no launch
waits for the host. Before each replay the L2 cache is filled with other data. Knows what is
prepared to be launched, not what it computes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from cugraphs.card_kernels import READ_BANDWIDTH
from cugraphs.cuda_device import CudaDevice
from cugraphs.launch import Prepared, prepare, queue

Run = Sequence[Prepared]  # the launches of one call of a kernel, in order

_CHAIN_S = 2e-3  # of a replay, where the number of runs allows it
_MIN_RUNS, _MAX_RUNS = 20, 200
_MAX_CHAIN_S = 50e-3  # of slow runs, fewer are enough
_REPLAYS = 9
_CACHES_BETWEEN = 8  # L2 caches full of other data that are touched before memory is touched again


class LaunchTimer:
    """Times runs on one device."""

    def __init__(self, device: CudaDevice) -> None:
        """Allocate what the cache is flushed with.

        Raises:
            MemoryError: four times the L2 cache is not free.
        """
        self.device = device
        self._l2_bytes = device.l2_cache_bytes
        blocks = 8 * device.multiprocessors
        self._other = device.zero_bytes(4 * self._l2_bytes // 16 * 16).view(np.float32)
        self._sums = device.allocate_bytes(4 * blocks).view(np.float32)
        (self._flush,) = prepare(
            READ_BANDWIDTH,
            [self._sums, self._other],
            {"blocks": blocks},
            stream=int(device.stream.ptr),
            cublaslt=device.cublaslt,
            workspace=None,
        )

    def chain_runs(self, run: Run) -> int:
        """Runs that a chain should have, by the time of this one, which is run twice."""
        queue(run)  # whatever happens at a first launch
        seconds = max(self._elapsed(lambda: queue(run)), 1e-7)
        wanted = min(max(int(_CHAIN_S / seconds), _MIN_RUNS), _MAX_RUNS)
        return min(wanted, max(int(_MAX_CHAIN_S / seconds), 2))

    def cold_copies(self, touched_bytes: int, chain_runs: int) -> int:
        """Copies of a run's operands that keep them out of the L2 cache until their next turn."""
        return min(chain_runs, _CACHES_BETWEEN * self._l2_bytes // max(touched_bytes, 1) + 2)

    def seconds(self, runs: Sequence[Run], chain_runs: int, *, early: bool = False) -> float:
        """The time of one run: the median of replays of a chain that goes through ``runs`` in turn.

        Args:
            runs: the same work on different memory; each has been prepared, none need have run.
            chain_runs: in one replay.
            early: a run's first launch may begin before the run before it ends, where it is
                declared so and follows one of ours, as in a step; otherwise it begins after that.

        Raises:
            CaptureError: a launch fails or cannot be captured.
        """

        def chain() -> None:
            after_ours = False
            for index in range(chain_runs):
                after_ours = queue(runs[index % len(runs)], early and after_ours)

        graph = self.device.capture(chain)
        samples = []
        for _ in range(_REPLAYS):
            self._flush()  # the GPU is busy with it while the host queues the rest
            samples.append(self._elapsed(graph.launch))
        return statistics.median(samples) / chain_runs

    def _elapsed(self, work: Callable[[], object]) -> float:
        """Seconds between two events around what ``work`` queues."""
        import cupy

        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(self.device.stream)
        work()
        end.record(self.device.stream)
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end)) * 1e-3
