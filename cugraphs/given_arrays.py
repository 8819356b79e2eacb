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
        TypeError, ValueError: it has another shape, or a value that is not in the dtype.
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

    The values are looked at, because NumPy makes int64 of every list and float64 of ``zeros``.

    Args:
        who: names the buffer in errors.
        array: of any dtype.
        dtype: the one that is wanted.
        allow_rounding: give the nearest float where it is not the same.

    Raises:
        ValueError: a value is not in ``dtype``.
        TypeError: it is no dtype of numbers, or one of floats where integers are wanted.
    """
    wanted = DTYPES[dtype]
    if array.dtype == wanted:
        return array
    is_integer = array.dtype.kind in "iub"
    if not (is_integer or (_is_float(array.dtype) and _is_float(wanted))):
        raise TypeError(f"{who} is {array.dtype}, expected {dtype}")
    if wanted.kind in "iu":
        limits = np.iinfo(wanted)
        if array.size and not (array.min() >= limits.min and array.max() <= limits.max):
            raise ValueError(
                f"{who} is {array.dtype} with values from {array.min()} to {array.max()}, expected "
                f"{dtype}, from {limits.min} to {limits.max}"
            )
        return array.astype(wanted)
    with np.errstate(over="ignore", invalid="ignore"):
        floats = array.astype(wanted)
        back = floats.astype(np.float64).astype(array.dtype)
    finite = np.isfinite(floats) if is_integer else True
    if not (allow_rounding or (((back == array) & finite) | (array != array)).all()):
        raise ValueError(
            f"{who} is {array.dtype}, expected {dtype}, which would round its values; "
            f"pass {dtype}, or allow_rounding=True"
        )
    return floats


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype == DTYPES["bfloat16"]
