"""What padding costs: a batch at a larger rung against a rung of exactly its size.

Both are replays of CUDA graphs, timed on the GPU in turn. Beside them stands what `cugraphs plan`
says of this card, from ceilings that are measured first.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cugraphs.cli.bench_session import (
    BenchSession,
    add_common_options,
    check_counts,
    progress_bar,
)
from cugraphs.cli.tables import TableConsole, megabytes, milliseconds, new_table
from cugraphs.decode_bench import BenchModel, RandomCacheRunner, length_of, step_work, time_rung
from cugraphs.gpu_specs import GpuSpec
from cugraphs.ladder import Ladder
from cugraphs.step_bound import PaddingPrice, price_padding

if TYPE_CHECKING:
    from argparse import _SubParsersAction

MODE = "full (the step is one CUDA graph)"
_PAIRS = ((257, 272), (9, 16), (1, 8))
_ROUNDS = 6
_REPLAYS = 20  # of each, in a round


@dataclass(frozen=True)
class PaddingResult:
    """A batch at two rungs.

    Args:
        rows: of the batch.
        rung: the larger one.
        context: tokens in the cache of each row at the beginning.
        exact_ms: of a replay at ``rows``.
        padded_ms: of a replay at ``rung``.
        added_bytes: that the step's kernels read and write for the dead rows: activations.
        price: what the plan says.
    """

    rows: int
    rung: int
    context: int
    exact_ms: float
    padded_ms: float
    added_bytes: int
    price: PaddingPrice

    @property
    def added_ms(self) -> float:
        """What padding adds."""
        return self.padded_ms - self.exact_ms


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the benchmark."""
    parser = subparsers.add_parser(
        "padding", help="a batch at a larger rung against its own", description=__doc__
    )
    add_common_options(parser)
    parser.add_argument(
        "--pair",
        action="append",
        metavar="ROWS:RUNG",
        help="may be repeated (default 257:272, 9:16 and 1:8)",
    )
    parser.add_argument(
        "--context", type=int, default=1024, metavar="N", help="tokens of each row (default 1024)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Time every pair, and print."""
    pairs = [_parse(text) for text in args.pair] if args.pair else [*_PAIRS]
    check_counts("--context", [args.context], 1 << 24)
    session = BenchSession("padding", MODE, args)
    length = length_of(args.context, _REPLAYS)
    session.check_length(length)
    gpu = session.measure_gpu()
    model = session.load(length)
    results = []
    with progress_bar(len(pairs)) as advance:
        for rows, rung in pairs:
            results.append(measure(model, gpu, rows, rung, args.context))
            advance(f"{rows} in {rung}")
    _print(results)
    session.finish(gpu, results=results)
    return 0


def _parse(text: str) -> tuple[int, int]:
    rows, _, rung = text.partition(":")
    if not (rows.isdecimal() and rung.isdecimal() and 1 <= int(rows) < int(rung) <= 4096):
        raise ValueError(f"bench: --pair is {text!r}, expected ROWS:RUNG, as 257:272")
    return int(rows), int(rung)


def measure(model: BenchModel, gpu: GpuSpec, rows: int, rung: int, context: int) -> PaddingResult:
    """Time one batch at its own rung and at a larger one, in turn."""
    plan = model.plan(Ladder(rung, [rows, rung]), length=length_of(context, _REPLAYS))
    runner = RandomCacheRunner(model, plan, "full")
    samples: dict[int, list[float]] = {rows: [], rung: []}
    for _ in range(_ROUNDS):
        for size, found in samples.items():
            found += time_rung(runner, size, rows=rows, prompt_tokens=context, replays=_REPLAYS)
    exact, padded = (_program_bytes(model, runner, size) for size in (rows, rung))
    work = step_work(plan, rung, context=context, arch=gpu.arch)
    return PaddingResult(
        rows=rows,
        rung=rung,
        context=context,
        exact_ms=statistics.median(samples[rows]),
        padded_ms=statistics.median(samples[rung]),
        added_bytes=padded - exact,
        price=price_padding(work, gpu, rows=rows, rung=rung, context=context),
    )


def _program_bytes(model: BenchModel, runner: RandomCacheRunner, rows: int) -> int:
    """What a step's kernels move, but K and V: a dead row's length is 0."""
    plan = runner.plan
    program = plan.decode[plan.ladder.class_for(rows)].program
    return program.cost({"rows": rows}, context=0).bytes_accessed


def _print(results: list[PaddingResult]) -> None:
    tiles = ", ".join(f"{tile.tile_rows}" for tile in results[0].price.tiles)
    table = new_table(
        f"a replay on the GPU, context {results[0].context:,}; mode {MODE}",
        "rows in rung",
        *("own rung", "larger rung", "added", "plan", "plan: compute", f"plan: tiles of {tiles}"),
        "activations",
    )
    for result in results:
        price = result.price
        table.add_row(
            f"{result.rows} in {result.rung}",
            milliseconds(result.exact_ms),
            milliseconds(result.padded_ms),
            f"{milliseconds(result.added_ms)} ({result.added_ms / result.exact_ms:+.1%})",
            milliseconds(price.added_ms),
            milliseconds(price.compute_ms),
            ", ".join(f"{tile.added_ms:.3f}" for tile in price.tiles) + " ms",
            f"+{megabytes(result.added_bytes)}",
        )
    console = TableConsole()
    console.print(table)
    console.print(
        "plan: what padding adds to the bound of this step; were it bound by compute, row by row; "
        "and in whole tiles of rows. activations: bytes that kernels move for the dead rows. K and "
        "V are not read for them."
    )
