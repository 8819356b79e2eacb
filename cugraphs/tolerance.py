"""How far a result may be from the exact one: one rule for every kernel, dtype and form.

``exact`` is the reference in float64 and ``plain`` the same computation in float32, rounded to the
dtype: the error that the formats alone cause. A result is allowed a small multiple of it.
Knows nothing about kernels or devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cugraphs.counted import counted
from cugraphs.kernel import DTYPES, Array


@dataclass(frozen=True)
class Error:
    """Relative error of an array, ``|actual - exact| / max(|exact|, rms(exact))`` an element."""

    max: float
    rms: float


@dataclass(frozen=True)
class _Rule:
    """Allowed: ``max_factor*plain.max + unit`` and ``rms_factor*plain.rms + unit/32``."""

    max_factor: float
    rms_factor: float
    unit: float


# float32 and float64 have no rounding at the store that hides the order of a sum, so there a
# different order may cost a larger multiple.
_RULES = {
    DTYPES["bfloat16"]: _Rule(2.0, 1.25, 2.0**-9),
    DTYPES["float16"]: _Rule(2.0, 1.25, 2.0**-11),
    DTYPES["float32"]: _Rule(4.0, 4.0, 2.0**-24),
    DTYPES["float64"]: _Rule(4.0, 4.0, 2.0**-53),
}


def error(actual: Array, exact: Array) -> Error:
    """The relative error of ``actual``; infinite where only one of the two is finite."""
    errors = _errors(actual, exact)
    if errors.size == 0:
        return Error(0.0, 0.0)
    return Error(float(errors.max()), float(np.sqrt(np.mean(np.square(errors)))))


def tolerance(exact: Array, plain: Array, dtype: np.dtype[Any]) -> Error:
    """The largest error that a result of ``dtype`` may have.

    Args:
        exact: the reference's result in float64.
        plain: the reference's result in ``dtype``.
        dtype: a floating dtype of :data:`cugraphs.kernel.DTYPES`.

    Raises:
        TypeError: there is no tolerance for ``dtype``.
    """
    if dtype not in _RULES:
        known = ", ".join(str(d) for d in _RULES)
        raise TypeError(f"tolerance: dtype is {dtype}, expected one of {known}")
    rule, found = _RULES[dtype], error(plain, exact)
    return Error(
        rule.max_factor * found.max + rule.unit, rule.rms_factor * found.rms + rule.unit / 32
    )


def check_close(actual: Array, exact: Array, plain: Array, dtype: np.dtype[Any]) -> None:
    """Refuse a result further from ``exact`` than :func:`tolerance`; integers must be equal.

    Args:
        actual: the result to judge.
        exact: the reference's result in float64.
        plain: the reference's result in ``dtype``.
        dtype: of the result.

    Raises:
        AssertionError: shape or dtype differs, or the error is too large; the message shows the
            worst element.
    """
    if actual.shape != exact.shape or actual.dtype != dtype:
        raise AssertionError(
            f"check_close: the result is {actual.dtype}{list(actual.shape)}, "
            f"expected {dtype}{list(exact.shape)}"
        )
    if dtype.kind in "iu":
        wrong = np.argwhere(actual != exact)
        if len(wrong):
            at = tuple(wrong[0].tolist())
            raise AssertionError(
                f"check_close: {len(wrong)} of {counted(actual.size, 'element')} differ, "
                f"first at {list(at)}: {actual[at]}, expected {exact[at]}"
            )
        return
    allowed, found = tolerance(exact, plain, dtype), error(actual, exact)
    if found.max <= allowed.max and found.rms <= allowed.rms:
        return
    at = np.unravel_index(int(_errors(actual, exact).argmax()), actual.shape)
    raise AssertionError(
        f"check_close: error is {found.max:.3g} at most and {found.rms:.3g} rms, expected at most "
        f"{allowed.max:.3g} and {allowed.rms:.3g} ({dtype}); worst at {[int(i) for i in at]}: "
        f"{float(actual[at]):.9g}, exact {float(exact[at]):.9g}, plain {float(plain[at]):.9g}"
    )


def _errors(actual: Array, exact: Array) -> Array:
    """Relative error of each element: 0 where both are the same infinity or both NaN."""
    found, wide = actual.astype(np.float64), exact.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    rms = np.sqrt(np.mean(np.square(finite))) if finite.size else 0.0
    with np.errstate(all="ignore"):
        errors: Array = np.abs(found - wide) / np.maximum(np.abs(wide), rms)
    errors[np.isnan(errors)] = np.inf
    errors[(found == wide) | (np.isnan(found) & np.isnan(wide))] = 0.0
    return errors
