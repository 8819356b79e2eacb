"""Benchmarks of whole steps on this GPU: captures, padding, graphs against eager, decode speed.

Each runs on random weights in a model's shapes, and prints its mode.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cugraphs.cli import bench_capture, bench_decode, bench_graphs, bench_host, bench_padding

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand and its own subcommands."""
    parser = subparsers.add_parser(
        "bench", help="time captures and decode steps on this GPU", description=__doc__
    )
    benchmarks = parser.add_subparsers(required=True, metavar="BENCHMARK")
    for module in (bench_capture, bench_padding, bench_graphs, bench_decode, bench_host):
        module.add_parser(benchmarks)
