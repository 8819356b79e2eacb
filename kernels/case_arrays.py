"""Random arrays for the cases that every form of a kernel is proven on. Knows no kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cugraphs.kernel import Array

Make = Callable[[np.random.Generator, np.dtype[Any]], tuple[Array, ...]]


def normal(
    rng: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int], scale: float = 1.0
) -> Array:
    """Normally distributed numbers of standard deviation ``scale``, rounded to ``dtype``."""
    return (rng.standard_normal(tuple(shape)) * scale).astype(dtype)


def int32(values: Sequence[int] | Array) -> Array:
    """``values`` as an int32 array."""
    return np.asarray(values, dtype=np.int32)
