"""How the serving benchmarks tell what they found: tables, and the record."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cugraphs.cli.bench_session import write_record
from cugraphs.cli.tables import TableConsole, milliseconds, new_table
from cugraphs.counted import counted
from cugraphs.device_choice import steps_ahead
from cugraphs.serving_bench import ServingResult
from cugraphs.serving_plot import draw_serving

if TYPE_CHECKING:
    from cugraphs.cli.bench_serving import Bench
    from cugraphs.cli.workload_options import Workload


_NAMES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "end_to_end": "end to end",
}
_FROM_DUE = "time to first token and end to end count from when a request was due"


def print_results(
    bench: Bench,
    labelled: Sequence[tuple[str, ServingResult]],
    first_column: str,
    *,
    interrupted: bool,
) -> None:
    """Tables of rates and of latencies, and the engine's counters.

    Args:
        bench: that ran.
        labelled: what came of each run.
        first_column: what the labels are.
        interrupted: whether the last run is not complete.
    """
    console = TableConsole()
    if interrupted:
        console.print("INTERRUPTED: the figures are of what was done until then")
    rates = new_table(
        "throughput",
        first_column,
        *("requests", "seconds", "requests/s", "prompt tokens/s", "generated/s", "total/s"),
        "share of bound",
    )
    for label, result in labelled:
        prompt, generated = result.prompt_tokens, result.generated_tokens
        share = bench.bound_share(result)
        rates.add_row(
            label,
            f"{result.finished:,} of {result.requests:,}",
            f"{result.seconds:,.2f}",
            f"{result.per_s(result.finished):,.2f}",
            *(f"{result.per_s(n):,.1f}" for n in (prompt, generated, prompt + generated)),
            "" if share is None else f"{share:.1%}",
        )
    console.print(rates)
    latencies = new_table("latency", f"{first_column}, time", "mean", "p50", "p90", "p99")
    for label, result in labelled:
        latencies.add_section()
        for key, spread in result.spreads().items():
            figures = dataclasses.astuple(spread) if spread else ()
            latencies.add_row(f"{label}: {_NAMES[key]}", *map(milliseconds, figures))
    console.print(latencies)
    for label, result in labelled:
        _print_counters(console, label, result)
    if bench.gpu is not None:
        console.print(
            f"{_FROM_DUE}. share of bound: what the same steps take at least, of the seconds in "
            "which there was a request; a step reads the weights or multiplies for every token, "
            "whichever is longer, then reads K and V of the rows that decode; attention over "
            "prompts is left out"
        )
    else:
        console.print(f"{_FROM_DUE}. no share of a bound: no GPU whose ceilings were measured")


def draw_results(
    args: argparse.Namespace,
    bench: Bench,
    workload: Workload,
    labelled: Sequence[tuple[str, ServingResult]],
) -> None:
    """Draw every run, if a picture is wanted."""
    if args.plot is not None:
        title = f"{bench.name}, {bench.runner.plan.cache.dtype}; mode {bench.mode}\n{workload}"
        draw_serving(labelled, title, args.plot)


def write_results(
    benchmark: str,
    args: argparse.Namespace,
    bench: Bench,
    workload: Workload,
    labelled: Sequence[tuple[dict[str, Any], ServingResult]],
    *,
    interrupted: bool,
) -> None:
    """Write the record, if one is wanted.

    Args:
        benchmark: its name.
        args: of the command.
        bench: that ran.
        workload: that it served.
        labelled: what is special to each run, and what came of it.
        interrupted: whether the last one is not complete.
    """
    if args.json is None:
        return
    cache = bench.runner.plan.cache
    gpu = bench.gpu
    record = {
        "benchmark": benchmark,
        "mode": bench.mode,
        "model": bench.name,
        "dtype": cache.dtype,
        "weights": bench.weights,
        "machine": bench.machine,
        "ceilings": gpu
        and {"read_bytes_per_s": gpu.read_bytes_per_s, "flops_per_s": gpu.flops_per_s},
        "engine": {
            "max_num_seqs": args.max_num_seqs,
            "max_num_batched_tokens": bench.runner.plan.max_num_batched_tokens,
            "max_model_len": cache.max_model_len,
            "num_kv_blocks": bench.runner.num_kv_blocks,
            "block_size": cache.block_size,
            "rungs": list(bench.runner.plan.ladder.rungs),
            "prefix_caching": not args.no_prefix_caching,
            "batch_invariant": args.batch_invariant,
            "num_scheduler_steps": args.num_scheduler_steps,
            "step_loops": bench.runner.has_loops,
            "steps_ahead": steps_ahead(args.async_scheduling, bench.runner.device),
        },
        "workload": workload.describe(),
        "interrupted": interrupted,
        "results": [{**about, **_record(bench, result)} for about, result in labelled],
    }
    write_record(args.json, record)


def _record(bench: Bench, result: ServingResult) -> dict[str, Any]:
    prompt, generated = result.prompt_tokens, result.generated_tokens
    return {
        "requests": result.requests,
        "finished": result.finished,
        "seconds": result.seconds,
        "busy_seconds": result.busy_s,
        "requests_per_s": result.per_s(result.finished),
        "prompt_tokens": prompt,
        "generated_tokens": generated,
        "prompt_tokens_per_s": result.per_s(prompt),
        "generated_tokens_per_s": result.per_s(generated),
        "total_tokens_per_s": result.per_s(prompt + generated),
        "bound_seconds": bench.gpu and bench.work.run_s(bench.gpu, result),
        "bound_share": bench.bound_share(result),
        "latency": result.spreads(),
        "counters": result.counters,
        "answers": result.answers,
    }


def _print_counters(console: TableConsole, label: str, result: ServingResult) -> None:
    counters = result.counters
    replays = ", ".join(f"{rung}: {n:,}" for rung, n in sorted(counters["replays"].items()))
    eager = ", ".join(f"{reason}: {n:,}" for reason, n in counters["eager_steps"].items())
    phases = ", ".join(f"{name} {s:.2f}" for name, s in counters["host_seconds"].items())
    console.print(
        f"{label}: {counted(counters['steps'], 'step')}; replays by rung: {replays or 'none'}; "
        f"eager steps: {eager or 'none'}; padding rows: {counters['padding_rows']:,}; batches off "
        f"the ladder: {counters['off_ladder_steps']:,}"
    )
    console.print(
        f"{label}: prompt tokens computed {counters['prompt_tokens']:,}, found in the cache "
        f"{counters['cached_tokens']:,}; preemptions: {counters['preemptions']:,}; seconds of the "
        f"step's thread: {phases}"
    )
