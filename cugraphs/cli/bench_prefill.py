"""How long a prompt takes until its first token: by length, by chunk, eager and in pieces.

One prompt at a time on random weights. Shares are of the matrix products' ceiling that is measured
first. Pieces (CUDA graphs between attention) exist for short steps only.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cugraphs.cli.bench_session import (
    BenchSession,
    add_common_options,
    check_counts,
    progress_bar,
)
from cugraphs.cli.tables import TableConsole, milliseconds, new_table
from cugraphs.counted import counted
from cugraphs.gpu_specs import GpuSpec
from cugraphs.ladder import Ladder
from cugraphs.mixed_step import MAX_PIECE_TOKENS
from cugraphs.model_runner import ModelRunner
from cugraphs.prefill_bench import PrefillWork, prefill_work, time_prefill

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from cugraphs.decode_bench import BenchModel

MODE = f"none (EAGER) beside piecewise (graphs, steps of up to {MAX_PIECE_TOKENS} tokens)"


@dataclass(frozen=True)
class PrefillResult:
    """One prompt in chunks of at most so many tokens.

    Args:
        prompt_tokens: of it.
        chunk_tokens: of a step at most.
        work: of all its steps.
        eager_ms: until the first token, launch by launch.
        pieces_ms: the same in pieces; None where the steps are too long for them.
        bound_ms: the matrix products at the ceiling of products or of reading the weights, then
            attention at the ceiling of products.
    """

    prompt_tokens: int
    chunk_tokens: int
    work: PrefillWork
    eager_ms: float
    pieces_ms: float | None
    bound_ms: float

    @property
    def best_ms(self) -> float:
        """The faster of the two."""
        return min(self.eager_ms, self.pieces_ms or self.eager_ms)


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the benchmark."""
    parser = subparsers.add_parser(
        "prefill", help="time of prompts, and their share of the bound", description=__doc__
    )
    add_common_options(parser)
    for option, values, what in (
        ("--prompt", [128, 2048, 8192], "tokens of the prompt"),
        ("--chunk", [8192], "tokens of a step at most, as of max_num_batched_tokens"),
    ):
        parser.add_argument(
            option,
            type=int,
            nargs="+",
            default=values,
            metavar="N",
            help=f"{what}, one after the other (default {' '.join(map(str, values))})",
        )
    parser.add_argument(
        "--runs", type=int, default=7, metavar="N", help="of each; the median counts (default 7)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Time every prompt in every chunk size, and print."""
    check_counts("--prompt", args.prompt, 1 << 24)
    check_counts("--chunk", args.chunk, 1 << 20)
    check_counts("--runs", [args.runs], 1000)
    session = BenchSession("prefill", MODE, args)
    longest = max(args.prompt) + 1
    session.check_length(longest)
    gpu = session.measure_gpu()
    model = session.load(longest)
    results = []
    with progress_bar(len(args.chunk) * len(args.prompt)) as advance:
        for chunk in args.chunk:
            runners = Runners(model, chunk)
            for prompt in args.prompt:
                results.append(measure(runners, gpu, prompt, args.runs))
                advance(f"{counted(prompt, 'token')} in chunks of {chunk}")
    _print(results, gpu)
    session.finish(gpu, results=results)
    return 0


class Runners:
    """A runner for each mode, made when it is first asked for."""

    def __init__(self, model: BenchModel, chunk_tokens: int) -> None:
        """Plan steps of at most so many tokens."""
        self._model = model
        # So many for which pieces of up to MAX_PIECE_TOKENS are captured.
        seqs = min(MAX_PIECE_TOKENS // 2, chunk_tokens)
        # One sequence is as long as the model allows; of the others there are none.
        self.plan = model.plan(Ladder(seqs, [1]), length=1, prefill_tokens=chunk_tokens)
        self._made: dict[str, ModelRunner] = {}

    def eager(self) -> ModelRunner:
        """Launch by launch."""
        return self._runner("none")

    def pieces(self) -> ModelRunner | None:
        """With graphs between attention; None where the device has none."""
        runner = self._runner("piecewise")
        return runner if runner.counts.captures else None

    def _runner(self, mode: str) -> ModelRunner:
        if mode not in self._made:
            self._made[mode] = ModelRunner(
                self.plan,
                self._model.weights,
                self._model.device,
                mode="piecewise" if mode == "piecewise" else "none",
            )
        return self._made[mode]


def measure(runners: Runners, gpu: GpuSpec, prompt_tokens: int, runs: int) -> PrefillResult:
    """Time one prompt."""
    plan = runners.plan
    eager_ms = time_prefill(runners.eager(), prompt_tokens, runs=runs)
    pieces_ms = None
    if min(prompt_tokens, plan.max_num_batched_tokens) <= MAX_PIECE_TOKENS:
        captured = runners.pieces()
        if captured is not None:
            pieces_ms = time_prefill(captured, prompt_tokens, runs=runs)
    work = prefill_work(plan, prompt_tokens, arch=gpu.arch)
    linear_s = max(work.weight_bytes / gpu.read_bytes_per_s, work.linear_flops / gpu.flops_per_s)
    bound_ms = (linear_s + work.attention_flops / gpu.flops_per_s) * 1e3
    return PrefillResult(
        prompt_tokens, plan.max_num_batched_tokens, work, eager_ms, pieces_ms, bound_ms
    )


def _print(results: list[PrefillResult], gpu: GpuSpec) -> None:
    table = new_table(
        f"a prompt until its first token; mode {MODE}",
        "prompt in chunks of",
        *("eager", "pieces", "tokens/s", "TFLOP/s", "of products", "bound", "share", "launches"),
    )
    for result in results:
        flops_per_s = result.work.flops / result.best_ms * 1e3
        table.add_row(
            f"{result.prompt_tokens:,} in {result.chunk_tokens:,}",
            milliseconds(result.eager_ms),
            "" if result.pieces_ms is None else milliseconds(result.pieces_ms),
            f"{result.prompt_tokens / result.best_ms * 1e3:,.0f}",
            f"{flops_per_s / 1e12:,.0f}",
            f"{flops_per_s / gpu.flops_per_s:.1%}",
            milliseconds(result.bound_ms),
            f"{result.bound_ms / result.best_ms:.1%}",
            f"{result.work.launches:,}",
        )
    console = TableConsole()
    console.print(table)
    console.print(
        "flops: of the matrix products and of the positions that each token sees. bound: the "
        "products, or reading their weights where that takes longer, then attention, both at the "
        "ceilings measured in this run. tokens/s and shares are of the faster mode."
    )
