"""Draws a start as a waterfall: a bar a phase, from its beginning to its end. Needs ``plot``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cugraphs.figure_file import GRID, INK, new_figure, save_figure
from cugraphs.start_bench import Phase, Start

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAIN, _THREAD, _WHOLE = "#24527f", "#e0a458", "#cfd6db"


def draw_starts(starts: Sequence[tuple[str, Start]], title: str, file: Path) -> None:
    """Draw each start with its name, one below the other, on one scale.

    Raises:
        RuntimeError: matplotlib is not installed.
        ValueError: the name of ``file`` ends in no format of a picture.
    """
    heights = [len(start.phases) + 2 for _, start in starts]
    figure = new_figure(12, 0.27 * sum(heights) + 0.8)
    rows = figure.subplots(len(starts), 1, height_ratios=heights, squeeze=False, sharex=True)
    for axes, (name, start) in zip(rows[:, 0], starts, strict=True):
        _draw(axes, name, start)
    longest = max(start.first_token_ms for _, start in starts)
    rows[-1, 0].set_xlim(0, longest * 1.12)
    rows[-1, 0].set_xlabel("ms since the process was asked for")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=INK)
    save_figure(figure, file)


def _draw(axes: Axes, name: str, start: Start) -> None:
    for row, phase in enumerate(start.phases):
        axes.barh(
            row,
            phase.end_ms - phase.begin_ms,
            left=phase.begin_ms,
            color=_colour(phase, start),
            height=0.7,
        )
        axes.text(phase.end_ms, row, f" {_milliseconds(phase)}", va="center", fontsize=8, color=INK)
    labels = [f"{p.name} (x{p.count})" if p.count > 1 else p.name for p in start.phases]
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(start.first_token_ms, color=INK, linewidth=0.8, linestyle="--")
    axes.set_title(
        f"{name}: first token after {start.first_token_ms:,.0f} ms", loc="left", fontsize=10
    )
    axes.grid(visible=True, axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _colour(phase: Phase, start: Start) -> str:
    """Light where other phases of the main thread lie inside; another where it is not the main."""
    if phase.in_thread:
        return _THREAD
    inside = (
        other
        for other in start.phases
        if other is not phase
        and not other.in_thread
        and phase.begin_ms <= other.begin_ms
        and other.end_ms <= phase.end_ms
    )
    return _WHOLE if any(inside) else _MAIN


def _milliseconds(phase: Phase) -> str:
    return f"{phase.end_ms - phase.begin_ms:,.0f} ms"
