"""Draws a step on the GPU's clock: every launch, and one layer block by block. Needs ``plot``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cugraphs.figure_file import GRID, INK, new_figure, save_figure
from cugraphs.kernel import Array
from cugraphs.step_timeline import Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = (
    *("#5b8fc9", "#e0a458", "#86b36b", "#cf6f55", "#a98bc4", "#5fb3b3", "#d98cab"),
    *("#b5a642", "#8c7a6b", "#9fc3e7", "#c9d98f", "#f0c9a0", "#7a8b99", "#2f4b5c"),
)
_WAITING = "#d8dde1"


def draw_timeline(spans: Sequence[Span], title: str, file: Path) -> None:
    """Draw the step's launches by kernel, or phase; below, one layer's blocks by multiprocessor.

    Args:
        spans: of one replay, in order.
        title: of the picture.
        file: to write.

    Raises:
        RuntimeError: matplotlib is not installed.
        ValueError: the name of ``file`` ends in no format of a picture.
    """
    labels = list(dict.fromkeys(span.label for span in spans))
    colours = {label: _COLOURS[i % len(_COLOURS)] for i, label in enumerate(labels)}
    figure = new_figure(15, 10)
    whole, layer = figure.subplots(2, 1, height_ratios=(2, 3))
    _draw_launches(whole, spans, colours)
    _draw_blocks(layer, middle_layer(spans), colours)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    save_figure(figure, file)


def middle_layer(spans: Sequence[Span]) -> list[Span]:
    """The spans from an op in the middle of the step to the next one of its kernel.

    The kernel is the one before which most time of the step is spent again and again: attention in
    a model's step, and any other that runs once a layer would do. Of an op that has phases, it is
    from its first one on.
    """
    places: dict[str, list[int]] = {}
    for place, span in enumerate(spans):
        if span.launch is not None and (place == 0 or spans[place - 1].op != span.op):
            places.setdefault(span.label, []).append(place)
    often = [found for kernel, found in places.items() if len(found) > 1]
    if not often:
        return list(spans)
    chosen = next((f for k, f in places.items() if "attention" in k and len(f) > 1), often[0])
    middle = (len(chosen) - 1) // 2
    return list(spans[chosen[middle] : chosen[middle + 1]])


def lanes_of(stamps: Array) -> Array:
    """Where each block lies in the row of its multiprocessor, float64 [2, blocks] of 0 to 1.

    Blocks that are there at the same time lie beside each other.
    """
    lane = np.zeros(len(stamps), np.int64)
    for multiprocessor in np.unique(stamps["multiprocessor"]):
        free_at: list[int] = []  # when the last block of each lane has ended
        own = np.flatnonzero(stamps["multiprocessor"] == multiprocessor)
        for block in own[np.argsort(stamps["waits_ns"][own], kind="stable")].tolist():
            come, end = int(stamps["waits_ns"][block]), int(stamps["ends_ns"][block])
            free = [index for index, at in enumerate(free_at) if at <= come]
            if free:
                lane[block] = free[0]
                free_at[free[0]] = end
            else:
                lane[block] = len(free_at)
                free_at.append(end)
    lanes = lane.max() + 1
    return np.stack([lane / lanes, (lane + 1) / lanes])


def _draw_launches(axes: Axes, spans: Sequence[Span], colours: dict[str, str]) -> None:
    total = max(span.end_us for span in spans)
    taken = dict.fromkeys(colours, 0.0)
    for row, (label, colour) in enumerate(colours.items()):
        own = [span for span in spans if span.label == label]
        taken[label] = sum(span.us for span in own)
        bars = [(span.begin_us, span.us) for span in own]
        axes.broken_barh(  # edges too, or the shortest bars would not show
            bars, (row - 0.4, 0.8), facecolors=colour, edgecolors=colour, linewidth=0.4
        )
    axes.set_yticks(
        range(len(taken)), [f"{k}  {us:,.0f} us" for k, us in taken.items()], fontsize=9
    )
    axes.set_xlim(0, total)
    axes.set_ylim(len(taken) - 0.5, -0.5)
    axes.set_xlabel("us", color=INK)
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)
    axes.set_title(
        "every launch, or its phases; what is not ours fills the time between",
        loc="left",
        fontsize=10,
    )


def _draw_blocks(axes: Axes, spans: Sequence[Span], colours: dict[str, str]) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    start = min(span.begin_us for span in spans)
    end = max(span.end_us for span in spans)
    highest = 0
    ours = [span for span in spans if span.launch is not None]
    for span in spans:
        if span.launch is None:
            axes.axvspan(
                span.begin_us - start, span.end_us - start, color=colours[span.label], alpha=0.35
            )
    for span in ours:
        assert span.launch is not None
        stamps = span.launch.stamps
        last = stamps["ends_ns"].max()  # with which the span ends
        comes, goes, ends = (
            (span.end_us - start) - (last - stamps[name]).astype(np.float64) / 1e3
            for name in ("waits_ns", "goes_on_ns", "ends_ns")
        )
        y = stamps["multiprocessor"] + lanes_of(stamps)
        highest = max(highest, int(stamps["multiprocessor"].max()) + 1)
        for left, right, colour in (
            (comes, goes, _WAITING),
            (goes, ends, colours[span.label]),
        ):
            boxes = np.stack([left, right, right, left, y[0], y[0], y[1], y[1]], -1)
            corners = boxes.reshape(-1, 2, 4).transpose(0, 2, 1)
            axes.add_collection(PolyCollection(list(corners), facecolors=colour, linewidths=0))
    axes.set_xlim(0, end - start)
    axes.set_ylim(highest, 0)
    axes.set_xlabel("us", color=INK)
    axes.set_ylabel("multiprocessor", color=INK)
    named = dict.fromkeys(span.label for span in spans)
    patches = [Patch(color=colours[label], label=label) for label in named]
    axes.legend(
        handles=[*patches, Patch(color=_WAITING, label="waits for what is before")],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        fontsize=8,
        frameon=False,
    )
    axes.set_title("one layer, block by block", loc="left", fontsize=10)
