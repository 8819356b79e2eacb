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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from traceback import clear_frames
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from cugraphs.device import Device, UploadLane, convert
from cugraphs.kernel import DTYPES, Array
from cugraphs.start_times import record, span

READERS = 12  # threads, where the machine has as many cores
CHUNK_BYTES = 4 << 20  # of the host buffers, of which each thread has two: they stay in the cache
# While weights load, Python's lock goes round more often than every 5 ms: a reader needs it for
# microseconds between its reads, and would wait that long for a thread that computes in Python.
_SWITCH_INTERVAL_S = 5e-5
_PROGRESS_INTERVAL_S = 0.02


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
    for the last byte. Either way no thread and no host memory is left, unless an interrupt ends the
    waiting for a thread that does not stop: then that is left, with the memory that it fills.
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
        self._chunks = iter(_chunks(parts, device, chunk_bytes))
        self._stopped = False
        self._given_up = False  # the waiting for threads that were to stop
        self._error: BaseException | None = None
        self._untold_bytes, self._told_s = 0, 0.0
        self._switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(_SWITCH_INTERVAL_S, self._switch_interval_s))
        self._threads = [
            threading.Thread(
                target=self._run,
                name=f"cugraphs reader {index}",
                daemon=True,  # one that does not stop keeps no process from its end
            )
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
        """Stop the threads, and wait until they have, or until somebody interrupts that too."""
        self._stopped = True
        try:
            if not self._given_up:
                self._ended.wait()
        except KeyboardInterrupt:
            self._given_up = True
            raise
        finally:
            sys.setswitchinterval(self._switch_interval_s)
        if self._ended.is_set():
            for thread in self._threads:
                if thread.ident is not None:
                    thread.join()  # it has nothing left to do

    def _run(self) -> None:
        """One thread: what goes wrong in it ends all."""
        try:
            self._read_all()
        except BaseException as error:
            clear_frames(error.__traceback__)  # they hold memory of the host and the device
            with self._lock:
                self._error = self._error or error
            self._stopped = True
        finally:
            self._leave(1)

    def _read_all(self) -> None:
        """Read chunk after chunk, through a lane that is gone at the end."""
        begin_s = time.perf_counter()
        lane = self._make_lane()
        try:
            while (chunk := self._next()) is not None:
                part, begin, count = chunk
                step = min(part.elements(lane.chunk_bytes), count)
                for first in range(begin, begin + count, step):
                    nbytes = part.load(lane, first, min(step, begin + count - first))
                    if self._stopped:
                        break
                    if self._progress is not None and not part.computed:
                        self._tell(nbytes)
        finally:
            lane.finish()
            record("weights", begin_s)

    def _leave(self, count: int) -> None:
        """So many threads have ended, or will never begin."""
        with self._lock:
            self._running -= count
            if not self._running:
                self._ended.set()

    def _next(self) -> _Chunk | None:
        """The next chunk; None at the end."""
        with self._lock:
            return None if self._stopped else next(self._chunks, None)

    def _tell(self, nbytes: int) -> None:
        """Tell ``progress``, but not at every chunk."""
        assert self._progress is not None
        with self._lock:
            self._untold_bytes += nbytes
            now_s = time.perf_counter()
            if now_s - self._told_s >= _PROGRESS_INTERVAL_S:
                self._told_s = now_s
                untold_bytes, self._untold_bytes = self._untold_bytes, 0
                self._progress(untold_bytes)


class _Placed:
    """A part, and what each of its chunks needs to know: readers have no time for more."""

    def __init__(self, part: Part, device: Device) -> None:
        self.computed = part.computed
        self.size = int(part.target.size)
        self._read = part.tensor.read
        self._stored, self._target = DTYPES[part.tensor.dtype], part.target.dtype
        self._address = device.address(part.target)

    def elements(self, nbytes: int) -> int:
        """How many take at most so many bytes, as stored and in the device."""
        return max(nbytes // max(self._stored.itemsize, self._target.itemsize), 1)

    def load(self, lane: UploadLane, first: int, count: int) -> int:
        """Read elements, convert them, send them; returns the bytes that were read."""
        itemsize, begin = self._target.itemsize, first * self._stored.itemsize
        host = lane.fill(self._address + first * itemsize, count * itemsize)
        if self._stored == self._target:
            self._read(begin, host)
        else:
            raw = np.empty(count * self._stored.itemsize, np.uint8)
            self._read(begin, raw)
            convert(raw.view(self._stored), host.view(self._target))
        lane.send()
        return count * self._stored.itemsize


_Chunk = tuple[_Placed, int, int]  # the part, the first element, how many


def _chunks(parts: Sequence[Part], device: Device, chunk_bytes: int) -> list[_Chunk]:
    """Every part in pieces that take at most so many bytes; one that is computed whole."""
    chunks: list[_Chunk] = []
    for part in parts:
        placed = _Placed(part, device)
        size = placed.size
        step = max(size, 1) if part.computed else placed.elements(chunk_bytes)
        chunks += [(placed, first, min(step, size - first)) for first in range(0, size, step)]
    return chunks
