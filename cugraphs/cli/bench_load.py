"""How fast a checkpoint goes from the page cache into the GPU's memory, and what bounds that.

The bounds are measured in the same run: a plain copy from pinned memory, and the same threads
reading the files without a copy. The share is that of the plain copy.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cugraphs.checkpoint import Checkpoint
from cugraphs.cli.bench_checkpoint import add_folder_option, checkpoint_folder
from cugraphs.cli.bench_session import (
    BenchSession,
    add_common_options,
    check_counts,
    progress_bar,
)
from cugraphs.cli.tables import TableConsole, gigabytes, new_table
from cugraphs.counted import counted
from cugraphs.cuda_availability import check_cuda
from cugraphs.kernel import Array
from cugraphs.load_bench import LoadTimes, measure_loading
from cugraphs.models.weights import begin_loading
from cugraphs.weight_loading import CHUNK_BYTES, WeightLoading, default_readers

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the benchmark."""
    parser = subparsers.add_parser(
        "load", help="rate of loading weights, and its share of a pinned copy", description=__doc__
    )
    add_common_options(parser)
    add_folder_option(parser)
    parser.add_argument(
        "--repeats",
        type=int,
        default=5,
        metavar="N",
        help="loadings (default 5); the median counts",
    )
    parser.add_argument(
        "--readers", type=int, metavar="N", help="threads (default: one a core, up to 12)"
    )
    parser.add_argument(
        "--chunk-kib",
        type=int,
        default=CHUNK_BYTES >> 10,
        metavar="N",
        help="of each of a thread's two pinned buffers (default %(default)s)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, and print."""
    readers = default_readers() if args.readers is None else args.readers
    check_counts("--repeats", [args.repeats], 1000)
    check_counts("--readers", [readers], 256)
    check_counts("--chunk-kib", [args.chunk_kib], 1 << 20)
    chunk_bytes = args.chunk_kib << 10
    with checkpoint_folder(args, check_cuda) as (name, folder, weights):
        mode = f"{counted(readers, 'thread')}, two buffers of {args.chunk_kib:,} KiB each"
        session = BenchSession("load", mode, args, name=name, folder=folder, weights=weights)
        with Checkpoint.open(folder) as checkpoint, progress_bar(args.repeats + 4) as advance:

            def begin() -> tuple[dict[str, Array], WeightLoading]:
                return begin_loading(
                    checkpoint.tensors,
                    session.config,
                    args.dtype,
                    session.config.longest_max_model_len,
                    session.device,
                    source=str(folder),
                    readers=readers,
                    chunk_bytes=chunk_bytes,
                )

            times = measure_loading(
                session.device,
                checkpoint.files,
                checkpoint.nbytes,
                begin,
                repeats=args.repeats,
                readers=readers,
                chunk_bytes=chunk_bytes,
                progress=advance,
            )
        _print(times)
        session.finish(
            None,
            readers=readers,
            chunk_bytes=chunk_bytes,
            times=times,
            load_bytes_per_s=times.load_bytes_per_s,
            share=times.share,
        )
    return 0


def _print(times: LoadTimes) -> None:
    table = new_table(
        f"{gigabytes(times.checkpoint_bytes)} from the page cache", "", "GB/s", "seconds", "share"
    )
    copy = times.pinned_copy_bytes_per_s
    rows = [
        ("a plain copy from pinned memory", copy),
        ("the threads read, nothing is copied", times.page_cache_bytes_per_s),
        (f"loading, median of {len(times.load_s)}", times.load_bytes_per_s),
        (f"loading, best of {len(times.load_s)}", times.checkpoint_bytes / min(times.load_s)),
        ("loading beside a busy Python thread", times.busy_bytes_per_s),
    ]
    for name, rate in rows:
        seconds = times.checkpoint_bytes / rate
        table.add_row(name, f"{rate / 1e9:.1f}", f"{seconds:.3f}", f"{rate / copy:.0%}")
    TableConsole().print(table)
