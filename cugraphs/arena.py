"""One allocation that holds every static buffer of every program, in named regions.

Regions are added while planning, without a device. ``allocate`` then makes the one allocation, and
views are cut from it. The class is the same over NumPy and over any array module whose uint8 array
can be sliced, viewed and reshaped (CuPy).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cugraphs.buffer_assignment import ALIGNMENT_BYTES, aligned
from cugraphs.kernel import DTYPES, Array, ArrayType

POISON = 0xFF  # as bytes everywhere it is NaN in every float dtype and -1 in int32


@dataclass(frozen=True, slots=True)
class Region:
    """``nbytes`` at ``offset`` in the arena, for one purpose."""

    name: str
    offset: int
    nbytes: int


class Arena:
    """Named regions, planned first, then backed by one allocation.

    >>> arena = Arena()
    >>> arena.add("inputs/token_ids", 64 * 4)
    >>> arena.allocate(numpy_bytes)
    >>> arena.view("inputs/token_ids", ArrayType((64,), "int32")).shape
    (64,)
    """

    def __init__(self) -> None:
        """An arena without regions."""
        self.regions: dict[str, Region] = {}
        self.nbytes = 0
        self._memory: Array | None = None

    def add(self, name: str, nbytes: int) -> None:
        """Append a region of ``nbytes``, aligned to 256 bytes.

        Raises:
            ValueError: the name is taken, ``nbytes`` is negative, or the memory exists already.
        """
        if nbytes < 0:
            raise ValueError(f"Arena: region {name!r} has {nbytes} bytes, expected at least 0")
        if name in self.regions:
            raise ValueError(f"Arena: region {name!r} exists already")
        if self._memory is not None:
            raise ValueError(f"Arena: cannot add {name!r}, the memory is already allocated")
        self.regions[name] = Region(name, self.nbytes, nbytes)
        self.nbytes += aligned(nbytes)

    def allocate(self, allocate_bytes: Callable[[int], Any], *, poison: bool = True) -> None:
        """Make the one allocation.

        Args:
            allocate_bytes: returns a uint8 array of that many bytes, aligned to 256 bytes.
            poison: fill it with NaN bytes, so that what is read before it is written shows.

        Raises:
            ValueError: it was made before.
        """
        if self._memory is not None:
            raise ValueError("Arena: the memory is already allocated, expected one allocation")
        self._memory = allocate_bytes(self.nbytes)
        if poison:
            self.poison()

    def poison(self) -> None:
        """Fill the whole arena with NaN bytes."""
        self.memory[...] = POISON

    @property
    def memory(self) -> Array:
        """The one allocation, uint8; ValueError before it is made."""
        if self._memory is None:
            raise ValueError("Arena: nothing is allocated yet; call allocate first")
        return self._memory

    def view(self, name: str, type_: ArrayType, offset: int = 0) -> Array:
        """An array of ``type_`` at ``offset`` bytes into the region.

        Raises:
            KeyError: no such region.
            ValueError: the array is misaligned, begins before or ends beyond the region, or nothing
                is allocated yet.
        """
        region = self.regions[name]
        if offset < 0 or offset % ALIGNMENT_BYTES:
            raise ValueError(
                f"Arena: {type_} is at {offset} of region {name!r}, "
                f"expected a multiple of {ALIGNMENT_BYTES}"
            )
        if offset + type_.nbytes > region.nbytes:
            raise ValueError(
                f"Arena: {type_} at {offset} of region {name!r} ends at {offset + type_.nbytes}, "
                f"expected at most {region.nbytes}"
            )
        begin = region.offset + offset
        raw = self.memory[begin : begin + type_.nbytes]
        view: Array = raw.view(DTYPES[type_.dtype]).reshape(type_.shape)
        return view

    def memory_map(self) -> str:
        """A line per region: first byte, last byte, size, name."""
        lines = [f"arena: {self.nbytes:,} bytes in one allocation"]
        for region in self.regions.values():
            end = region.offset + max(region.nbytes, 1) - 1
            lines.append(
                f"  {region.offset:#012x} .. {end:#012x} {region.nbytes:>15,}  {region.name}"
            )
        return "\n".join(lines)


def allocate_arrays(
    types: Mapping[str, ArrayType], allocate_bytes: Callable[[int], Any]
) -> dict[str, Array]:
    """An array for every name, cut from one allocation, with the contents it comes with."""
    arena = Arena()
    for name, type_ in types.items():
        arena.add(name, type_.nbytes)
    arena.allocate(allocate_bytes, poison=False)
    return {name: arena.view(name, type_) for name, type_ in types.items()}


def numpy_bytes(nbytes: int) -> Array:
    """A NumPy uint8 array whose first byte is aligned as a device allocation is."""
    raw = np.empty(nbytes + ALIGNMENT_BYTES, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[skip : skip + nbytes]
