"""How fast a workload is served when all of it is there at once: tokens and requests a second.

Nothing waits for arrivals, so the engine always has as much to do as it can hold.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cugraphs.cli.bench_serving import (
    add_serving_options,
    check_result_files,
    choose_workload,
    open_bench,
    serve,
)
from cugraphs.cli.bench_session import progress_bar
from cugraphs.cli.serving_report import draw_results, print_results, write_results

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_EXAMPLES = """\
examples:
  cugraphs bench throughput --shape llama-3.1-8b --random-weights
  cugraphs bench throughput --shape llama-3.1-8b --workload sharegpt --requests 1000 --json run.json
  cugraphs bench throughput MODEL --workload shared-prefix --prefix 2048 --prompt 64 --plot run.png
  cugraphs bench throughput demo --device cpu --requests 32 --max-num-seqs 8
"""


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the benchmark."""
    parser = subparsers.add_parser(
        "throughput",
        help="a workload that is there at once: tokens a second",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_serving_options(parser, requests=200)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve the workload, and print; an interrupt prints what there is."""
    check_result_files(args)
    workload = choose_workload(args)
    bench = open_bench("throughput", args, workload)
    demands = workload.demands(bench.vocab_size)
    with progress_bar(len(demands)) as advance:
        result, interrupted = serve(bench, demands, advance)
    labelled = [("all at once", result)]
    print_results(bench, labelled, "arrivals", interrupted=interrupted)
    write_results("throughput", args, bench, workload, [({}, result)], interrupted=interrupted)
    draw_results(args, bench, workload, labelled)
    if interrupted:
        raise KeyboardInterrupt
    return 0
