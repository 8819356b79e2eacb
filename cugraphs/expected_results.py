"""What a kernel must compute for given inputs, and how far another run of it may be from that.

Knows references and the tolerance; not where or how the other run was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cugraphs.kernel import DTYPES, Access, Array, Kernel, Operand
from cugraphs.tolerance import Error, check_close, error, tolerance


@dataclass(frozen=True)
class Judgement:
    """Errors of the operand that used most of its tolerance; ``problem`` is empty if all pass."""

    found: Error
    allowed: Error
    problem: str = ""


class ExpectedResults:
    """The reference's results for some inputs, in float64 and in the operands' dtype."""

    def __init__(self, kernel: Kernel, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> None:
        """Run the reference twice; ``arrays`` are the UPDATE and READ operands."""
        self._kernel = kernel
        wide = [
            array.astype(DTYPES["float64"]) if operand.dtype == "T" else array
            for operand, array in zip(kernel.supplied, arrays, strict=False)
        ]
        self._exact = self._results(wide, attrs)
        self._plain = self._results(arrays, attrs)

    def judge(self, produced: Sequence[Array], supplied: Sequence[Array]) -> Judgement:
        """Compare another run.

        Args:
            produced: its WRITE results.
            supplied: its UPDATE and READ arrays, as it left them.
        """
        worst = Judgement(Error(0.0, 0.0), Error(0.0, 0.0))
        used = 0.0
        actual = self._written([*produced, *supplied])
        for (operand, array), (_, exact), (_, plain) in zip(
            actual, self._exact, self._plain, strict=True
        ):
            try:
                check_close(array, exact, plain, plain.dtype)
            except AssertionError as problem:
                worst = Judgement(worst.found, worst.allowed, f"{operand.name}: {problem}")
            if array.shape != exact.shape or plain.dtype.kind in "iu":
                continue
            found, allowed = error(array, exact), tolerance(exact, plain, plain.dtype)
            share = max(found.max / allowed.max, found.rms / allowed.rms)
            if share >= used:
                used, worst = share, Judgement(found, allowed, worst.problem)
        return worst

    def _results(
        self, arrays: Sequence[Array], attrs: Mapping[str, Any]
    ) -> list[tuple[Operand, Array]]:
        given = [array.copy() for array in arrays]
        with np.errstate(all="ignore"):
            produced = self._kernel.reference(*given, **attrs)
        return self._written([*produced, *given])

    def _written(self, arrays: Sequence[Array]) -> list[tuple[Operand, Array]]:
        """The results of a kernel, of all operands in declaration order."""
        pairs = zip(self._kernel.operands, arrays, strict=False)
        return [(o, a) for o, a in pairs if o.access is not Access.READ and not o.scratch]
