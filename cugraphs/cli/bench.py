"""Benchmarks: workloads served by the engine, and single steps on this GPU.

`throughput` and `latency` serve many requests, on the CPU too, with the model's own weights or
random ones. The others time captures, padding, graphs against eager, and decode steps, on random
weights in a model's shapes. Every one prints its mode.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cugraphs.cli import (
    bench_capture,
    bench_decode,
    bench_graphs,
    bench_latency,
    bench_loop,
    bench_padding,
    bench_throughput,
)

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand and its own subcommands."""
    parser = subparsers.add_parser(
        "bench", help="time whole workloads, captures and decode steps", description=__doc__
    )
    benchmarks = parser.add_subparsers(required=True, metavar="BENCHMARK")
    for module in (
        *(bench_throughput, bench_latency),
        *(bench_capture, bench_padding, bench_graphs, bench_decode, bench_loop),
    ):
        module.add_parser(benchmarks)
