"""Which row counts are captured, which one serves n rows, and which share a traced program.

Knows row counts only: no model, no device, no memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from cugraphs.counted import counted

OffLadder = Literal["split", "eager", "error"]


@dataclass(frozen=True)
class _Profile:
    """``sizes``, then on from the last one by ``stride``."""

    sizes: tuple[int, ...]
    stride: int


_PROFILES: Mapping[str, _Profile] = {
    # Powers of two: few graphs, and less than half of a rung is padding.
    "default": _Profile((1, 2, 4, 8, 16, 32, 64, 128), 64),
    # Small batches: above 8 rows less than a third of a rung is padding.
    "latency": _Profile((1, 2, 4, 8, 12, 16, 24, 32, 48, 64), 16),
    # Large batches, where padding rows are computed at a price.
    "throughput": _Profile((1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256), 64),
    # vLLM's capture sizes: 51 of them up to 512.
    "vllm": _Profile((1, 2, 4, *range(8, 256, 8), 256), 16),
}
PROFILES: tuple[str, ...] = tuple(_PROFILES)

# Kernels differ between 1 row, 2, rows to 8, to 16, to 64, to 256, and more.
CLASS_ROWS = (1, 2, 8, 16, 64, 256)

_MAX_TOKEN_RUNG = 512
_MAX_TOKEN_RUNG_BLACKWELL = 1024  # what vLLM takes on data-centre Blackwell
_TOKEN_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


class Ladder:
    """The ordered row counts (rungs) that a step is captured at, and what happens above them."""

    def __init__(
        self,
        max_rows: int,
        rungs: str | Sequence[int] = "default",
        *,
        max_capture_size: int | None = None,
        off_ladder: OffLadder = "split",
    ) -> None:
        """A profile, clipped to ``max_capture_size`` or continued up to it; or a list of rungs.

        Args:
            max_rows: rows of the largest batch (``max_num_seqs``).
            rungs: the name of a profile, or row counts. A list is sorted and stripped of
                duplicates, and not continued: nothing is added but ``max_capture_size``.
            max_capture_size: the top rung; None is ``max_rows``. Only a smaller one leaves batches
                above the ladder.
            off_ladder: what a batch above the top rung does: "split" into several replays, run
                "eager", or be an "error".

        Raises:
            TypeError: a rung or a size is no integer.
            ValueError: it is out of range, or no such profile or ``off_ladder``.
        """
        top = max_rows if max_capture_size is None else max_capture_size
        _check_size("max_rows", max_rows, 1, None)
        _check_size("max_capture_size", top, 1, max_rows)
        if off_ladder not in get_args(OffLadder):
            raise ValueError(
                f"Ladder: off_ladder is {off_ladder!r}, "
                f"expected one of {', '.join(get_args(OffLadder))}"
            )
        below = _profile_sizes(rungs, top) if isinstance(rungs, str) else _listed_sizes(rungs, top)
        self.max_rows = max_rows
        self.off_ladder: OffLadder = off_ladder
        self.rungs: tuple[int, ...] = tuple(sorted({*below, top}))
        # The largest row count of each fusion class: those at which a program is traced.
        tops = {self._largest_to(bound) for bound in (*CLASS_ROWS, max_rows)}
        self.classes: tuple[int, ...] = tuple(sorted(tops - {0}))

    @property
    def top(self) -> int:
        """The largest rung."""
        return self.rungs[-1]

    def rung_for(self, rows: int) -> int:
        """The smallest rung that holds ``rows`` rows.

        Raises:
            ValueError: ``rows`` is below 1 or above the top rung.
        """
        if not 1 <= rows <= self.top:
            raise ValueError(f"Ladder: rows is {rows}, expected 1 to {self.top}")
        return self.rungs[bisect_left(self.rungs, rows)]

    def class_for(self, rows: int) -> int:
        """The row count at which the program that runs ``rows`` rows is traced.

        Raises:
            ValueError: ``rows`` is neither a rung nor a batch that runs eagerly.
        """
        if not (rows in self.rungs or self._is_eager(rows)):
            raise ValueError(f"Ladder: {rows} is not a rung, expected one of {list(self.rungs)}")
        return self.classes[bisect_left(self.classes, rows)]

    def dispatch(self, rows: int) -> tuple[int, ...]:
        """The row counts of the replays that serve a batch; none where it runs eagerly.

        A batch above the top rung is split into as few replays as can hold it, the first ones full:
        each reads all weights once more, and only the last one is padded.

        Raises:
            ValueError: ``rows`` is below 1 or above ``max_rows``, or above the top rung where
                ``off_ladder`` is "error".
        """
        if not 1 <= rows <= self.max_rows:
            raise ValueError(f"Ladder: rows is {rows}, expected 1 to {self.max_rows}")
        if self._is_eager(rows):
            return ()
        if rows > self.top and self.off_ladder == "error":
            raise ValueError(
                f"Ladder: a batch has {counted(rows, 'row')}, expected at most {self.top}; raise "
                'max_capture_size, or set off_ladder to "split" or "eager"'
            )
        full, rest = divmod(rows, self.top)
        return (self.top,) * full + (rest,) * (rest > 0)

    def worst_padding(self) -> tuple[int, int]:
        """The (rows, rung) of which padding takes the largest share; the fewest rows of several."""
        starts = (1, *(rung + 1 for rung in self.rungs[:-1]))
        pairs = zip(starts, self.rungs, strict=True)
        return max(pairs, key=lambda pair: (1 - pair[0] / pair[1], -pair[0]))

    def mean_padding(self) -> float:
        """Padding's share of all rows computed, over batches of 1 to the top rung, each once."""
        live = self.top * (self.top + 1) // 2
        computed = sum(
            rung * (rung - below)
            for below, rung in zip((0, *self.rungs[:-1]), self.rungs, strict=True)
        )
        return 1 - live / computed

    def _is_eager(self, rows: int) -> bool:
        return self.off_ladder == "eager" and self.top < rows <= self.max_rows

    def _largest_to(self, bound: int) -> int:
        """The largest row count up to ``bound`` at which something runs, 0 if there is none."""
        if self._is_eager(min(bound, self.max_rows)):
            return min(bound, self.max_rows)
        return max((rung for rung in self.rungs if rung <= bound), default=0)


def token_ladder(
    max_num_seqs: int,
    max_num_batched_tokens: int,
    *,
    data_centre_blackwell: bool = False,
    most: int | None = None,
) -> Ladder:
    """The token counts at which the segments of a mixed step are captured, at most 16 of them.

    Powers of two, and from 32 on what lies halfway: above 32 tokens less than a third is padding.
    They go up to vLLM's limit, min(2 * max_num_seqs, 512, max_num_batched_tokens); 1,024 in place
    of 512 on data-centre Blackwell (sm_100); or up to ``most``, if that is less. Larger steps run
    eagerly.

    Raises:
        TypeError, ValueError: an argument is no positive integer.
    """
    _check_size("max_num_seqs", max_num_seqs, 1, None)
    _check_size("max_num_batched_tokens", max_num_batched_tokens, 1, None)
    limit = _MAX_TOKEN_RUNG_BLACKWELL if data_centre_blackwell else _MAX_TOKEN_RUNG
    top = min(2 * max_num_seqs, limit, max_num_batched_tokens, most or limit)
    sizes = [size for size in _TOKEN_SIZES if size <= top]
    return Ladder(max_num_batched_tokens, sizes, max_capture_size=top, off_ladder="eager")


def _profile_sizes(name: str, top: int) -> list[int]:
    """The sizes of a profile up to ``top``."""
    if name not in _PROFILES:
        raise ValueError(
            f"Ladder: profile is {name!r}, expected one of {', '.join(_PROFILES)}, or a list"
        )
    profile = _PROFILES[name]
    continued = range(profile.sizes[-1] + profile.stride, top + 1, profile.stride)
    return [size for size in (*profile.sizes, *continued) if size <= top]


def _listed_sizes(sizes: Sequence[int], top: int) -> list[int]:
    """An explicit list, checked."""
    listed = list(sizes)
    for size in listed:
        _check_size("a rung", size, 1, top)
    return listed


def _check_size(name: str, value: object, least: int, most: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"Ladder: {name} is {value!r}, expected an integer")
    if value < least or (most is not None and value > most):
        wanted = f"at least {least}" if most is None else f"{least} to {most}"
        advice = "; leave it out, or raise the largest batch" if most and value > most else ""
        raise ValueError(f"Ladder: {name} is {value}, expected {wanted}{advice}")
