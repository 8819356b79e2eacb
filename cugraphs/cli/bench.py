"""Benchmarks: workloads served by the engine, starts, loading, and single steps on this GPU.

`throughput` and `latency` serve many requests, on the CPU too, with the model's own weights or
random ones; `start` and `load` read a checkpoint, or make one of random weights. `host` times
what a step costs the host, and needs no GPU either. The others time
captures, padding, graphs against eager, decode steps and prompts, on random weights in a model's
shapes. Every one prints its mode.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cugraphs.cli import (
    bench_capture,
    bench_decode,
    bench_graphs,
    bench_host,
    bench_latency,
    bench_load,
    bench_loop,
    bench_padding,
    bench_prefill,
    bench_start,
    bench_throughput,
)

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand and its own subcommands."""
    parser = subparsers.add_parser(
        "bench",
        help="time workloads, starts, loading, captures, decode steps and prompts",
        description=__doc__,
    )
    benchmarks = parser.add_subparsers(required=True, metavar="BENCHMARK")
    for module in (
        *(bench_throughput, bench_latency, bench_start, bench_load),
        *(bench_capture, bench_padding, bench_graphs, bench_decode, bench_loop, bench_prefill),
        bench_host,
    ):
        module.add_parser(benchmarks)
