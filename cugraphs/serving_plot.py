"""Draws serving runs: tokens over time, latencies, steps by rung. Needs the extra ``plot``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cugraphs.figure_file import GRID, INK, new_figure, save_figure
from cugraphs.serving_bench import ServingResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#3f78b5", "#cf6f55", "#5fa777", "#d9a441", "#a98bc4", "#7a8b99")
_BINS = 60
Labelled = Sequence[tuple[str, ServingResult]]


def draw_serving(labelled: Labelled, title: str, file: Path) -> None:
    """Draw each run in a colour of its own.

    Raises:
        RuntimeError: matplotlib is not installed.
        ValueError: the name of ``file`` ends in no format of a picture.
    """
    figure = new_figure(15, 9)
    grid = figure.subplots(2, 3)
    _draw_rates(grid[0, 0], labelled, "generated")
    _draw_rates(grid[0, 1], labelled, "prompt")
    _draw_steps(grid[0, 2], labelled)
    for axes, key, name in zip(
        grid[1],
        ("ttft_s", "tpot_s", "end_to_end_s"),
        ("time to first token", "time per output token", "end to end"),
        strict=True,
    ):
        _draw_shares(axes, labelled, key, name)
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
    handles, labels = grid[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    save_figure(figure, file)


def _draw_rates(axes: Axes, labelled: Labelled, kind: str) -> None:
    """Tokens a second over the run, of prompts or of answers."""
    for (_, result), colour in zip(labelled, _cycled(labelled), strict=True):
        if not result.steps or not result.seconds:
            continue
        ends = [step.end_s for step in result.steps]
        counts = [getattr(step, f"{kind}_tokens") for step in result.steps]
        sums, edges = np.histogram(ends, _BINS, (0.0, result.seconds), weights=counts)
        axes.stairs(sums / np.diff(edges), edges, color=colour, linewidth=1.6)
    axes.set_title(f"{kind} tokens/s over the run", loc="left", fontsize=11)
    axes.set_xlabel("seconds")
    axes.set_ylim(bottom=0)


def _draw_steps(axes: Axes, labelled: Labelled) -> None:
    """How many steps ran at each rung, and how many eagerly."""
    counters = [result.counters for _, result in labelled]
    rungs = sorted({rung for one in counters for rung in one["replays"]})
    width = 0.8 / len(labelled)
    for index, (one, colour) in enumerate(zip(counters, _cycled(labelled), strict=True)):
        heights = [one["replays"].get(rung, 0) for rung in rungs] + [
            sum(one["eager_steps"].values())
        ]
        places = np.arange(len(heights)) - 0.4 + (index + 0.5) * width
        axes.bar(places, heights, width, color=colour)
    many = len(rungs) > 10
    axes.set_xticks(
        range(len(rungs) + 1),
        [*map(str, rungs), "eager"],
        rotation=90 if many else 0,
        fontsize=7 if many else 10,
    )
    axes.set_title("steps by rung", loc="left", fontsize=11)
    axes.set_xlabel("rows of the replayed graph")


def _draw_shares(axes: Axes, labelled: Labelled, key: str, name: str) -> None:
    """The share of requests that took at most so long; p50, p90 and p99 are marked."""
    for (label, result), colour in zip(labelled, _cycled(labelled), strict=True):
        values = [getattr(answer, key) for answer in result.answers]
        known = np.sort([value * 1e3 for value in values if value is not None])
        shares = np.arange(1, len(known) + 1) / max(len(known), 1) * 100
        axes.step(known, shares, where="post", color=colour, linewidth=1.8, label=label)
    for share in (50, 90, 99):
        axes.axhline(share, color=INK, linewidth=0.6, linestyle=":")
    axes.set_yticks([0, 25, 50, 75, 90, 99], ["0", "25", "p50", "75", "p90", "p99"])
    axes.set_ylim(0, 101)
    axes.set_title(f"{name}: share of requests", loc="left", fontsize=11)
    axes.set_xlabel("ms")


def _cycled(labelled: Labelled) -> list[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(len(labelled))]
