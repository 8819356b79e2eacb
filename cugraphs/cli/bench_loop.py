"""What the GPU idles between decode steps, by who decides that there is a next one.

The host, which reads each step's tokens before it launches the next; 8 replays at a time, the next
ones queued while they run; or the GPU itself, in one launch of a loop. Kernels at both ends of a
step tell the GPU's own clock. No prompt is computed: the KV cache is filled with random numbers.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cugraphs.cli.bench_decode import add_work_options, works
from cugraphs.cli.bench_session import BenchSession, add_common_options, progress_bar
from cugraphs.cli.tables import TableConsole, milliseconds, new_table
from cugraphs.decode_bench import BenchModel
from cugraphs.loop_bench import (
    REPLAYS_TOGETHER,
    Drive,
    LoopTimes,
    loop_length,
    stamped_runner,
    time_drive,
)

if TYPE_CHECKING:
    from argparse import _SubParsersAction

MODE = "full (the step is one CUDA graph)"
_NAMES = {
    Drive.HOST: "host, step by step",
    Drive.REPLAYS: f"{REPLAYS_TOGETHER} replays at a time",
    Drive.LOOP: "loop on the GPU",
}


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the benchmark."""
    parser = subparsers.add_parser(
        "loop", help="what the GPU idles between steps", description=__doc__
    )
    add_common_options(parser)
    add_work_options(parser, batches=[1, 16, 64, 256], prompts=[128])
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Time every batch in every way, and print."""
    pairs = works(args)
    session = BenchSession("loop", MODE, args)
    longest = max(loop_length(prompt, args.tokens) for _, prompt in pairs)
    session.check_length(longest)
    model = session.load(longest)
    results: list[LoopTimes] = []
    with progress_bar(len(pairs)) as advance:
        for batch, prompt in pairs:
            results += measure(model, batch, prompt, args.tokens)
            advance(f"{batch} x {prompt}")
    _print(results)
    session.finish(None, results=[_record(times) for times in results])
    return 0


def measure(model: BenchModel, batch: int, prompt_tokens: int, steps: int) -> list[LoopTimes]:
    """Time one batch in every way, in a runner of its own."""
    runner = stamped_runner(model, batch, loop_length(prompt_tokens, steps))
    return [
        time_drive(runner, drive, batch=batch, prompt_tokens=prompt_tokens, steps=steps)
        for drive in Drive
    ]


def _record(times: LoopTimes) -> dict[str, object]:
    return {**vars(times), "drive": times.drive.value, "host_us_per_token": times.host_us_per_token}


def _print(results: list[LoopTimes]) -> None:
    table = new_table(
        f"decode steps one after the other; mode {MODE}",
        "batch, driven by",
        *("step", "GPU idle", "gap", "host CPU", "per token", "newcomer waits"),
    )
    for times in results:
        table.add_row(
            f"{times.batch}, {_NAMES[times.drive]}",
            milliseconds(times.step_us / 1e3),
            f"{times.idle_share:.2%}",
            f"{times.gap_us:.1f} us",
            f"{times.host_us:.0f} us",
            f"{times.host_us_per_token:.1f} us",
            f"{times.newcomer_steps:.2f} steps",
        )
    console = TableConsole()
    console.print(table)
    console.print(
        "GPU idle: of the time from step to step, what no step was running, by the GPU's clock. "
        "gap: median. host CPU: of all threads, to launch steps and to read their tokens; "
        "scheduling and text come on top. newcomer: from a moment within a step until a step that "
        "has it begins."
    )
