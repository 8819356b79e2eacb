"""Which decode buckets exist, which one serves n rows, and which share a traced program."""

from __future__ import annotations

from bisect import bisect_left

_POWERS = (1, 2, 4, 8, 16, 32, 64, 128)
_STRIDE = 64  # the last stride of the powers continues above 128
_CLASS_ROWS = (1, 8, 64)  # kernels differ between 1, 2 to 8, 9 to 64, and more rows


class Ladder:
    """The ordered bucket sizes (rungs) of decode steps."""

    def __init__(self, max_rows: int) -> None:
        """Powers of two up to 128, then every 64, up to ``max_rows``, which is always a rung.

        Raises:
            ValueError: ``max_rows`` is below 1.
        """
        if max_rows < 1:
            raise ValueError(f"Ladder: max_rows is {max_rows}, expected at least 1")
        rungs = [rung for rung in _POWERS if rung < max_rows]
        rungs += range(_POWERS[-1] + _STRIDE, max_rows, _STRIDE)
        self.rungs: tuple[int, ...] = (*rungs, max_rows)
        # The largest rung of each fusion class: the row counts at which a program is traced.
        tops = {max(rung for rung in self.rungs if rung <= top) for top in _CLASS_ROWS}
        self.classes: tuple[int, ...] = tuple(sorted({*tops, max_rows}))

    def rung_for(self, rows: int) -> int:
        """The smallest rung that holds ``rows`` rows.

        Raises:
            ValueError: ``rows`` is below 1 or above the top rung.
        """
        if not 1 <= rows <= self.rungs[-1]:
            raise ValueError(f"Ladder: rows is {rows}, expected 1 to {self.rungs[-1]}")
        return self.rungs[bisect_left(self.rungs, rows)]

    def class_for(self, rung: int) -> int:
        """The row count at which the program that serves ``rung`` is traced.

        Raises:
            ValueError: ``rung`` is not one of the rungs.
        """
        if rung not in self.rungs:
            raise ValueError(f"Ladder: {rung} is not a rung, expected one of {list(self.rungs)}")
        return self.classes[bisect_left(self.classes, rung)]
