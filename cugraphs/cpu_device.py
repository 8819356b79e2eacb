"""The CPU as a device: NumPy arrays, and programs run through the interpreter.

There is nothing to wait for, to stage or to capture: all is done when it is asked for.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.ctypeslib import as_array  # here: `np.ctypeslib` would be imported by a reader

from cugraphs.arena import allocate_arrays, numpy_bytes
from cugraphs.buffer_assignment import ALIGNMENT_BYTES
from cugraphs.device import (
    CaptureError,
    InputStaging,
    KVPool,
    Loop,
    QueueOp,
    Replay,
    Run,
    UploadLane,
    convert,
)
from cugraphs.interpreter import BoundOp, bind_ops, poison_arrays, run_ops
from cugraphs.kernel import Array
from cugraphs.kv_cache import KVCacheShape
from cugraphs.program import Buffer, Program


class _InPlace:
    """Inputs that the host writes where the step reads them."""

    def __init__(self, inputs: Array) -> None:
        self.twins: tuple[Array, ...] = (inputs,)

    def next(self) -> int:
        return 0

    def send(self, nbytes: int) -> None:
        pass

    def sent(self, nbytes: int) -> int | None:
        return None

    def overwritten(self) -> None:
        pass


class _DirectLane:
    """Host code writes where the device reads."""

    def __init__(self, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes

    def fill(self, address: int, nbytes: int) -> Array:
        return as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def send(self) -> None:
        pass

    def finish(self) -> None:
        pass


class _ZeroedPool:
    """A pool whose memory comes as it is written."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays = arrays

    def back(self, num_blocks: int) -> None:
        pass

    def bytes_of(self, num_blocks: int) -> int:
        return sum(array[:1].nbytes for array in self.arrays.values()) * num_blocks

    def blocks_in(self, nbytes: int) -> int:
        return nbytes // self.bytes_of(1)


class CpuDevice:
    """NumPy memory; programs run through the kernels' references."""

    name = "cpu"
    shares_host_memory = True
    uses_workspace = False
    has_graphs = False
    other_memory = "other memory of this process, other programs"

    @property
    def free_bytes(self) -> int:
        """What the kernel can still give, without swapping."""
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))

    @property
    def total_bytes(self) -> int:
        """All of the machine's memory."""
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

    def allocate_bytes(self, nbytes: int) -> Array:
        """A uint8 array aligned to 256 bytes. Raises MemoryError with the size."""
        try:
            return numpy_bytes(nbytes)
        except MemoryError:
            raise MemoryError(f"cpu: {nbytes:,} bytes cannot be allocated") from None

    def zero_bytes(self, nbytes: int) -> Array:
        """All zero; a page takes memory only once it is written.

        Raises:
            MemoryError: there is not enough.
        """
        try:
            raw = np.zeros(nbytes + ALIGNMENT_BYTES, np.uint8)
        except MemoryError:
            raise MemoryError(f"cpu: {nbytes:,} bytes cannot be allocated") from None
        skip = -raw.ctypes.data % ALIGNMENT_BYTES
        return raw[skip : skip + nbytes]

    def map_bytes(self, nbytes: int) -> tuple[Array, Array]:
        """One array, twice."""
        shared = self.zero_bytes(nbytes)
        return shared, shared

    def check(self) -> bool:
        """Everything is done when its call returns."""
        return True

    def wait(self) -> None:
        """As :meth:`check`."""

    def write(self, target: Array, values: Array) -> None:
        """Copy, converting the dtype."""
        convert(values, target)

    def upload_lanes(self, count: int, chunk_bytes: int) -> Callable[[], UploadLane]:
        """The targets themselves are filled."""
        return partial(_DirectLane, chunk_bytes)

    def read(self, array: Array) -> Array:
        """The array itself."""
        return array

    def copy(self, target: Array, source: Array) -> None:
        """At once."""
        np.copyto(target, source)

    def owns(self, array: object) -> bool:
        """Every NumPy array."""
        return isinstance(array, np.ndarray)

    def wait_for_caller(self) -> None:
        """Everything is done when its call returns."""

    def let_caller_wait(self) -> None:
        """As :meth:`wait_for_caller`."""

    def stage(self, inputs: Array) -> InputStaging:
        """The region itself is the one twin."""
        return _InPlace(inputs)

    def bind(
        self,
        program: Program,
        arrays: Mapping[Buffer, Array],
        *,
        workspace: Array | None,
        poison: bool,
    ) -> list[QueueOp]:
        """Run the references."""
        return [partial(_run_op, op, poison) for op in bind_ops(program, arrays)]

    def load_kernels(self, programs: Sequence[tuple[Program, Mapping[str, int]]]) -> None:
        """References are there already."""

    def capture(self, run: Run) -> Replay:
        """The CPU has no graphs: raises CaptureError."""
        raise CaptureError("the CPU has no graphs")

    def capture_loop(self, begin: Callable[[int], Run], repeat: Callable[[int], Run]) -> Loop:
        """The CPU has no graphs: raises CaptureError."""
        raise CaptureError("the CPU has no graphs")

    def address(self, array: Array) -> int:
        """NumPy's."""
        return int(array.ctypes.data)

    def kv_pool(self, cache: KVCacheShape) -> KVPool:
        """All of it: a page takes memory only once it is written."""
        return _ZeroedPool(allocate_arrays(cache.types, self.zero_bytes))

    def poison(self, arrays: Mapping[str, Array]) -> None:
        """Fill arrays with NaN bytes."""
        poison_arrays(arrays.values())


def _run_op(op: BoundOp, poison: bool, after_ours: bool) -> bool:
    run_ops([op], poison=poison)
    return False
