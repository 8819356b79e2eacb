"""How long requests take that come one after the other: time to first token, per token, to the end.

They come as a Poisson process, one by one or in bursts, at one rate or several in turn, whether or
not the engine keeps up: what a request waits counts from when it was due.
"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

import numpy as np

from cugraphs.cli.bench_serving import (
    add_serving_options,
    check_result_files,
    choose_workload,
    open_bench,
    serve,
)
from cugraphs.cli.bench_session import check_counts, progress_bar
from cugraphs.cli.serving_report import draw_results, print_results, write_results
from cugraphs.serving_bench import ServingResult
from cugraphs.workloads import poisson_arrivals

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EXAMPLES = """\
examples:
  cugraphs bench latency --shape llama-3.1-8b --random-weights --rate 1 4 16
  cugraphs bench latency --shape llama-3.1-8b --workload sharegpt --rate 8 --burst 16 --plot run.png
  cugraphs bench latency MODEL --rate 2 --prompt 1024 --output 64 --json run.json
  cugraphs bench latency demo --device cpu --rate 5 --requests 20
"""


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the benchmark."""
    parser = subparsers.add_parser(
        "latency",
        help="requests that come over time: time to first token, per token, to the end",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_serving_options(parser, requests=100)
    arrivals = parser.add_argument_group("arrivals")
    arrivals.add_argument(
        "--rate",
        type=float,
        nargs="+",
        default=[4.0],
        metavar="R",
        help="requests a second in the mean; several are run one after the other (default 4)",
    )
    arrivals.add_argument(
        "--burst",
        type=int,
        default=1,
        metavar="N",
        help="requests that come together; bursts are then as much rarer (default 1)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve the workload at each rate, and print; an interrupt prints what there is."""
    check_result_files(args)
    for rate in args.rate:
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"bench: --rate is {rate}, expected a positive number")
    check_counts("--burst", [args.burst], 1 << 20)
    workload = choose_workload(args)
    bench = open_bench("latency", args, workload)
    results: list[tuple[float, ServingResult]] = []
    interrupted = False
    with progress_bar(len(args.rate) * args.requests) as advance:
        for number, rate in enumerate(args.rate):
            random = np.random.default_rng([args.seed, number, 2])
            arrivals_s = poisson_arrivals(args.requests, rate, random, burst=args.burst)
            demands = workload.demands(bench.vocab_size, run=number, arrivals_s=arrivals_s)
            result, interrupted = serve(bench, demands, advance)
            results.append((rate, result))
            if interrupted:
                break
    bursts = f" in bursts of {args.burst}" if args.burst > 1 else ""
    labelled = [(f"{rate:g}/s{bursts}", result) for rate, result in results]
    print_results(bench, labelled, "arrivals", interrupted=interrupted)
    about = [({"rate_per_s": rate, "burst": args.burst}, result) for rate, result in results]
    write_results("latency", args, bench, workload, about, interrupted=interrupted)
    draw_results(args, bench, workload, labelled)
    if interrupted:
        raise KeyboardInterrupt
    return 0
