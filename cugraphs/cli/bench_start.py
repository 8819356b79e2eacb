"""Where the time of a start goes: a fresh process each time, from asking for it to the first token.

The files are read once before, so that they are in the page cache. The first start finds no
compiled kernels, as on a machine that never ran this; the others find what it left, but nothing
else of this machine's caches (a tuning table of your own neither). Of those the median one is shown
part by part.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cugraphs.checkpoint import Checkpoint
from cugraphs.cli.bench_checkpoint import add_folder_option, checkpoint_folder
from cugraphs.cli.bench_session import (
    add_common_options,
    check_counts,
    check_record_file,
    progress_bar,
    write_record,
)
from cugraphs.cli.tables import TableConsole, new_table
from cugraphs.counted import counted
from cugraphs.cuda_availability import check_driver
from cugraphs.figure_file import check_figure_file
from cugraphs.load_bench import read_rate
from cugraphs.start_bench import Start, run_start
from cugraphs.start_plot import draw_starts
from cugraphs.weight_loading import CHUNK_BYTES, default_readers

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the benchmark."""
    parser = subparsers.add_parser(
        "start", help="from a new process to the first token, part by part", description=__doc__
    )
    add_common_options(parser)
    add_folder_option(parser)
    parser.add_argument(
        "--device",
        default="cuda",
        choices=("auto", "cpu", "cuda"),
        help="that the model runs on (default: cuda)",
    )
    parser.add_argument(
        "--runs", type=int, default=3, metavar="N", help="starts with kernels cached (default 3)"
    )
    parser.add_argument(
        "--max-num-seqs", type=int, metavar="N", help="as of LLM: sequences that run at once"
    )
    parser.add_argument("--max-model-len", type=int, metavar="N", help="as of LLM")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the first and the median start (.png, .svg)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Start again and again, and print."""
    check_counts("--runs", [args.runs], 1000)
    check_record_file(args.json)
    if args.plot is not None:
        check_figure_file(args.plot)
    given = {"max_num_seqs": args.max_num_seqs, "max_model_len": args.max_model_len}
    options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    options |= {"device": args.device, "dtype": args.dtype}
    # The driver is looked for and not woken: the starts find it asleep.
    check_device = check_driver if args.device == "cuda" else None
    with checkpoint_folder(args, check_device) as (name, folder, weights):
        with Checkpoint.open(folder) as checkpoint:
            read_rate(checkpoint.files, default_readers(), CHUNK_BYTES)
        starts = []
        with (
            tempfile.TemporaryDirectory(prefix="cugraphs-caches-") as caches,
            progress_bar(args.runs + 1) as advance,
        ):
            for index in range(args.runs + 1):
                starts.append(run_start(folder, options, Path(caches)))
                advance(f"start {index + 1}")
    first, *again = starts
    median = sorted(again, key=lambda start: start.first_token_ms)[len(again) // 2]
    machine = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in first.machine.items())
    print(f"bench start: {name}, {args.dtype}, {weights}, in the page cache; {machine}")
    _print(median, f"{name}: the median of {counted(len(again), 'start')} with kernels cached")
    for label, start in (("first start ever", first), ("kernels cached, median", median)):
        print(
            f"{label}: first token after {start.first_token_ms:,.0f} ms, "
            f"{counted(start.graphs, 'graph')}; the process ends after {start.exit_ms:,.0f} ms"
        )
    print("all with kernels cached: " + ", ".join(f"{s.first_token_ms:,.0f} ms" for s in again))
    if args.plot is not None:
        shown = [("kernels cached", median), ("first start ever", first)]
        draw_starts(shown, f"Start of {name}, {args.dtype}, {weights}", args.plot)
    if args.json is not None:
        record = {
            "benchmark": "start",
            "model": name,
            "dtype": args.dtype,
            "weights": weights,
            "options": options,
            "machine": first.machine,
            "first": first,
            "cached": again,
            "first_token_ms": {
                "first": first.first_token_ms,
                "cached_median": median.first_token_ms,
            },
        }
        write_record(args.json, record)
    return 0


def _print(start: Start, title: str) -> None:
    table = new_table(title, "phase", "begins", "ends", "takes", "threads' time")
    for phase in start.phases:
        name = f"{phase.name} (x{phase.count})" if phase.count > 1 else phase.name
        table.add_row(
            ("| " if phase.in_thread else "") + name,
            f"{phase.begin_ms:,.0f} ms",
            f"{phase.end_ms:,.0f} ms",
            f"{phase.end_ms - phase.begin_ms:,.0f} ms",
            f"{phase.busy_ms:,.0f} ms" if phase.count > 1 else "",
        )
    console = TableConsole()
    console.print(table)
    console.print("|: beside the main thread. A phase holds those that begin and end inside it.")
