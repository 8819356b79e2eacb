"""Random arrays for the cases that every form of a kernel is proven on. Knows no kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cugraphs.kernel import Array

MAX_DRAWN = (1 << 22) + 1  # odd, so that rows of a matrix differ
Make = Callable[[np.random.Generator, np.dtype[Any]], tuple[Array, ...]]


def normal(
    rng: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int], scale: float = 1.0
) -> Array:
    """Normally distributed numbers of standard deviation ``scale``, rounded to ``dtype``.

    Beyond 4 million they repeat: the arrays of a benchmark would take minutes to draw.
    """
    count = math.prod(shape)
    drawn = (rng.standard_normal(min(count, MAX_DRAWN)) * scale).astype(dtype)
    return np.resize(drawn, tuple(shape)) if count > MAX_DRAWN else drawn.reshape(shape)


def int32(values: Sequence[int] | Array) -> Array:
    """``values`` as an int32 array."""
    return np.asarray(values, dtype=np.int32)
