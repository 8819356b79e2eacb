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
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from cugraphs.device import Device, UploadLane, convert
from cugraphs.kernel import DTYPES, Array
from cugraphs.start_times import record, span

READERS = 12  # threads, where the machine has as many cores
CHUNK_BYTES = 4 << 20  # of the host buffers, of which each thread has two: they stay in the cache
# While weights load, Python's lock goes round more often than every 5 ms: a reader needs it for
# microseconds between its reads, and would wait that long for a thread that computes in Python.
_SWITCH_INTERVAL_S = 2e-4
_PROGRESS_INTERVAL_S = 0.02
PAGE_BYTES = 4096


def default_readers() -> int:
    """Threads that read: one a core, up to ``READERS``."""
    return min(READERS, len(os.sched_getaffinity(0)))


class Tensor(Protocol):
    """Where a tensor's bytes come from."""

    @property
    def dtype(self) -> str:
        """Our name of its dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    @property
    def start(self) -> int:
        """Where its bytes begin in their file; 0 where there is none."""

    def read(self, begin: int, buffer: Array) -> None:
        """Fill uint8 ``buffer`` with its bytes from ``begin`` on; called by several threads."""

    def check_unchanged(self) -> None:
        """Raise ValueError if the bytes have changed since the tensor was opened."""


@dataclass(frozen=True)
class Part:
    """A tensor, and the contiguous array of the device, as large as it, that it fills.

    Args:
        tensor: to read.
        target: to fill.
        computed: it is not in the checkpoint: one thread does all of it, while the others read, and
            progress is not told.
    """

    tensor: Tensor
    target: Array
    computed: bool = False


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
            readers: threads; None is :func:`default_readers`.
            chunk_bytes: of each host buffer.
        """
        self._parts = parts
        self._progress = progress
        self._count = readers or default_readers()
        self._lock = threading.Lock()  # of all that follows
        self._make_lane = device.upload_lanes(self._count, chunk_bytes)
        self._chunks = _chunks(parts, chunk_bytes)
        self._stopped = False
        self._error: BaseException | None = None
        self._untold_bytes, self._told_s = 0, 0.0
        self._switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(_SWITCH_INTERVAL_S, self._switch_interval_s))
        self._threads = [
            threading.Thread(target=self._run, name=f"cugraphs reader {index}")
            for index in range(self._count)
        ]
        self._running = self._count
        self._ended = threading.Event()  # Thread.join cannot be interrupted safely before 3.13
        started = 0
        try:
            for thread in self._threads:
                thread.start()
                started += 1
        except BaseException:  # no more threads, or an interrupt
            self._leave(self._count - started)
            self._end()
            raise

    @property
    def ended(self) -> bool:
        """Whether every thread has ended, for good or by an error."""
        return self._ended.is_set()

    def wait(self) -> None:
        """Return once every byte is in the device's memory.

        Raises:
            Exception: what a reader or ``progress`` has raised; all threads have ended then.
        """
        try:
            with span("wait for weights"):
                self._ended.wait()
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
        if self._progress is not None and self._untold_bytes:
            untold_bytes, self._untold_bytes = self._untold_bytes, 0
            self._progress(untold_bytes)
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
        while not self._ended.is_set():
            with suppress(KeyboardInterrupt):
                self._ended.wait()
        sys.setswitchinterval(self._switch_interval_s)

    def _run(self) -> None:
        """Read chunk after chunk; what goes wrong ends every thread."""
        begin_s = time.perf_counter()
        try:
            lane = self._make_lane()
            try:
                while (chunk := self._next()) is not None:
                    for nbytes in chunk.load(lane):
                        if self._stopped:
                            break
                        if not chunk.part.computed:
                            self._tell(nbytes)
            finally:
                lane.finish()
                record("weights", begin_s)
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            self._stopped = True
        finally:
            self._leave(1)

    def _leave(self, count: int) -> None:
        """So many threads have ended, or will never begin."""
        with self._lock:
            self._running -= count
            if not self._running:
                self._ended.set()

    def _next(self) -> _Chunk | None:
        with self._lock:
            return None if self._stopped else next(self._chunks, None)

    def _tell(self, nbytes: int) -> None:
        """Tell ``progress``, but not at every chunk."""
        if self._progress is None:
            return
        with self._lock:
            self._untold_bytes += nbytes
            now_s = time.perf_counter()
            if now_s - self._told_s >= _PROGRESS_INTERVAL_S:
                self._told_s = now_s
                untold_bytes, self._untold_bytes = self._untold_bytes, 0
                self._progress(untold_bytes)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some elements of a part, to be loaded by one thread.

    Args:
        part: that they belong to.
        target: the device's array for them.
        stored: the dtype that they have in the checkpoint.
        begin: where they begin in the tensor, in elements.
    """

    part: Part
    target: Array
    stored: np.dtype[Any]
    begin: int

    def load(self, lane: UploadLane) -> Iterator[int]:
        """Read, convert and send them, as many at once as the lane takes; yields bytes read."""
        step = _elements(self.part, lane.chunk_bytes)
        for first in range(0, self.target.size, step):
            begin = (self.begin + first) * self.stored.itemsize
            phase = (self.part.tensor.start + begin) % PAGE_BYTES
            target = self.target[first : first + step]
            host = lane.fill(target, phase if phase % target.dtype.itemsize == 0 else 0)
            raw = host if host.dtype == self.stored else np.empty(host.size, self.stored)
            read = raw.view(np.uint8)
            self.part.tensor.read(begin, read)
            if raw is not host:
                convert(raw, host)
            lane.send()
            yield int(read.nbytes)


def _chunks(parts: Sequence[Part], chunk_bytes: int) -> Iterator[_Chunk]:
    """Every part in pieces that take at most so many bytes, as stored and in the device."""
    for part in parts:
        stored, target = DTYPES[part.tensor.dtype], part.target.reshape(-1)
        step = max(target.size, 1) if part.computed else _elements(part, chunk_bytes)
        for first in range(0, target.size, step):
            yield _Chunk(part, target[first : first + step], stored, first)


def _elements(part: Part, nbytes: int) -> int:
    """Elements of a part that take at most so many bytes, as stored and in the device."""
    itemsizes = (DTYPES[part.tensor.dtype].itemsize, part.target.dtype.itemsize)
    return max(nbytes // max(itemsizes), 1)
