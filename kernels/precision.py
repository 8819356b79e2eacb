"""Where a NumPy reference widens its operands, and the one place where it rounds its result.

Every reference computes in float32 (in float64 when its operands are float64) and rounds once, to
the nearest representable value, when it stores. This module knows nothing about kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cugraphs.kernel import Array, compute_dtype

# A GPU overflows to infinity and goes on; a reference does the same without a RuntimeWarning.
# Used as a decorator (0.3 us a call), which is cheaper than a `with` block (0.7 us).
quiet = np.errstate(all="ignore")


def widen(array: Array) -> Array:
    """``array`` in the dtype that references compute in; itself, not a copy, if it is already."""
    return array.astype(compute_dtype(array.dtype), copy=False)


def store(array: Array, dtype: np.dtype[Any]) -> Array:
    """``array`` rounded to ``dtype``; itself, not a copy, if it has that dtype already."""
    return array.astype(dtype, copy=False)
