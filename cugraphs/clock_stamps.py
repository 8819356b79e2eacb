"""When each block of each launch waited, went on and ended, by the GPU's clock; and its phases.

Only kernels of a build with ``launch.STAMPED`` leave stamps; cuBLASLt's and copies show as the time
between. Knows launches, not what they compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cugraphs.counted import counted
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
        ("place", np.uint32),  # among all stamps; filled in here
    ]
)
# As kernels/phase_stamps.cuh declares it; 0 where it is not noted.
PHASE_STAMP = np.dtype([("begins_ns", np.uint64), ("ends_ns", np.uint64)])
_PLACE = np.dtype(
    [("stamps", np.uint64), ("count", np.uint64), ("room", np.uint32), ("function", np.uint32)]
)
_PHASE_PLACE = np.dtype([("stamps", np.uint64), ("count", np.uint64)])


class ExpectedLaunch(NamedTuple):
    """A launch of ours that will leave stamps.

    Args:
        function: as it is launched.
        blocks: of it.
        phases: that each block may note; 0 of most kernels.
    """

    function: str
    blocks: int
    phases: int = 0


@dataclass(frozen=True)
class StampedLaunch:
    """One launch of ours.

    Args:
        function: as it is launched, with template arguments.
        stamps: of its blocks, :data:`STAMP` [blocks].
        phases: that they noted, :data:`PHASE_STAMP` [blocks, phases]; None where it has none.
    """

    function: str
    stamps: Array
    phases: Array | None = None


class ClockStamps:
    """Room for the stamps of a step on one device."""

    def __init__(self, device: CudaDevice, launches: Sequence[ExpectedLaunch]) -> None:
        """Allocate room, and let every function that was loaded with stamps leave them there.

        Args:
            device: was made with the build ``launch.STAMPED``, and has run the step.
            launches: those of ours in a step, in order.
        """
        self._device = device
        self._launches = launches
        self._blocks = sum(launch.blocks for launch in launches)
        self._of_block = max((launch.phases for launch in launches), default=0)
        phases_bytes = self._blocks * self._of_block * PHASE_STAMP.itemsize
        self._stamps = device.zero_bytes(self._blocks * STAMP.itemsize)
        self._phases = device.zero_bytes(max(phases_bytes, 1))
        self._count = device.zero_bytes(4)
        self._functions: list[str] = []
        for number, (function, _) in enumerate(stamped_modules):
            self._functions.append(function)
            self._write_places(number, self._stamps, self._phases)

    def clear(self) -> None:
        """Queue the forgetting of all stamps."""
        self._device.poison({"stamps": self._stamps})
        for array in (self._count, self._phases):
            array.data.memset_async(0, array.nbytes, self._device.stream)

    def read(self) -> list[StampedLaunch]:
        """The stamps since :meth:`clear`, by launch, in their order.

        Raises:
            RuntimeError: other blocks than those of the launches have left stamps.
        """
        count = int(self._device.read(self._count).view(np.uint32)[0])
        if count != self._blocks:
            raise RuntimeError(
                f"clock stamps: {counted(count, 'block')} ran, expected {self._blocks}"
            )
        stamps = self._device.read(self._stamps).view(STAMP)
        stamps["place"] = np.arange(count)
        raw = self._device.read(self._phases)[: count * self._of_block * PHASE_STAMP.itemsize]
        phases = raw.view(PHASE_STAMP).reshape(count, self._of_block)
        found = split_stamps(stamps, self._functions, self._launches)
        return [
            replace(each, phases=phases[each.stamps["place"], : launch.phases])
            if launch.phases
            else each
            for launch, each in zip(self._launches, found, strict=True)
        ]

    def close(self) -> None:
        """Let no function leave stamps any more."""
        for number in range(len(stamped_modules)):
            self._write_places(number, None, None)

    def _write_places(self, number: int, stamps: Any, phases: Any) -> None:  # noqa: ANN401
        """Where the functions of a module leave stamps; None: nowhere."""
        function, module = stamped_modules[number]
        first, of_phases = (0 if a is None else int(a.data.ptr) for a in (stamps, phases))
        count = int(self._count.data.ptr)
        _write(module, "stamp_place", np.array([(first, count, self._blocks, number)], _PLACE))
        if any(launch.phases for launch in self._launches if launch.function == function):
            of_block = self._of_block
            _write(module, "phase_place", np.array([(of_phases, of_block)], _PHASE_PLACE))


def _write(module: Any, variable: str, value: Array) -> None:  # noqa: ANN401
    import cupy

    runtime = cupy.cuda.runtime
    to = module.get_global_var(variable)
    runtime.memcpy(to, value.ctypes.data, value.nbytes, runtime.memcpyHostToDevice)


def split_stamps(
    stamps: Array, functions: Sequence[str], launches: Sequence[ExpectedLaunch]
) -> list[StampedLaunch]:
    """Give each launch its blocks' stamps.

    A launch goes on only when the one before it of its function has ended, so a function's stamps
    in the order in which they go on are those of its launches, one after the other.

    Args:
        stamps: :data:`STAMP` [blocks], in any order.
        functions: the names behind their numbers.
        launches: those that have left them, in order.

    Raises:
        RuntimeError: a function has left more or fewer stamps than its launches have blocks.
    """
    ordered = stamps[np.argsort(stamps["goes_on_ns"], kind="stable")]
    left = {
        function: ordered[np.isin(ordered["function"], _numbers(functions, function))]
        for function in {launch.function for launch in launches}
    }
    found = []
    for function, blocks, _ in launches:
        own, left[function] = left[function][:blocks], left[function][blocks:]
        if sorted(own["block"].tolist()) != list(range(blocks)):
            raise RuntimeError(
                f"clock stamps: {function} has {counted(len(own), 'stamp')} of "
                f"{counted(blocks, 'block')}, expected one "
                "of each"
            )
        found.append(StampedLaunch(function, own))
    return found


def _numbers(functions: Sequence[str], function: str) -> list[int]:
    """What a function is known by: it is loaded once for each size of shared memory."""
    return [number for number, name in enumerate(functions) if name == function]
