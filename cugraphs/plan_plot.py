"""Draws a plan: step bound, padding of the ladders, its price, memory. Needs the extra ``plot``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cugraphs.counted import counted
from cugraphs.figure_file import GRID, INK, new_figure, save_figure
from cugraphs.ladder import PROFILES, Ladder
from cugraphs.plan_report import PlanReport
from cugraphs.step_bound import bound_step, price_padding

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CONTEXT_COLOURS = ("#a9c6e3", "#6f9fd0", "#3f78b5", "#24527f", "#12304d", "#081824")
_PROFILE_COLOURS = dict(zip(PROFILES, ("#cf6f55", "#5fa777", "#d9a441", "#5b7fc9"), strict=True))
_MEMORY_COLOURS = {
    "weights": "#5b7fc9",
    "KV pool": "#5fa777",
    "sequence state": "#a98bc4",
    "arena": "#d9a441",
    "graphs": "#cf6f55",
    "free": "#e4e7ea",
}
_TICKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def draw_plan(name: str, report: PlanReport, file: Path) -> None:
    """Draw ``report`` of the model called ``name``.

    Raises:
        RuntimeError: matplotlib is not installed.
        ValueError: the name of ``file`` ends in no format of a picture.
    """
    figure = new_figure(15, 10.5)
    grid = figure.add_gridspec(3, 2, height_ratios=(5, 5, 1.5))
    _draw_bound(figure.add_subplot(grid[0, 0]), report)
    _draw_price(figure.add_subplot(grid[0, 1]), report)
    _draw_padding(figure.add_subplot(grid[1, 0]), report)
    _draw_profiles(figure.add_subplot(grid[1, 1]), report)
    _draw_memory(figure.add_subplot(grid[2, :]), report)
    gpu = report.target.gpu
    figure.suptitle(
        f"{name}, {report.dtype}, on {gpu.name}: {gpu.read_bytes_per_s / 1e12:.4g} TB/s, "
        f"{gpu.flops_per_s / 1e12:.4g} TFLOP/s. Lower bounds of this project's program.",
        x=0.01,
        ha="left",
        fontsize=13,
    )
    save_figure(figure, file)


def _draw_bound(axes: Axes, report: PlanReport) -> None:
    """The bound of a step by rows, a line a context, and what bounds it."""
    target, work = report.target, report.streamed.work
    rows = _row_counts(target.max_num_seqs)
    for context, colour in zip(target.contexts, _CONTEXT_COLOURS, strict=False):
        fits = [n for n in rows if n * context <= report.capacity.num_tokens]
        bounds = [
            bound_step(work, target.gpu, rows=n, rung=n, context=context).total_ms for n in fits
        ]
        axes.plot(
            fits, bounds, color=colour, linewidth=2, label=f"{counted(context, 'token')} a row"
        )
        if fits and fits[-1] < rows[-1]:
            axes.plot(fits[-1:], bounds[-1:], "o", color=colour, markersize=5)
    padded = report.streamed.padded
    linear = [bound_step(work, target.gpu, rows=n, rung=n, context=0).linear_ms for n in rows]
    axes.axhline(padded.weight_ms, color=INK, linestyle="--", linewidth=1, label="weight read")
    axes.plot(rows, linear, color=INK, linestyle=":", linewidth=1.2, label="linear compute")
    launches = report.streamed.launches.total_ms
    text = f"{counted(work.launches, 'launch', 'launches')} at {target.host.launch_us:g} us"
    axes.axhline(launches, color="#cf6f55", linestyle="-.", linewidth=1.2, label=text)
    axes.plot(
        [target.batch],
        [report.streamed.exact.total_ms],
        *("D",),
        color="#cf6f55",
        markersize=6,
        label=f"{counted(target.batch, 'row')} of {counted(target.context, 'token')}",
    )
    axes.set_yscale("log")
    low = min(launches, padded.weight_ms) / 8  # room for the legend
    axes.set_ylim(low, max(axes.get_ylim()[1], padded.weight_ms * 4))
    _log_rows(axes, target.max_num_seqs)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("ms a step")
    _title(axes, "Step bound by rows; a dot: more rows have no room for K and V")
    axes.legend(fontsize=8, edgecolor="white", framealpha=0.9, loc="lower left", ncols=2)


def _draw_price(axes: Axes, report: PlanReport) -> None:
    """What padding adds to each batch, by regime, on the chosen ladder."""
    target, work = report.target, report.streamed.work
    ladder = Ladder(target.max_num_seqs, target.profile)
    rows = range(1, target.max_num_seqs + 1)
    prices = [
        price_padding(work, target.gpu, rows=n, rung=ladder.rung_for(n), context=target.context)
        for n in rows
    ]
    tile = prices[0].tiles[-1].tile_rows
    axes.fill_between(
        rows,
        [price.compute_ms for price in prices],
        step="mid",
        color="#e7c9a0",
        label="if bound by linear compute, row by row",
    )
    axes.step(
        rows,
        [price.tiles[-1].added_ms for price in prices],
        where="mid",
        color="#a98bc4",
        linewidth=1,
        label=f"if bound by linear compute, in tiles of {counted(tile, 'row')}",
    )
    axes.step(
        rows,
        [price.added_ms for price in prices],
        where="mid",
        color="#24527f",
        linewidth=1.5,
        label="by the step's bound",
    )
    title = f"Price of padding, {target.profile} ladder"
    free_to = report.streamed.padding.compute_bound_from_rows
    if free_to < target.max_num_seqs:
        axes.axvline(free_to, color=INK, linewidth=0.8, linestyle="--")
        title += f"; from {counted(free_to, 'row')} on (dashed) compute is the bound"
    axes.set_xlim(0, target.max_num_seqs)
    highest = max(max(price.compute_ms, price.tiles[-1].added_ms) for price in prices)
    axes.set_ylim(0, max(highest, 1e-3) * 1.3)  # room for the legend
    axes.set_xlabel("live rows")
    axes.set_ylabel("ms a step")
    _title(axes, title)
    axes.legend(fontsize=8, edgecolor="white", framealpha=0.9, loc="upper left")
    _grid(axes)


def _draw_padding(axes: Axes, report: PlanReport) -> None:
    """Padding's share of the rows, a line a profile."""
    target = report.target
    rows = range(1, target.max_num_seqs + 1)
    for profile in PROFILES:
        ladder = Ladder(target.max_num_seqs, profile)
        shares = [100 * (1 - n / ladder.rung_for(n)) for n in rows]
        chosen = profile == target.profile
        axes.plot(
            rows,
            shares,
            color=_PROFILE_COLOURS[profile],
            linewidth=2.2 if chosen else 1.1,
            zorder=3 if chosen else 2,
            label=f"{profile}, {counted(len(ladder.rungs), 'size')}",
        )
    axes.axvline(target.batch, color="#cf6f55", linestyle="-.", linewidth=0.8)
    _log_rows(axes, target.max_num_seqs)
    axes.set_ylim(0, 60)
    axes.set_ylabel("padding, % of computed rows")
    _title(axes, "Padding by live rows")
    axes.legend(fontsize=8, frameon=False, loc="upper right", ncols=2)


def _draw_profiles(axes: Axes, report: PlanReport) -> None:
    """Capture time and driver memory of each profile, and its mean padding."""
    names = [price.profile for price in report.profiles]
    seconds = [price.capture_s for price in report.profiles]
    colours = [_PROFILE_COLOURS[name] for name in names]
    bars = axes.barh(names, seconds, color=colours, height=0.6)
    labels = [
        f" {counted(price.num_rungs, 'graph')}, {price.capture_s:.2f} s, "
        f"{price.graph_bytes / (1 << 20):.0f} "
        f"MiB\n {price.mean_share:.0%} padding on average, {price.worst_share:.0%} at worst"
        for price in report.profiles
    ]
    axes.bar_label(bars, labels=labels, fontsize=8.5, color=INK)
    axes.set_xlim(0, max(seconds) * 1.6)
    axes.invert_yaxis()
    axes.set_xlabel("seconds to capture, expected")
    _title(axes, "What a ladder costs, and what it wastes")
    _grid(axes, axis="x")


def _draw_memory(axes: Axes, report: PlanReport) -> None:
    """One bar of all memory."""
    left = 0.0
    parts = [(part.name, part.nbytes or 0) for part in report.memory.parts]
    free = report.memory.free_bytes or 0
    total = report.memory.total_bytes or 1
    for name, nbytes in [*parts, ("free", max(free, 0))]:
        width = nbytes / 1e9
        axes.barh([0], [width], left=left, color=_MEMORY_COLOURS[name], label=name, height=0.8)
        if nbytes > 0.05 * total:
            tokens = report.capacity.num_tokens
            text = f"{name}\n{width:.1f} GB" + (
                f", {counted(tokens, 'token')}" if name == "KV pool" else ""
            )
            axes.text(left + width / 2, 0, text, ha="center", va="center", fontsize=9, color=INK)
        left += width
    axes.axvline(total / 1e9, color=INK, linewidth=1.2)
    axes.set_xlim(0, max(left, total / 1e9) * 1.005)
    axes.set_yticks([])
    axes.set_xlabel("GB")
    fits = "" if report.capacity.num_blocks else ": the model does not fit"
    _title(axes, f"Memory of {report.target.gpu.name}{fits}")
    axes.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=6)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _row_counts(most: int) -> list[int]:
    """1 to ``most``, about 24 a doubling."""
    return sorted(
        {min(round(2 ** (step / 24)), most) for step in range(24 * most.bit_length() + 1)}
    )


def _log_rows(axes: Axes, most: int) -> None:
    ticks = [tick for tick in _TICKS if tick <= most]
    axes.set_xscale("log", base=2)
    axes.set_xlim(1, most)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel("live rows")
    _grid(axes)


def _grid(axes: Axes, axis: str = "both") -> None:
    axes.grid(visible=True, axis=axis, color=GRID, linewidth=0.6)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=11)
