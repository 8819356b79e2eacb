"""What a step costs the host, without a GPU: scheduling, state and inputs, results, and text.

A pipeline runs as in an engine, over a device that computes nothing. Two loads: answers that never
end, and answers of a few hundred tokens, after each of which another sequence joins with its
prompt. Text is timed apart: it has a thread of its own. Phases are by the clock; the step's
processor time, in its thread alone, is told beside their sum, and the text's is such time too.
Collections of garbage by Python are counted by generation, with what they take of a step.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from cugraphs.arena import allocate_arrays
from cugraphs.checkpoint import Checkpoint
from cugraphs.cli.bench_session import check_counts
from cugraphs.cli.tables import TableConsole, new_table
from cugraphs.counted import counted
from cugraphs.cpu_device import CpuDevice
from cugraphs.host_bench import HostTimes, host_plan, length_of, time_host
from cugraphs.kernel import Array, ArrayType
from cugraphs.model_lookup import find_model
from cugraphs.models.llama import Llama
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.rope import cos_sin_table
from cugraphs.models.weights import ROPE_COS_SIN, weight_table
from cugraphs.statistics import PHASES
from cugraphs.tokenizer import Tokenizer

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the benchmark."""
    parser = subparsers.add_parser(
        "host", help="what a step costs the host; needs no GPU", description=__doc__
    )
    parser.add_argument(
        "model",
        nargs="?",
        default="demo",
        metavar="MODEL",
        help='whose tokenizer and vocabulary: a folder, "demo" (default), or a Hub id that is in '
        "the local cache; no weights are read",
    )
    parser.add_argument(
        "--rows",
        type=int,
        nargs="+",
        default=[1, 64, 256],
        metavar="N",
        help="sequences that run at once (default 1 64 256)",
    )
    parser.add_argument(
        "--steps", type=int, default=500, metavar="N", help="steps to time (default 500)"
    )
    parser.add_argument(
        "--answer",
        type=int,
        default=256,
        metavar="N",
        help="tokens of an answer in the load where sequences end and join (default 256)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    parser.add_argument(
        "--traceback", action="store_true", help="show the Python traceback of an error"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Time both loads at each number of rows, and print."""
    check_counts("--rows", args.rows)
    check_counts("--steps", [args.steps], 100_000)
    check_counts("--answer", [args.answer], 100_000)
    if args.json is not None and not args.json.resolve().parent.is_dir():
        raise ValueError(f"bench: {args.json} is in no folder that exists, expected one")
    folder = find_model(args.model, allow_download=False)
    with Checkpoint.open(folder) as checkpoint:
        config = LlamaConfig.from_hf(checkpoint.config, str(folder / "config.json"))
        tokenizer = Tokenizer.load(folder, checkpoint.config, checkpoint.generation_config)
    length = max(length_of(args.steps), length_of(args.answer))
    weights = _no_weights(config, length)
    results = []
    for rows in args.rows:
        for answer_tokens in (0, args.answer):
            plan = host_plan(
                Llama(config, "float32"),
                config,
                rows=rows,
                vocab_size=config.vocab_size,
                max_model_len=length,
            )
            results.append(
                time_host(plan, weights, tokenizer, answer_tokens=answer_tokens, steps=args.steps)
            )
    _print(args.model, results)
    if args.json is not None:
        record = {
            "benchmark": "host",
            "model": args.model,
            "machine": {"python": platform.python_version(), "cpu": platform.processor()},
            "results": [dataclasses.asdict(result) for result in results],
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


def _no_weights(config: LlamaConfig, max_model_len: int) -> dict[str, Array]:
    """Arrays of the weights' shapes that nobody writes or reads."""
    types = {name: ArrayType(w.shape, "float32") for name, w in weight_table(config).items()}
    rope = cos_sin_table(config.rope, config.head_dim, max_model_len)
    types[ROPE_COS_SIN] = ArrayType(rope.shape, "float32")
    return allocate_arrays(types, CpuDevice().allocate_bytes)


def _garbage(result: HostTimes) -> str:
    if not any(result.collections):
        return "none"
    return f"{'/'.join(map(str, result.collections))}: {result.collection_us:,.1f}"


def _print(model: str, results: list[HostTimes]) -> None:
    table = new_table(
        f"a step on the host, microseconds; {counted(results[0].steps, 'step')}, vocabulary of "
        f"{model}",
        "rows",
        *("answers of", *PHASES, "step", "its CPU", "collections of garbage", "text of a token"),
    )
    for result in results:
        table.add_row(
            f"{result.rows:,}",
            counted(result.answer_tokens, "token") if result.answer_tokens else "no end",
            *(f"{result.phase_us[phase]:,.1f}" for phase in PHASES),
            f"{result.step_us:,.1f}",
            f"{result.cpu_us:,.1f}",
            _garbage(result),
            f"{result.text_us:.2f}",
        )
    console = TableConsole()
    console.print(table)
    last = results[-2]
    where = new_table(
        f"where {counted(last.rows, 'row')} without an end spend it, under a profiler",
        "function",
        "us",
    )
    for place, microseconds in last.profile:
        where.add_row(place, f"{microseconds:,.1f}")
    console.print(where)
