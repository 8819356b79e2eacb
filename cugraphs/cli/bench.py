"""Benchmarks on this GPU: starts, loading, captures, padding, graphs against eager, decode speed.

Each runs on random weights in a model's shapes, or a checkpoint, and prints its mode.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cugraphs.cli import (
    bench_capture,
    bench_decode,
    bench_graphs,
    bench_load,
    bench_padding,
    bench_start,
)

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand and its own subcommands."""
    parser = subparsers.add_parser(
        "bench",
        help="time starts, loading, captures and decode steps on this GPU",
        description=__doc__,
    )
    benchmarks = parser.add_subparsers(required=True, metavar="BENCHMARK")
    for module in (
        *(bench_capture, bench_padding, bench_graphs, bench_decode),
        *(bench_load, bench_start),
    ):
        module.add_parser(benchmarks)
