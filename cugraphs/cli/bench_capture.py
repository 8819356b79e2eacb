"""Where the time of a start goes, and what each graph costs: nodes, milliseconds, driver memory.

The ladder is captured twice: the first time kernels are compiled, or loaded from the disk cache,
and cuBLASLt's are loaded; the second time all of that is there. The weights are random.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import TYPE_CHECKING

from cugraphs.capture_bench import CaptureBench, CaptureTimes, HostTimes, mixed_rungs
from cugraphs.cli.bench_session import (
    BenchSession,
    add_common_options,
    check_counts,
    progress_bar,
)
from cugraphs.cli.tables import TableConsole, megabytes, new_table
from cugraphs.counted import counted
from cugraphs.ladder import PROFILES, Ladder

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_PARTS = ("bind_ms", "warm_up_ms", "record_ms", "instantiate_ms", "upload_ms")


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the benchmark."""
    parser = subparsers.add_parser(
        "capture", help="time and memory of captures, and of a launch", description=__doc__
    )
    add_common_options(parser)
    parser.add_argument(
        "--profile", default="default", choices=PROFILES, help='of the ladder (default: "default")'
    )
    parser.add_argument(
        "--max-num-seqs", type=int, default=512, metavar="N", help="top of the ladder (default 512)"
    )
    parser.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=2048,
        metavar="N",
        help="tokens of a mixed step (default 2048)",
    )
    parser.add_argument(
        "--max-model-len", type=int, default=8192, metavar="N", help="of a sequence (default 8192)"
    )
    parser.add_argument(
        "--mode",
        default="full",
        choices=("full", "full_and_piecewise"),
        help="full: decode steps (default); full_and_piecewise: mixed steps' pieces too",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan, load and capture twice, and print."""
    check_counts("--max-num-seqs", [args.max_num_seqs])
    check_counts("--max-num-batched-tokens", [args.max_num_batched_tokens], 1 << 20)
    if args.max_num_batched_tokens < args.max_num_seqs:
        raise ValueError(
            f"bench: --max-num-batched-tokens is {args.max_num_batched_tokens}, expected at least "
            f"--max-num-seqs, {args.max_num_seqs}"
        )
    piecewise = args.mode == "full_and_piecewise"
    session = BenchSession("capture", f"{args.mode}, profile {args.profile}", args)
    max_model_len = min(args.max_model_len, session.config.longest_max_model_len)
    check_counts("--max-model-len", [max_model_len], session.config.longest_max_model_len)
    start = time.perf_counter()
    model = session.load(max_model_len)
    loaded = time.perf_counter()
    ladder = Ladder(args.max_num_seqs, args.profile)
    plan = model.plan(ladder, length=16, prefill_tokens=args.max_num_batched_tokens)
    planned = time.perf_counter()
    stages = {"plan": (planned - loaded) * 1e3, "weights": (loaded - start) * 1e3}
    bench = CaptureBench(model, plan)
    count = len(ladder.rungs) + (len(mixed_rungs(plan).rungs) if piecewise else 0)
    with progress_bar(2 * count) as advance:
        starts = [
            bench.run(
                piecewise=piecewise,
                progress=lambda kind, rows: advance(f"{kind}, {counted(rows, 'row')}"),
            )
            for _ in range(2)
        ]
    host = [bench.host_times(rung) for rung in dict.fromkeys((ladder.rungs[0], ladder.top))]
    _print(stages, starts, host, piecewise)
    session.finish(
        None,
        profile=args.profile,
        stages_ms=stages,
        starts=[_record(one) for one in starts],
        host=host,
    )
    return 0


def _record(times: CaptureTimes) -> dict[str, object]:
    kinds = dict.fromkeys(rung.kind for rung in times.rungs)
    return {
        "stages_ms": times.stages_ms,
        "graphs_ms": {kind: times.graphs_ms(kind) for kind in kinds},
        "driver_bytes": {kind: times.driver_bytes(kind) for kind in kinds},
        "rungs": [dataclasses.asdict(rung) | {"total_ms": rung.total_ms} for rung in times.rungs],
    }


def _print(
    stages: dict[str, float],
    starts: list[CaptureTimes],
    host: list[HostTimes],
    piecewise: bool,
) -> None:
    first, again = starts
    console = TableConsole()
    table = new_table("each rung, kernels loaded (graph memory: of the first time)", "rung")
    for column in ("graphs", "nodes", "bind", "warm-up", "record", "instantiate", "upload", "sum"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("graph memory", justify="right", no_wrap=True)
    for before, rung in zip(first.rungs, again.rungs, strict=True):
        table.add_row(
            f"{rung.rows}" if rung.kind == "full" else f"pieces, {counted(rung.rows, 'token')}",
            f"{rung.graphs}",
            f"{rung.nodes}",
            *(f"{getattr(rung, part):.2f} ms" for part in _PARTS),
            f"{rung.total_ms:.2f} ms",
            megabytes(before.driver_bytes),
        )
    console.print(table)
    table = new_table("where the time goes, ms", "stage", "first time", "kernels loaded")
    for name, ms in stages.items():
        table.add_row(name, f"{ms:,.0f}", "")
    for name in first.stages_ms:
        table.add_row(name, *(f"{times.stages_ms[name]:,.0f}" for times in starts))
    for kind in ("full", "piecewise")[: 1 + piecewise]:
        table.add_section()
        count = sum(rung.graphs for rung in first.rungs if rung.kind == kind)
        for part in _PARTS:
            label = part.removesuffix("_ms").replace("_", "-")
            table.add_row(
                f"{kind}: {label}", *(f"{times.sum_ms(kind, part):,.0f}" for times in starts)
            )
        table.add_row(
            f"{kind}: {counted(count, 'graph')} in all",
            *(f"{times.graphs_ms(kind):,.0f}" for times in starts),
        )
    console.print(table)
    for kind in ("full", "piecewise")[: 1 + piecewise]:
        rungs = [rung for rung in first.rungs if rung.kind == kind]
        nbytes = first.driver_bytes(kind)
        console.print(
            f"{kind}: the driver took {megabytes(nbytes)} for {counted(len(rungs), 'rung')}, "
            f"{megabytes(nbytes / len(rungs))} each"
        )
    for times in host:
        console.print(
            f"host, {counted(times.rows, 'row')}: launch of the graph {times.launch_us:.1f} us; "
            f"inputs, copy and launch {times.queue_us:.1f} us"
        )
