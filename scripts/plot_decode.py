"""Draws decode steps beside those of other engines.

    python scripts/plot_decode.py 8b.json 1b.json --output docs/decode.svg

Each file is what ``cugraphs bench decode --shape ... --json FILE`` wrote. The others were measured
on another H200, which reads 4.47 TB/s: random bf16 weights, greedy, mean step over 128 tokens;
where they were not measured there is no bar. Needs the extra ``plot``.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cugraphs.figure_file import GRID, INK, new_figure, save_figure
from cugraphs.json_file import read_json_object

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, FLOOR = (
    "cugraphs",
    "bound: weights read or multiplied, then K and V read, at measured ceilings",
)
COLOURS = {
    OURS: "#2f6db5",
    "vLLM 0.26.0": "#e0a458",
    "gpt-fast": "#86b36b",
    "Megakernel, with its fences": "#a98bc4",
}
# ms by model, batch and prompt tokens
PEERS = {
    "vLLM 0.26.0": {
        ("llama-3.1-8b", 1, 128): 4.97,
        ("llama-3.1-8b", 1, 8192): 5.28,
        ("llama-3.1-8b", 16, 1024): 5.60,
        ("llama-3.1-8b", 64, 1024): 7.52,
        ("llama-3.1-8b", 256, 128): 10.66,
        ("llama-3.1-8b", 256, 1024): 17.77,
        ("llama-3.2-1b", 1, 128): 1.51,
        ("llama-3.2-1b", 1, 1024): 1.93,
        ("llama-3.2-1b", 16, 1024): 2.80,
        ("llama-3.2-1b", 64, 1024): 3.50,
    },
    "gpt-fast": {
        ("llama-3.1-8b", 1, 128): 5.65,
        ("llama-3.1-8b", 16, 1024): 6.04,
        ("llama-3.2-1b", 1, 128): 1.39,
    },
    "Megakernel, with its fences": {
        ("llama-3.2-1b", 1, 128): 0.894,
        ("llama-3.2-1b", 1, 1024): 1.16,
    },
}
BAR = 0.2  # of the distance between two workloads


def main() -> None:
    """Read the records, draw, and say where the picture is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    try:
        records = [read_json_object(file) for file in args.records]
        counts = [len(drawn_results(record)) for record in records]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except KeyError as error:
        parser.error(f"a record has no {error}, expected what bench decode --json wrote")
    if not all(counts):
        parser.error("a record has no workload that another engine was measured at")
    figure = new_figure(9, 0.72 * sum(counts) + 1.2)
    panels = figure.subplots(len(records), height_ratios=counts, squeeze=False)[:, 0]
    for axes, record in zip(panels, records, strict=True):
        draw(axes, record)
    known = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        known.values(), known, loc="outside lower center", ncols=2, frameon=False, fontsize=8
    )
    save_figure(figure, args.output)
    print(f"plot_decode: wrote {args.output}")


def drawn_results(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The workloads that another engine was measured at too."""
    model = record["model"]
    compared = {key for steps in PEERS.values() for key in steps}
    return [
        result
        for result in record["results"]
        if (model, result["times"]["batch"], result["times"]["prompt_tokens"]) in compared
    ]


def draw(axes: "Axes", record: dict[str, Any]) -> None:
    """One model: a group of bars for each workload, and what the card needs at least."""
    names, longest = [], 0.0
    for row, result in enumerate(drawn_results(record)):
        times = result["times"]
        batch, prompt = times["batch"], times["prompt_tokens"]
        steps = {OURS: times["step_ms"]}
        key = (record["model"], batch, prompt)
        steps |= {peer: found[key] for peer, found in PEERS.items() if key in found}
        longest = max(longest, *steps.values())
        top = row - BAR * (len(steps) - 1) / 2
        for place, (engine, ms) in enumerate(steps.items()):
            y = top + place * BAR
            axes.barh(y, ms, BAR * 0.9, color=COLOURS[engine], label=engine)
            axes.annotate(
                f"{ms:.2f} ms",
                (ms, y),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=INK,
            )
        axes.plot(
            [result["bound"]["total_ms"]] * 2,
            [top - BAR * 0.7, top + BAR * 0.7],
            color=INK,
            linewidth=1.6,
            label=FLOOR,
        )
        names.append(f"batch {batch}\n{prompt:,} tokens before")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.1)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    reads = record["ceilings"]["read_bytes_per_s"] / 1e12
    axes.set_title(
        f"{record['model']}, {record['dtype']}, one NVIDIA H200 (reads {reads:.2f} TB/s): "
        "ms of a decode step",
        loc="left",
        fontsize=9,
    )


if __name__ == "__main__":
    main()
