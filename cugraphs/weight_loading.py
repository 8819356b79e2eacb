"""Tensors of a checkpoint into a device's memory: several threads read, and the device copies.

Each thread takes the next chunk, in the order of the parts, reads the file into host memory that
the device can copy from (converting the dtype there), queues the copy and goes on with its other
buffer while that is under way. Meanwhile the caller can do what needs the weights' addresses but
not their values: bind programs, load kernels, capture. What is joined on the device (q, k and v)
are parts that lie side by side. Host memory is bounded whatever the model. Files are read, never
touched through a memory map. Knows no model and no file format.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from cugraphs.device import Device, UploadLane, convert
from cugraphs.kernel import DTYPES, Array
from cugraphs.start_times import record, span

READERS = 8  # threads, where the machine has as many cores
CHUNK_BYTES = 8 << 20  # of the host buffers, of which each thread has two
# While weights load, Python's lock goes round more often than every 5 ms: a reader needs it for
# microseconds between its reads, and would wait that long for a thread that computes in Python.
_SWITCH_INTERVAL_S = 2e-4


class Tensor(Protocol):
    """Where a tensor's bytes come from."""

    @property
    def dtype(self) -> str:
        """Our name of its dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    def read(self, begin: int, buffer: Array) -> None:
        """Fill uint8 ``buffer`` with its bytes from ``begin`` on; called by several threads."""

    def check_unchanged(self) -> None:
        """Raise ValueError if the bytes have changed since the tensor was opened."""


@dataclass(frozen=True)
class Part:
    """A tensor, and the contiguous array of the device, as large as it, that it fills."""

    tensor: Tensor
    target: Array


class WeightLoading:
    """Parts on their way, from the moment it is made; to be used as a context.

    Leaving the context by an error or an interrupt stops the threads; leaving it otherwise waits
    for the last byte. Either way no thread and no host memory is left.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        device: Device,
        *,
        progress: Callable[[int], None] | None = None,
        readers: int | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """Start the threads.

        Args:
            parts: what goes where; read in this order.
            device: owns the targets.
            progress: called with the number of bytes just read, by one thread at a time.
            readers: threads; None is one a core, up to ``READERS``.
            chunk_bytes: of each host buffer.
        """
        self._parts = parts
        self._progress = progress
        self._lock = threading.Lock()  # of the chunks, the error and the progress
        self._stopped = False
        self._error: BaseException | None = None
        count = readers or min(READERS, os.cpu_count() or 1)
        lanes = device.upload_lanes(count, chunk_bytes)
        self._chunks = _chunks(parts, min(lane.chunk_bytes for lane in lanes))
        self._switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(_SWITCH_INTERVAL_S, self._switch_interval_s))
        self._threads = [
            threading.Thread(target=self._run, args=[lane], name=f"cugraphs reader {index}")
            for index, lane in enumerate(lanes)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # no more threads, or an interrupt
            self._end()
            raise

    def wait(self) -> None:
        """Return once every byte is in the device's memory.

        Raises:
            Exception: what a reader or ``progress`` has raised; all threads have ended then.
        """
        try:
            with span("wait for weights"):
                for thread in self._threads:
                    thread.join()
        except BaseException:  # an interrupt
            self._end()
            raise
        self._end()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:  # its frames hold device memory: nothing of ours may hold it in turn
                del error
        for tensor in {id(part.tensor): part.tensor for part in self._parts}.values():
            tensor.check_unchanged()

    def __enter__(self) -> Self:
        """Return the loading itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait, or stop at an error."""
        if kind is None:
            self.wait()
        else:
            self._end()

    def _end(self) -> None:
        """Stop the threads, and wait until they have; an interrupt does not shorten that."""
        self._stopped = True
        for thread in self._threads:
            while thread.is_alive():
                try:
                    thread.join()
                except KeyboardInterrupt:
                    continue
        sys.setswitchinterval(self._switch_interval_s)

    def _run(self, lane: UploadLane) -> None:
        """Read chunk after chunk; what goes wrong ends every thread."""
        try:
            begin_s = time.perf_counter()
            try:
                lane.begin()
                while (chunk := self._next()) is not None:
                    nbytes = chunk.load(lane)
                    if self._progress is not None:
                        with self._lock:
                            self._progress(nbytes)
            finally:
                lane.finish()
                record("weights", begin_s)
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            self._stopped = True

    def _next(self) -> _Chunk | None:
        with self._lock:
            return None if self._stopped else next(self._chunks, None)


@dataclass(frozen=True)
class _Chunk:
    """Elements of a part, ``first`` to ``first + count`` of its flat array."""

    part: Part
    first: int
    count: int

    def load(self, lane: UploadLane) -> int:
        """Read them, convert them, send them; returns the bytes that were read."""
        stored = DTYPES[self.part.tensor.dtype]
        target = self.part.target.reshape(-1)[self.first : self.first + self.count]
        host = lane.fill(target)
        begin, nbytes = self.first * stored.itemsize, self.count * stored.itemsize
        if host.dtype == stored:
            self.part.tensor.read(begin, host.view(np.uint8))
        else:
            raw = np.empty(nbytes, np.uint8)
            self.part.tensor.read(begin, raw)
            convert(raw.view(stored), host)
        lane.send()
        return nbytes


def _chunks(parts: Sequence[Part], chunk_bytes: int) -> Iterator[_Chunk]:
    """Every part in pieces that take at most so many bytes, as stored and in the device."""
    for part in parts:
        itemsize = max(DTYPES[part.tensor.dtype].itemsize, part.target.dtype.itemsize)
        step, size = max(chunk_bytes // itemsize, 1), part.target.size
        for first in range(0, size, step):
            yield _Chunk(part, first, min(step, size - first))
