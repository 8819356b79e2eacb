"""Much data into a GPU's memory: lanes over pinned host buffers, which the GPU copies on its own.

Pinned memory is taken from the driver directly and given back with the last lane: CuPy's pool would
keep it. Where the machine gives less than is asked for, buffers are smaller; where it gives none,
copies go through pageable memory, several times slower.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from typing import Any

import numpy as np

from cugraphs.device import UploadLane
from cugraphs.kernel import Array

BUFFERS = 2  # of a lane: one is filled while the other is copied
LEAST_BYTES = 256 << 10  # of a buffer, before pageable memory is taken

_log = logging.getLogger("cugraphs")


def pinned_lanes(count: int, chunk_bytes: int, device_id: int) -> list[UploadLane]:
    """Lanes to a GPU, with ``BUFFERS`` pinned buffers of ``chunk_bytes`` each; from any thread."""
    import cupy

    cupy.cuda.Device(device_id).use()  # a thread begins with GPU 0
    stream: Any = cupy.cuda.Stream(non_blocking=True)
    memory, got_bytes = _host_memory(cupy, count * BUFFERS, chunk_bytes)
    buffers = [memory[i * got_bytes : (i + 1) * got_bytes] for i in range(count * BUFFERS)]
    return [
        PinnedLane(buffers[i * BUFFERS : (i + 1) * BUFFERS], stream, device_id)
        for i in range(count)
    ]


class PinnedLane:
    """Buffers that are filled in turn by one thread; an event says when each has been copied.

    What queues a copy keeps Python's lock: to give it away and take it again would cost more than
    the call, a dozen threads at once.
    """

    def __init__(self, buffers: list[Array], stream: Any, device_id: int) -> None:  # noqa: ANN401
        """Take the buffers, uint8 of one size, and the stream of the copies."""
        import cupy

        self.chunk_bytes = int(buffers[0].nbytes)
        self._buffers = buffers
        self._stream = stream  # CuPy's; it lives as long as a lane
        self._stream_pointer = int(stream.ptr)
        self._device: Any = cupy.cuda.Device(device_id)
        # A thread that waits sleeps: there are more of them than copies at once.
        self._events: Any = [cupy.cuda.Event(block=True, disable_timing=True) for _ in buffers]
        self._driver = _locking_driver()
        self._current = 0
        self._target: Any = None

    def begin(self) -> None:
        """Take the lane's GPU."""
        self._device.use()

    def fill(self, target: Any) -> Array:  # noqa: ANN401
        """The next buffer's first bytes, once they have been copied."""
        event = self._events[self._current]
        if self._driver.cuEventQuery(event.ptr):
            event.synchronize()
        self._target = target
        return self._buffers[self._current][: target.nbytes].view(target.dtype)

    def send(self) -> None:
        """Queue the copy, and turn to the next buffer."""
        target, self._target = self._target, None
        source = self._buffers[self._current].ctypes.data
        event, stream = self._events[self._current].ptr, self._stream_pointer
        error = self._driver.cuMemcpyHtoDAsync_v2(target.data.ptr, source, target.nbytes, stream)
        error = error or self._driver.cuEventRecord(event, stream)
        if error:
            raise RuntimeError(
                f"cuda: the copy of {target.nbytes:,} bytes to the GPU fails with error {error} of "
                "the driver"
            )
        self._current = (self._current + 1) % len(self._buffers)

    def finish(self) -> None:
        """Wait for this lane's copies."""
        self._target = None
        for event in self._events:
            event.synchronize()


@cache
def _locking_driver() -> ctypes.PyDLL:
    """The driver's library, called without letting go of Python's lock."""
    driver = ctypes.PyDLL("libcuda.so.1")
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    driver.cuMemcpyHtoDAsync_v2.argtypes = (ctypes.c_uint64, pointer, size, pointer)
    driver.cuEventRecord.argtypes = (pointer, pointer)
    driver.cuEventQuery.argtypes = (pointer,)
    return driver


def _host_memory(cupy: Any, count: int, chunk_bytes: int) -> tuple[Array, int]:  # noqa: ANN401
    """Memory for ``count`` buffers, and the bytes of each; pinned if there is any such memory."""
    nbytes = chunk_bytes
    while nbytes >= LEAST_BYTES:
        try:
            memory = cupy.cuda.PinnedMemory(count * nbytes)
        except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.memory.OutOfMemoryError):
            nbytes //= 2
            continue
        if nbytes < chunk_bytes:
            _log.warning(
                "%d MiB of pinned memory cannot be had; weights are loaded through %d MiB",
                count * chunk_bytes >> 20,
                count * nbytes >> 20,
            )
        pointer = cupy.cuda.PinnedMemoryPointer(memory, 0)
        return np.frombuffer(pointer, np.uint8, count * nbytes), nbytes
    _log.warning(
        "no pinned memory can be had (is `ulimit -l` low?); weights are loaded through pageable "
        "memory, which is slower"
    )
    return np.empty(count * LEAST_BYTES, np.uint8), LEAST_BYTES
