"""Arrays that a caller gives for a buffer: checked by shape, converted only where nothing is lost.

Knows values, not programs. Every error is one line and names the buffer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cugraphs.kernel import DTYPES, Array, ArrayType


def checked(who: str, values: object, type_: ArrayType, *, allow_rounding: bool = False) -> Array:
    """``values`` as a host array of ``type_``.

    Args:
        who: names the buffer in errors.
        values: an array, or what NumPy makes one of.
        type_: the shape and dtype that are wanted.
        allow_rounding: as of :func:`lossless`.

    Raises:
        ValueError: another shape, or an integer that does not fit.
        TypeError: a dtype that cannot be converted without loss.
    """
    array = np.asarray(values)
    check_shape(who, array, type_)
    return lossless(who, array, type_.dtype, allow_rounding=allow_rounding)


def check_shape(who: str, array: Array, type_: ArrayType) -> None:
    """Refuse an array of another shape.

    Raises:
        ValueError: it has one.
    """
    if array.shape != type_.shape:
        raise ValueError(f"{who} is {array.dtype}{list(array.shape)}, expected {type_}")


def lossless(who: str, array: Array, dtype: str, *, allow_rounding: bool = False) -> Array:
    """The array in ``dtype``: itself, or a copy that holds the same values.

    Integers are looked at: NumPy makes int64 of every list, and small ones fit anywhere. Floats
    are converted to a wider dtype only.

    Args:
        who: names the buffer in errors.
        array: of any dtype.
        dtype: the one that is wanted.
        allow_rounding: also convert floats to a narrower dtype, and integers to the nearest float.

    Raises:
        ValueError: an integer does not fit.
        TypeError: the dtype would lose something, or is no number's.
    """
    wanted = DTYPES[dtype]
    if array.dtype == wanted:
        return array
    if array.dtype.kind in "iub":
        if wanted.kind in "iu":
            limits = np.iinfo(wanted)
            fits = not array.size or (array.min() >= limits.min and array.max() <= limits.max)
            problem = f"all of them from {limits.min} to {limits.max}"
        else:
            fits = allow_rounding or _same_after(array, wanted)
            problem = f"none that {dtype} rounds; allow_rounding=True rounds them"
        if not fits:
            raise ValueError(f"{who} holds integers ({array.dtype}), expected {problem}")
    elif not (_is_float(array.dtype) and _is_float(wanted)):
        raise TypeError(f"{who} is {array.dtype}, expected {dtype}")
    elif not (allow_rounding or np.can_cast(array.dtype, wanted, "safe")):
        raise TypeError(
            f"{who} is {array.dtype}, expected {dtype}: it would be rounded; pass {dtype}, "
            "or allow_rounding=True"
        )
    return array.astype(wanted)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype == DTYPES["bfloat16"]


def _same_after(integers: Array, wanted: np.dtype[Any]) -> bool:
    """Whether a float dtype holds exactly these integers."""
    with np.errstate(invalid="ignore", over="ignore"):
        floats = integers.astype(wanted)
        exact = floats.astype(np.float64)  # wider than every float here
        # A 64-bit integer may be rounded on its way to float64 too, so it is compared as integer.
        back = exact.astype(integers.dtype)
    return bool(np.isfinite(exact).all() and (back == integers).all())
