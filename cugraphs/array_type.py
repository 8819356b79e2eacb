"""What an array is before it exists: a dtype, and a shape whose leading axis is bound later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Axes = Mapping[str, int]

DTYPES: Mapping[str, np.dtype[Any]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int32": np.dtype(np.int32),
    "uint32": np.dtype(np.uint32),
    "uint8": np.dtype(np.uint8),
}
DTYPE_NAMES: Mapping[np.dtype[Any], str] = {dtype: name for name, dtype in DTYPES.items()}


class Dim(int):
    """A leading axis whose size is chosen when the program is bound, at most ``int(dim)``.

    It behaves as the int of its maximum, so a program is traced and planned at its largest row
    count. ``dim + 1`` is the axis that is always one longer (``query_start_loc``).
    """

    name: str
    offset: int

    def __new__(cls, name: str, maximum: int, offset: int = 0) -> Dim:
        """Make the axis ``name``, at most ``maximum`` (+ ``offset``) long.

        Raises:
            ValueError: ``maximum`` is below 1.
        """
        if maximum < 1:
            raise ValueError(f"Dim: maximum of {name!r} is {maximum}, expected at least 1")
        self = super().__new__(cls, maximum + offset)
        self.name = name
        self.offset = offset
        return self

    def __add__(self, other: int) -> Dim:
        """The axis that is ``other`` longer than this one at every binding."""
        return Dim(self.name, int(self) - self.offset, self.offset + other)

    __radd__ = __add__

    def __sub__(self, other: int) -> Dim:
        """The axis that is ``other`` shorter than this one at every binding."""
        return self + -other

    def __str__(self) -> str:
        """``rows`` or ``seqs+1``."""
        return f"{self.name}+{self.offset}" if self.offset else self.name

    def __repr__(self) -> str:
        """``rows<=64``."""
        return f"{self}<={int(self)}"


def bind_axis(size: int, sizes: Mapping[str, int]) -> int:
    """The bound size of an axis: a :class:`Dim` is looked up in ``sizes``, an int is itself.

    Raises:
        ValueError: the size is missing, negative, or above the dim's maximum.
    """
    if not isinstance(size, Dim):
        return size
    if size.name not in sizes:
        raise ValueError(f"bind: no size is given for axis {size.name!r}, expected {size!r}")
    bound = sizes[size.name] + size.offset
    if not size.offset <= bound <= int(size):
        raise ValueError(
            f"bind: axis {size.name!r} is {sizes[size.name]}, "
            f"expected 0 to {int(size) - size.offset}; "
            "trace the program at a larger maximum"
        )
    return bound


def same_axis(a: int, b: int) -> bool:
    """Whether two axes have the same size at every binding."""
    if isinstance(a, Dim) and isinstance(b, Dim):
        return a == b and a.name == b.name and a.offset == b.offset
    return a == b and not isinstance(a, Dim) and not isinstance(b, Dim)


@dataclass(frozen=True)
class ArrayType:
    """Shape and dtype of an array; a leading :class:`Dim` is an axis that is bound later."""

    shape: tuple[int, ...]
    dtype: str

    @staticmethod
    def of(array: Array) -> ArrayType:
        """The type of an array that is there.

        Raises:
            TypeError: its dtype is none of :data:`DTYPES`.
        """
        if array.dtype not in DTYPE_NAMES:
            raise TypeError(f"array: dtype is {array.dtype}, expected one of {', '.join(DTYPES)}")
        return ArrayType(array.shape, DTYPE_NAMES[array.dtype])

    @cached_property
    def nbytes(self) -> int:
        """Bytes at the largest binding."""
        return DTYPES[self.dtype].itemsize * math.prod(self.shape)

    def bind(self, sizes: Mapping[str, int]) -> ArrayType:
        """The same type with every :class:`Dim` replaced by its size."""
        return ArrayType(tuple(bind_axis(axis, sizes) for axis in self.shape), self.dtype)

    def __str__(self) -> str:
        """``bfloat16[rows, 4096]``."""
        return f"{self.dtype}[{', '.join(str(axis) for axis in self.shape)}]"


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that a reference computes in: float64 for float64, float32 for all others."""
    return DTYPES["float64"] if dtype == DTYPES["float64"] else DTYPES["float32"]
