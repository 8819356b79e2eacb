"""What the runtime asks of a device: memory, copies, and running a program.

``cpu_device`` and ``cuda_device`` are the two that there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from cugraphs.kernel import DTYPES, Array
from cugraphs.kv_cache import KVCacheShape
from cugraphs.program import Buffer, Program

Run = Callable[[], None]
# Queues an op or a graph. It is told whether what is last in the stream is a kernel launch of ours,
# which the next one need not see the end of to begin, and tells the same of what it leaves there.
QueueOp = Callable[[bool], bool]


class Replay(Protocol):
    """A captured step."""

    @property
    def num_nodes(self) -> int:
        """Launches, copies and fills in it."""

    def launch(self) -> None:
        """Queue it."""

    def node_kinds(self) -> Counter[str]:
        """How many nodes there are of each kind."""

    def pageable_copies(self) -> int:
        """Copies from or to host memory that is not pinned."""

    def dot(self) -> str:
        """It in Graphviz's language, with each node's parameters."""


class Loop(Protocol):
    """A captured loop over a step."""

    def launch(self) -> None:
        """Queue it."""


class InputStaging(Protocol):
    """Host memory that is filled with a step's inputs while the step before may still run.

    Attributes:
        twins: uint8 arrays as large as the arena's region of inputs, filled in turn.
    """

    twins: tuple[Array, ...]

    def next(self) -> int:
        """The index of the twin to fill now; waits until the device has copied it."""

    def send(self, nbytes: int) -> None:
        """Queue the copy of its first bytes into the arena; the next twin is then the other."""

    def sent(self, nbytes: int) -> int | None:
        """The index of the twin whose first bytes the arena holds, if one is known to be that."""

    def overwritten(self) -> None:
        """Say that the arena's inputs hold something else than what was sent."""


class UploadLane(Protocol):
    """One thread's way into the device's memory, for much data: it fills host memory, to be copied.

    Attributes:
        chunk_bytes: the most that :meth:`fill` gives.
    """

    chunk_bytes: int

    def fill(self, address: int, nbytes: int) -> Array:
        """Host memory, uint8 [nbytes], to be copied to an address of the device.

        It may be the memory at that address. Waits where it is still being copied.
        """

    def send(self) -> None:
        """Queue the copy of what :meth:`fill` gave last."""

    def finish(self) -> None:
        """Wait until everything that was sent is there."""


class KVPool(Protocol):
    """The KV cache's memory, whose addresses are known before its size.

    Attributes:
        arrays: K and V of every layer, by buffer name, at their largest.
    """

    arrays: dict[str, Array]

    def back(self, num_blocks: int) -> None:
        """Give the first blocks memory; the others are never to be touched.

        Raises:
            MemoryError: it does not fit.
        """

    def bytes_of(self, num_blocks: int) -> int:
        """Memory that so many blocks take."""

    def blocks_in(self, nbytes: int) -> int:
        """The most blocks that take no more than ``nbytes``."""


class Device(Protocol):
    """Memory and execution in one place. Arrays are the device's own (NumPy or CuPy)."""

    name: str
    shares_host_memory: bool  # host code can write its arrays directly
    uses_workspace: bool  # kernels' launches need scratch memory
    has_graphs: bool  # it can capture
    other_memory: str  # whose the memory is that is neither free nor an engine's

    @property
    def free_bytes(self) -> int:
        """Memory that nobody uses now."""

    @property
    def total_bytes(self) -> int:
        """All memory."""

    def allocate_bytes(self, nbytes: int) -> Array:
        """A uint8 array aligned to 256 bytes, contents undefined.

        Raises:
            MemoryError: it does not fit.
        """

    def zero_bytes(self, nbytes: int) -> Array:
        """As :meth:`allocate_bytes`, all zero."""

    def map_bytes(self, nbytes: int) -> tuple[Array, Array]:
        """Memory that host and device share, all zero: the device's uint8 array and the host's.

        Both may be used at any time; what one writes as a whole word, the other sees as a whole.
        """

    def check(self) -> bool:
        """Whether all that was queued has run; waits for nothing.

        Raises:
            RuntimeError: something that was queued failed.
        """

    def wait(self) -> None:
        """Return when all that was queued has run."""

    def write(self, target: Array, values: Array) -> None:
        """Copy host ``values`` into a device array of that shape, converting the dtype."""

    def upload_lanes(self, count: int, chunk_bytes: int) -> Callable[[], UploadLane]:
        """What makes a lane with host memory of its own, called by the thread that uses the lane.

        Args:
            count: of lanes that will be made.
            chunk_bytes: that each should take at once; where the machine gives less memory, it
                takes less, and that is logged.
        """

    def read(self, array: Array) -> Array:
        """The contents as a host array; waits until they are computed. May be a view."""

    def copy(self, target: Array, source: Array) -> None:
        """Queue a copy between two of its arrays of one shape and dtype."""

    def owns(self, array: object) -> bool:
        """Whether it is one of the device's arrays, in the device's memory."""

    def wait_for_caller(self) -> None:
        """What is queued from here on runs after what the caller has queued on arrays of its own.

        Where the device runs in a stream, the caller's is the current one of its array library.
        """

    def let_caller_wait(self) -> None:
        """What the caller queues from here on runs after all that is queued here."""

    def stage(self, inputs: Array) -> InputStaging:
        """Host memory for the arena's region of inputs, uint8 [bytes]."""

    def bind(
        self,
        program: Program,
        arrays: Mapping[Buffer, Array],
        *,
        workspace: Array | None,
        poison: bool,
    ) -> list[QueueOp]:
        """A call for each op of the program, that queues it on whatever its operands hold.

        Args:
            program: the step.
            arrays: of every buffer, with their bound shapes.
            workspace: uint8 [bytes]; scratch memory for launches, where the device uses any.
            poison: fill temporaries with NaN bytes after their last use.
        """

    def load_kernels(self, programs: Sequence[tuple[Program, Mapping[str, int]]]) -> None:
        """Get ready to bind programs at these sizes: compile and load what they launch, at once."""

    def capture(self, run: Run) -> Replay:
        """Record what ``run`` queues as one graph, on a device that has graphs.

        Raises:
            CaptureError: it cannot be captured.
        """

    def capture_loop(self, begin: Callable[[int], Run], repeat: Callable[[int], Run]) -> Loop:
        """A graph of a loop over a step, on a device that has graphs.

        Args:
            begin: given the handle of the loop's condition, makes the call that queues what comes
                before the loop; its last kernel sets the condition to 1 if there is to be a step.
            repeat: the same for a step, whose last kernel sets it to 0 to end the loop.

        Raises:
            CaptureError: it cannot be captured.
        """

    def address(self, array: Array) -> int:
        """Where an array's first byte is."""

    def kv_pool(self, cache: KVCacheShape) -> KVPool:
        """Memory for at most ``cache.num_blocks`` blocks of K and V."""

    def poison(self, arrays: Mapping[str, Array]) -> None:
        """Fill arrays with NaN bytes."""


class CaptureError(RuntimeError):
    """A step could not be captured; the message names the op."""


def convert(values: Array, target: Array) -> None:
    """Copy ``values`` into ``target`` of the same shape, converting the dtype.

    bfloat16 is the upper half of a float32, so widening it is a shift of its bits, which is many
    times quicker than a conversion element by element.
    """
    if values.dtype == DTYPES["bfloat16"] and target.dtype == np.float32:
        np.left_shift(values.view(np.uint16), 16, out=target.view(np.uint32), dtype=np.uint32)
    else:
        np.copyto(target, values, casting="unsafe")


def converted(values: Array, dtype: np.dtype[Any]) -> Array:
    """``values`` in ``dtype``; itself, not a copy, if it has that dtype already."""
    if values.dtype == dtype:
        return values
    target: Array = np.empty(values.shape, dtype)
    convert(values, target)
    return target
