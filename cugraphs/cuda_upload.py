"""Much data into a GPU's memory: lanes over pinned host buffers, which the GPU copies on its own.

Pinned memory is taken from the driver directly and given back with the last lane: CuPy's pool would
keep it. Where the machine gives less than is asked for, buffers are smaller; where it gives none,
copies go through pageable memory, several times slower.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from cugraphs.device import UploadLane
from cugraphs.kernel import Array

BUFFERS = 2  # of a lane: one is filled while the other is copied
LEAST_BYTES = 256 << 10  # of a buffer, before pageable memory is taken

_log = logging.getLogger("cugraphs")


def pinned_lanes(count: int, chunk_bytes: int) -> list[UploadLane]:
    """Lanes on the current device, with ``BUFFERS`` pinned buffers of ``chunk_bytes`` each."""
    import cupy

    stream: Any = cupy.cuda.Stream(non_blocking=True)
    memory, got_bytes = _host_memory(cupy, count * BUFFERS, chunk_bytes)
    buffers = [memory[i * got_bytes : (i + 1) * got_bytes] for i in range(count * BUFFERS)]
    return [PinnedLane(buffers[i * BUFFERS : (i + 1) * BUFFERS], stream) for i in range(count)]


class PinnedLane:
    """Buffers that are filled in turn by one thread; an event says when each has been copied."""

    def __init__(self, buffers: list[Array], stream: Any) -> None:  # noqa: ANN401 - CuPy's
        """Take the buffers, uint8 of one size, and the stream of the copies."""
        import cupy

        self.chunk_bytes = int(buffers[0].nbytes)
        self._buffers = buffers
        self._stream = stream
        self._runtime: Any = cupy.cuda.runtime
        self._device: Any = cupy.cuda.Device()
        # A thread that waits sleeps: there are more of them than copies at once.
        self._copied: Any = [cupy.cuda.Event(block=True, disable_timing=True) for _ in buffers]
        self._current = 0
        self._target: Any = None

    def begin(self) -> None:
        """Take the device that was current where the lane was made: a thread begins with GPU 0."""
        self._device.use()

    def fill(self, target: Any) -> Array:  # noqa: ANN401
        """The next buffer's first bytes, once they have been copied."""
        self._copied[self._current].synchronize()
        self._target = target
        return self._buffers[self._current][: target.nbytes].view(target.dtype)

    def send(self) -> None:
        """Queue the copy, and turn to the next buffer."""
        source, target = self._buffers[self._current].ctypes.data, self._target
        kind, stream = self._runtime.memcpyHostToDevice, int(self._stream.ptr)
        self._runtime.memcpyAsync(int(target.data.ptr), source, target.nbytes, kind, stream)
        self._copied[self._current].record(self._stream)
        self._current = (self._current + 1) % len(self._buffers)

    def finish(self) -> None:
        """Wait for this lane's copies."""
        for event in self._copied:
            event.synchronize()
        self._target = None


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
