"""How fast weights are loaded, beside the two things that bound it, measured in the same run.

The bounds are a plain copy from pinned memory, and as many threads reading the files from the page
cache into host memory without copying anything on. The model arrives as functions.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.cuda_device import CudaDevice
from cugraphs.weight_loading import WeightLoading

_PINNED_BYTES = 256 << 20
_COPIED_BYTES = 8 << 30
_MOST_READ_BYTES = 16 << 30

# Begins to load, and returns what must live as long as the weights, and the loading.
Begin = Callable[[], tuple[object, WeightLoading]]


@dataclass(frozen=True)
class LoadTimes:
    """What was measured.

    Args:
        checkpoint_bytes: that are loaded.
        pinned_copy_bytes_per_s: of one copy after the other from one pinned buffer.
        page_cache_bytes_per_s: of the threads that read, when nothing is copied to the device.
        load_s: of each loading, device memory and pinned buffers made in it.
        busy_load_s: of one beside a main thread that computes in Python all the while.
    """

    checkpoint_bytes: int
    pinned_copy_bytes_per_s: float
    page_cache_bytes_per_s: float
    load_s: Sequence[float]
    busy_load_s: float

    @property
    def load_bytes_per_s(self) -> float:
        """Of the median loading."""
        return self.checkpoint_bytes / statistics.median(self.load_s)

    @property
    def busy_bytes_per_s(self) -> float:
        """Of the loading beside a busy main thread."""
        return self.checkpoint_bytes / self.busy_load_s

    @property
    def share(self) -> float:
        """Of the pinned copy's rate."""
        return self.load_bytes_per_s / self.pinned_copy_bytes_per_s


def measure_loading(
    device: CudaDevice,
    files: Sequence[Path],
    checkpoint_bytes: int,
    begin: Begin,
    *,
    repeats: int,
    readers: int,
    chunk_bytes: int,
    progress: Callable[[str], None] = lambda text: None,
) -> LoadTimes:
    """Read the files once, so that they are in the page cache; then measure.

    Args:
        device: takes the weights.
        files: of the checkpoint.
        checkpoint_bytes: of its tensors.
        begin: begins to load it.
        repeats: loadings.
        readers: threads of a loading.
        chunk_bytes: of their reads.
        progress: told what comes next.
    """
    progress("reading the files once")
    read_rate(files, readers, chunk_bytes)
    progress("pinned copy")
    copy_rate = pinned_copy_rate(device)
    progress("page cache")
    page_cache_rate = read_rate(files, readers, chunk_bytes)
    seconds = []
    for index in range(repeats):
        progress(f"loading, {index + 1} of {repeats}")
        seconds.append(_load_s(begin, busy=False))
    progress("loading beside a busy thread")
    busy_s = _load_s(begin, busy=True)
    return LoadTimes(checkpoint_bytes, copy_rate, page_cache_rate, seconds, busy_s)


def pinned_copy_rate(device: CudaDevice) -> float:
    """Bytes a second of copies from pinned memory into the device's."""
    import cupy

    memory = cupy.cuda.PinnedMemory(_PINNED_BYTES)
    host = np.frombuffer(cupy.cuda.PinnedMemoryPointer(memory, 0), np.uint8, _PINNED_BYTES)
    host[:] = 1  # a page that was never written is copied from one page of zeros
    target = device.allocate_bytes(_PINNED_BYTES)
    best = 0.0
    for _ in range(2):
        device.stream.synchronize()
        start = time.perf_counter()
        for _ in range(_COPIED_BYTES // _PINNED_BYTES):
            target.set(host, stream=device.stream)
        device.stream.synchronize()
        best = max(best, _COPIED_BYTES / (time.perf_counter() - start))
    return best


def read_rate(files: Sequence[Path], readers: int, chunk_bytes: int) -> float:
    """Bytes a second that so many threads read, each into two buffers in turn."""
    lock, start = threading.Lock(), threading.Barrier(readers + 1)
    counts = [0] * readers
    with ExitStack() as stack:
        opened = [stack.enter_context(open(file, "rb", buffering=0)).fileno() for file in files]
        chunks = iter(
            [
                (descriptor, offset)
                for descriptor in opened
                for offset in range(0, os.fstat(descriptor).st_size, chunk_bytes)
            ][: _MOST_READ_BYTES // chunk_bytes]
        )

        def read(index: int) -> None:
            buffers = [np.zeros(chunk_bytes, np.uint8) for _ in range(2)]
            start.wait()
            while True:
                with lock:
                    chunk = next(chunks, None)
                if chunk is None:
                    return
                counts[index] += os.preadv(chunk[0], [buffers[0].data], chunk[1])
                buffers.reverse()

        threads = [threading.Thread(target=read, args=[index]) for index in range(readers)]
        for thread in threads:
            thread.start()
        start.wait()
        begin_s = time.perf_counter()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - begin_s)


def _load_s(begin: Begin, *, busy: bool) -> float:
    """Seconds of one loading; what it made is gone afterwards."""
    kept: Any = None
    start = time.perf_counter()
    kept, loading = begin()
    with loading:
        while busy and not loading.ended:
            pass
    seconds = time.perf_counter() - start
    del kept
    return seconds
