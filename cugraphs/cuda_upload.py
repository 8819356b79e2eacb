"""Much data into a GPU's memory: lanes over pinned host buffers, which the GPU copies on its own.

Pinned memory is taken from the driver directly and given back with each lane: CuPy's pool would
keep it. Where the machine gives less than is asked for, buffers are smaller; where it gives none,
copies go through pageable memory, several times slower.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from functools import cache
from typing import Any

import numpy as np

from cugraphs.device import UploadLane
from cugraphs.kernel import Array

BUFFERS = 2  # of a lane: one is filled while the other is copied
LEAST_BYTES = 256 << 10  # of a buffer, before pageable memory is taken

_log = logging.getLogger("cugraphs")


class PinnedLanes:
    """Makes the lanes to one GPU. Each thread makes its own, so the first reads at once."""

    def __init__(self, count: int, chunk_bytes: int, device_id: int) -> None:
        """Take no memory yet.

        Args:
            count: of lanes that will be made.
            chunk_bytes: of each of a lane's ``BUFFERS``.
            device_id: of the GPU.
        """
        self._count = count
        self._wanted_bytes = self._chunk_bytes = chunk_bytes
        self._device_id = device_id
        self._lock = threading.Lock()
        self._stream: Any = None

    def __call__(self) -> UploadLane:
        """A lane, for the thread that calls."""
        import cupy

        cupy.cuda.Device(self._device_id).use()  # a thread begins with GPU 0
        with self._lock:
            self._stream = self._stream or cupy.cuda.Stream(non_blocking=True)
        return PinnedLane(self._host_memory(cupy), self._stream)

    def _host_memory(self, cupy: Any) -> list[Array]:  # noqa: ANN401
        """One lane's buffers, pinned if there is such memory; once they are smaller, all are."""
        while self._chunk_bytes >= LEAST_BYTES:
            nbytes = self._chunk_bytes
            try:
                memory = cupy.cuda.PinnedMemory(BUFFERS * nbytes)
            except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.memory.OutOfMemoryError):
                self._take_less(nbytes)
                continue
            pointer = cupy.cuda.PinnedMemoryPointer(memory, 0)
            buffers = np.frombuffer(pointer, np.uint8, BUFFERS * nbytes)
            return list(buffers.reshape(BUFFERS, -1))
        return [np.empty(LEAST_BYTES, np.uint8) for _ in range(BUFFERS)]

    def _take_less(self, refused_bytes: int) -> None:
        with self._lock:
            if self._chunk_bytes == self._wanted_bytes:
                _log.warning(
                    "%d MiB of pinned memory cannot be had (is `ulimit -l` low?): weights are "
                    "loaded through smaller buffers, or through pageable memory, more slowly",
                    self._count * BUFFERS * self._wanted_bytes >> 20,
                )
            self._chunk_bytes = min(self._chunk_bytes, refused_bytes // 2)


class PinnedLane:
    """Buffers that are filled in turn by one thread; an event says when each has been copied.

    What queues a copy keeps Python's lock: to give it away and take it again would cost more than
    the call, a dozen threads at once.
    """

    def __init__(self, buffers: list[Array], stream: Any) -> None:  # noqa: ANN401 - CuPy's
        """Take the buffers, uint8 of one size, and the stream of the copies."""
        import cupy

        self.chunk_bytes = int(buffers[0].nbytes)
        self._buffers = buffers
        self._pointers = [int(buffer.ctypes.data) for buffer in buffers]
        self._stream = stream  # CuPy's; it lives as long as a lane
        self._stream_pointer = int(stream.ptr)
        # A thread that waits sleeps: there are more of them than copies at once.
        self._events: Any = [cupy.cuda.Event(block=True, disable_timing=True) for _ in buffers]
        self._event_pointers = [int(event.ptr) for event in self._events]
        driver = _locking_driver()
        self._query, self._copy = driver.cuEventQuery, driver.cuMemcpyHtoDAsync_v2
        self._record = driver.cuEventRecord
        self._current = 0
        self._address = self._nbytes = 0

    def fill(self, address: int, nbytes: int) -> Array:
        """The first bytes of the next buffer, once that has been copied."""
        current = self._current
        if self._query(self._event_pointers[current]):
            self._events[current].synchronize()
        self._address, self._nbytes = address, nbytes
        return self._buffers[current][:nbytes]

    def send(self) -> None:
        """Queue the copy, and turn to the next buffer.

        Raises:
            RuntimeError: the driver refuses it.
        """
        current, stream = self._current, self._stream_pointer
        error = self._copy(self._address, self._pointers[current], self._nbytes, stream)
        error = error or self._record(self._event_pointers[current], stream)
        if error:
            raise RuntimeError(
                f"cuda: the copy of {self._nbytes:,} bytes to the GPU fails with error {error} of "
                "the driver"
            )
        self._current = (current + 1) % BUFFERS

    def finish(self) -> None:
        """Wait for this lane's copies."""
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
