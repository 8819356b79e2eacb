"""When each block of each launch waited, went on and ended, as the GPU's own clock has it.

Only kernels of a build with ``launch.STAMPED`` leave stamps; cuBLASLt's and copies show as the time
between. Knows launches, not what they compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cugraphs.cuda_device import CudaDevice
from cugraphs.kernel import Array
from cugraphs.launch import stamped_modules

# As kernels/clock_stamps.cuh declares them.
STAMP = np.dtype(
    [
        ("waits_ns", np.uint64),
        ("goes_on_ns", np.uint64),
        ("ends_ns", np.uint64),
        ("function", np.uint32),
        ("block", np.uint32),
        ("multiprocessor", np.uint32),
        ("padding", np.uint32),
    ]
)
_PLACE = np.dtype(
    [("stamps", np.uint64), ("count", np.uint64), ("room", np.uint32), ("function", np.uint32)]
)


@dataclass(frozen=True)
class StampedLaunch:
    """One launch of ours.

    Args:
        function: as it is launched, with template arguments.
        stamps: of its blocks, :data:`STAMP` [blocks].
    """

    function: str
    stamps: Array


class ClockStamps:
    """Room for the stamps of a step on one device."""

    def __init__(self, device: CudaDevice, room: int) -> None:
        """Allocate room, and let every function that was loaded with stamps leave them there.

        Args:
            device: was made with the build ``launch.STAMPED``, and has run the step.
            room: blocks of a step, at least.
        """
        self._device = device
        self._stamps = device.zero_bytes(room * STAMP.itemsize)
        self._count = device.zero_bytes(4)
        self._room = room
        self._functions: list[str] = []
        for number, (function, module) in enumerate(stamped_modules):
            self._functions.append(function)
            self._write_place(module, int(self._stamps.data.ptr), number)

    def clear(self) -> None:
        """Queue the forgetting of all stamps."""
        self._device.poison({"stamps": self._stamps})
        self._count.data.memset_async(0, 4, self._device.stream)

    def read(self, launches: Sequence[tuple[str, int]]) -> list[StampedLaunch]:
        """The stamps since :meth:`clear`, by launch, in their order.

        Args:
            launches: function and blocks of each of ours that was queued since, in order.

        Raises:
            RuntimeError: other blocks than those have left stamps.
        """
        count = int(self._device.read(self._count).view(np.uint32)[0])
        expected = sum(blocks for _, blocks in launches)
        if count != expected or count > self._room:
            raise RuntimeError(
                f"clock stamps: {count} blocks have run, expected {expected}, room for {self._room}"
            )
        stamps = self._device.read(self._stamps).view(STAMP)[:count]
        return split_stamps(stamps, self._functions, launches)

    def close(self) -> None:
        """Let no function leave stamps any more."""
        for number, (_, module) in enumerate(stamped_modules):
            self._write_place(module, 0, number)

    def _write_place(self, module: Any, stamps: int, number: int) -> None:  # noqa: ANN401
        place = np.array([(stamps, int(self._count.data.ptr), self._room, number)], _PLACE)
        import cupy

        to = module.get_global_var("stamp_place")
        runtime = cupy.cuda.runtime
        runtime.memcpy(to, place.ctypes.data, place.nbytes, runtime.memcpyHostToDevice)


def split_stamps(
    stamps: Array, functions: Sequence[str], launches: Sequence[tuple[str, int]]
) -> list[StampedLaunch]:
    """Give each launch its blocks' stamps.

    A launch goes on only when the one before it of its function has ended, so a function's stamps
    in the order in which they go on are those of its launches, one after the other.

    Args:
        stamps: :data:`STAMP` [blocks], in any order.
        functions: the names behind their numbers.
        launches: function and blocks, in order.

    Raises:
        RuntimeError: a function has left more or fewer stamps than its launches have blocks.
    """
    ordered = stamps[np.argsort(stamps["goes_on_ns"], kind="stable")]
    left = {
        function: ordered[np.isin(ordered["function"], _numbers(functions, function))]
        for function in {function for function, _ in launches}
    }
    found = []
    for function, blocks in launches:
        own, left[function] = left[function][:blocks], left[function][blocks:]
        if sorted(own["block"].tolist()) != list(range(blocks)):
            raise RuntimeError(
                f"clock stamps: {function} has {len(own)} stamps of {blocks} blocks, expected one "
                "of each"
            )
        found.append(StampedLaunch(function, own))
    return found


def _numbers(functions: Sequence[str], function: str) -> list[int]:
    """What a function is known by: it is loaded once for each size of shared memory."""
    return [number for number, name in enumerate(functions) if name == function]
