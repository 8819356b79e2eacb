"""What a graph saves: the same decode steps queued launch by launch, and as one CUDA graph.

Both are driven by the engine, on one set of random weights. The KV cache holds random numbers.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cugraphs.cli.bench_decode import add_work_options, measure, works
from cugraphs.cli.bench_session import BenchSession, add_common_options, progress_bar
from cugraphs.cli.tables import TableConsole, milliseconds, new_table
from cugraphs.counted import counted
from cugraphs.decode_bench import DecodeTimes, length_of

if TYPE_CHECKING:
    from argparse import _SubParsersAction

MODE = "none (EAGER) beside full (the step is one CUDA graph)"


@dataclass(frozen=True)
class GraphGain:
    """One batch and prompt in both modes."""

    launches: int
    eager: DecodeTimes
    graph: DecodeTimes

    @property
    def saved_ms(self) -> float:
        """What the graph saves a step."""
        return self.eager.step_ms - self.graph.step_ms


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the benchmark."""
    parser = subparsers.add_parser(
        "graphs", help="a decode step as a graph against eager", description=__doc__
    )
    add_common_options(parser)
    add_work_options(parser, batches=[1, 8, 64], prompts=[128])
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Time every pair in both modes, and print."""
    pairs = works(args)
    session = BenchSession("graphs", MODE, args)
    longest = max(length_of(prompt, args.tokens) for _, prompt in pairs)
    session.check_length(longest)
    gpu = session.measure_gpu()
    model = session.load(longest)
    gains = []
    with progress_bar(2 * len(pairs)) as advance:
        for batch, prompt in pairs:
            found = []
            for mode in ("none", "full"):
                found.append(measure(model, gpu, batch, prompt, args.tokens, mode))
                advance(f"{batch} x {prompt}, mode {mode}")
            gains.append(GraphGain(found[0].launches, found[0].times, found[1].times))
    _print(gains)
    session.finish(gpu, results=gains)
    return 0


def _print(gains: list[GraphGain]) -> None:
    table = new_table(
        f"a decode step, mean over {counted(gains[0].eager.tokens, 'token')}, driven by the engine",
        "batch x prompt",
        *("eager (mode none)", "graph (mode full)", "saved", "eager / graph", "GPU replay"),
        *("graph launch", "launches"),
    )
    for gain in gains:
        eager, graph = gain.eager, gain.graph
        table.add_row(
            f"{graph.batch} x {graph.prompt_tokens}",
            milliseconds(eager.step_ms),
            milliseconds(graph.step_ms),
            milliseconds(gain.saved_ms),
            f"{eager.step_ms / graph.step_ms:.2f}",
            "" if graph.replay_ms is None else milliseconds(graph.replay_ms),
            "" if graph.launch_us is None else f"{graph.launch_us:.1f} us",
            f"{gain.launches}",
        )
    TableConsole().print(table)
