"""Draws what lives where in the arena, and when: offsets against ops. Needs the extra ``plot``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cugraphs.arena import Arena
from cugraphs.counted import counted
from cugraphs.figure_file import INK, new_figure, save_figure
from cugraphs.interpreter import TEMPORARIES
from cugraphs.memory_map import Box

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"input": "#7a8b99", "output": "#2f4b5c", "workspace": "#e3dccb"}
_TEMPORARY_COLOURS = (
    *("#5b8fc9", "#e0a458", "#86b36b", "#cf6f55", "#a98bc4", "#5fb3b3", "#d98cab"),
    *("#b5a642", "#8c7a6b", "#9fc3e7", "#c9d98f", "#f0c9a0"),
)
_CHARACTERS = 75  # of a label that fill the width of a panel
_LINE_HEIGHT = 0.026  # of a label, of the height of a panel
_MOST_LABELS = 12


@dataclass(frozen=True)
class _Unit:
    name: str
    nbytes: int


_KIB, _MIB = _Unit("KiB", 1 << 10), _Unit("MiB", 1 << 20)


@dataclass(frozen=True)
class Panel:
    """One program: what it is called, what else is to be said of it, and its boxes."""

    title: str
    note: str
    boxes: Sequence[Box]


def draw_memory(panels: Sequence[Panel], arena: Arena, title: str, file: Path) -> None:
    """Draw each program in a row: the whole step, and beside it the ops of one layer.

    Raises:
        RuntimeError: matplotlib is not installed.
        ValueError: the name of ``file`` ends in no format of a picture.
    """
    colours = _colours_of(box.kind for panel in panels for box in panel.boxes)
    figure = new_figure(15, 5.2 * len(panels) + 0.8)
    grid = figure.subplots(len(panels), 2, width_ratios=(3, 2), squeeze=False)
    for (whole, layer), panel in zip(grid, panels, strict=True):
        ops = max(box.last_op for box in panel.boxes) + 1
        top = max(box.offset + box.nbytes for box in panel.boxes)
        unit = _unit_for(top)
        _draw(whole, panel.boxes, colours, (0, ops), (0, top), unit)
        _draw_regions(whole, arena, top, unit)
        whole.set_title(
            f"{panel.title}: {counted(ops, 'op')}\n{panel.note}", loc="left", fontsize=10
        )
        first, last = _middle_layer(panel.boxes, ops)
        near = [box for box in panel.boxes if first <= box.first_op and box.last_op <= last + 1]
        near = [box for box in near if box.kind not in _COLOURS]
        start = arena.regions[TEMPORARIES].offset
        end = max((box.offset + box.nbytes for box in near), default=top)
        _draw(layer, panel.boxes, colours, (first, last + 1), (start, end), _unit_for(end - start))
        layer.set_title(f"one layer's temporaries: ops {first} to {last}", loc="left", fontsize=10)
    _draw_legend(figure, colours)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    save_figure(figure, file)


def _unit_for(nbytes: int) -> _Unit:
    return _MIB if nbytes >= 2 * _MIB.nbytes else _KIB


def _draw(
    axes: Axes,
    boxes: Sequence[Box],
    colours: Mapping[str, str],
    ops: tuple[int, int],
    offsets: tuple[int, int],
    unit: _Unit,
) -> None:
    """The boxes that meet these ops and offsets, and the names of the largest."""
    from matplotlib.patches import Rectangle

    low, high = (offset / unit.nbytes for offset in offsets)
    axes.set_xlim(*ops)
    axes.set_ylim(low, low + (high - low) * 1.03)
    axes.set_xlabel("op")
    axes.set_ylabel(f"offset in the arena, {unit.name}")
    axes.spines[["top", "right"]].set_visible(False)
    labelled: set[str] = set()
    for box in sorted(boxes, key=lambda box: -box.nbytes * (box.last_op - box.first_op + 1)):
        left, right = max(box.first_op, ops[0]), min(box.last_op + 1, ops[1])
        bottom = max(box.offset / unit.nbytes, low)
        top = min((box.offset + box.nbytes) / unit.nbytes, high)
        if left >= right or bottom >= top:
            continue
        width, height = right - left, top - bottom
        colour = colours[box.kind]
        axes.add_patch(Rectangle((left, bottom), width, height, fc=colour, ec="white", lw=0.4))
        if box.label not in labelled and len(labelled) < _MOST_LABELS:
            share = (width / (ops[1] - ops[0]), height / (high - low))
            if _write_label(axes, box, unit, (left, bottom, width, height), share):
                labelled.add(box.label)


def _write_label(
    axes: Axes,
    box: Box,
    unit: _Unit,
    where: tuple[float, float, float, float],
    share: tuple[float, float],
) -> bool:
    """Write the name and size into a box, beside a box that is large but narrow, or not at all.

    Args:
        axes: of the panel.
        box: whose name it is.
        unit: of its size.
        where: left, bottom, width and height of what is drawn of it.
        share: of the panel's width and height.
    """
    left, bottom, width, height = where
    size = f"{box.nbytes / unit.nbytes:,.3g} {unit.name}"
    lines = [*_folded(box.label, round(share[0] * _CHARACTERS)), size]
    if share[1] < _LINE_HEIGHT * len(lines) or len(lines) > 3:
        lines = [f"{box.label}, {size}"]
    fits = max(map(len, lines)) <= share[0] * _CHARACTERS and share[1] >= _LINE_HEIGHT * len(lines)
    style: dict[str, Any] = {"va": "center", "fontsize": 7.5, "color": INK}
    middle = bottom + height / 2
    if fits:
        axes.text(left + width / 2, middle, "\n".join(lines), ha="center", **style)
        return True
    if share[1] < 0.25 or share[0] > 0.08:
        return False
    to_left = left > sum(axes.get_xlim()) / 2
    at = (left, "right") if to_left else (left + width, "left")
    back = {"boxstyle": "square,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.85}
    text = f"{box.label}, {size}"
    axes.text(at[0], middle, text, ha=at[1], zorder=5, bbox=back, **style)
    return True


def _folded(label: str, width: int) -> list[str]:
    """A name in lines of at most ``width`` characters where "_" and "." allow it."""
    lines = [""]
    for part in re.findall(r"[^_.]*[_.]?", label):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return lines


def _draw_regions(axes: Axes, arena: Arena, top: int, unit: _Unit) -> None:
    """The borders of the arena's regions, and the names of the large ones, at the right edge.

    Inputs are one, and so are outputs.
    """
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    for region in arena.regions.values():
        name = region.name.partition("/")[0]
        begins.setdefault(name, region.offset)
        ends[name] = min(region.offset + region.nbytes, top)
    for name, begin in begins.items():
        axes.axhline(begin / unit.nbytes, color=INK, linewidth=0.6, linestyle=":")
        if ends[name] - begin > 0.1 * top:
            where = (1.005, (begin + ends[name]) / 2 / unit.nbytes)
            transform = axes.get_yaxis_transform()
            axes.text(*where, name, transform=transform, rotation=90, va="center", fontsize=8)


def _draw_legend(figure: Figure, colours: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(color=colour, label=kind if kind in _COLOURS else f"by {kind}")
        for kind, colour in colours.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=7, frameon=False, fontsize=9)


def _colours_of(kinds: Iterable[str]) -> dict[str, str]:
    """A colour for each kind, in order of appearance; the same kernel has one in every panel."""
    found = dict.fromkeys(kinds)
    fixed = {kind: colour for kind, colour in _COLOURS.items() if kind in found}
    kernels = [kind for kind in found if kind not in fixed]
    return fixed | dict(zip(kernels, itertools.cycle(_TEMPORARY_COLOURS), strict=False))


def _middle_layer(boxes: Sequence[Box], ops: int) -> tuple[int, int]:
    """First and last op of a layer in the middle: from one attention to before the next."""
    starts = sorted(box.first_op for box in boxes if "attention" in box.kind)
    if len(starts) < 2:
        return 0, ops - 1
    middle = (len(starts) - 1) // 2
    return starts[middle], starts[middle + 1] - 1
