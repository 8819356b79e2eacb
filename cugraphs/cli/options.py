"""Options that several subcommands share, and what they make: an ``LLM`` and ``SamplingParams``."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from cugraphs.cli.held_interrupt import held_interrupt
from cugraphs.cuda_availability import CudaUnavailable, wake_driver
from cugraphs.device_choice import GPU_MEMORY_UTILIZATION
from cugraphs.llm import LLM
from cugraphs.model_shapes import MODEL_SHAPES
from cugraphs.sampling_params import SamplingParams

_SAMPLING = (
    ("max_tokens", int, "tokens to generate at most (default: until EOS or the model's limit)"),
    (
        "temperature",
        float,
        "0 takes the likeliest token (default: generation_config.json's; where that is 0 and "
        "--top-k, --top-p, --min-p or --seed is given, 1)",
    ),
    ("top_k", int, "sample from the K likeliest tokens only; 0 is off"),
    ("top_p", float, "sample from the likeliest tokens that together have this probability"),
    ("min_p", float, "drop tokens below this share of the likeliest token's probability"),
    ("repetition_penalty", float, "above 1 makes tokens of prompt and answer less likely"),
    ("presence_penalty", float, "subtracted from the logit of tokens already in the answer"),
    ("frequency_penalty", float, "subtracted once for each time they are in it"),
    ("seed", int, "makes the sampled tokens repeatable"),
    (
        "truncate_prompt_tokens",
        int,
        "keep the last so many tokens of a longer prompt; -1: as many as the model takes, which "
        "leaves room for one token of an answer",
    ),
)


def add_model_choice(
    parser: argparse.ArgumentParser,
    text: str = 'a folder with config.json, "demo", or a Hub id that is in the local cache',
) -> None:
    """Add MODEL, with ``text`` as its help, or a published shape in its place."""
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("model", nargs="?", metavar="MODEL", help=text)
    model.add_argument("--shape", metavar="NAME", help=f"in its place: {', '.join(MODEL_SHAPES)}")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add MODEL and the options that shape an ``LLM``."""
    parser.add_argument(
        "model", metavar="MODEL", help='a folder, "demo", or a Hub id such as org/name'
    )
    add_device_options(parser)
    parser.add_argument(
        "--stats", action="store_true", help="print graphs, steps and memory on stderr at the end"
    )


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """Add where and how an ``LLM`` computes, and what it may use."""
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    parser.add_argument(
        "--dtype",
        default="auto",
        help="auto, float32, float16 or bfloat16 (default: auto, the checkpoint's own on a GPU; "
        "the CPU computes in float32)",
    )
    parser.add_argument(
        "--allow-tf32",
        action="store_true",
        help="float32 matrix products may round their operands to TF32 on a GPU",
    )
    parser.add_argument(
        "--tuning-table",
        metavar="FILE",
        help="a table of `cugraphs tune` (default: what is found for the GPU)",
    )
    parser.add_argument(
        "--max-model-len",
        type=int,
        metavar="N",
        help="tokens of a sequence, prompt and answer (default: the model's own limit; of a "
        "benchmark, its longest request)",
    )
    parser.add_argument(
        "--num-kv-blocks",
        type=int,
        metavar="N",
        help="of the KV cache, 16 tokens each (default: what all sequences can use, or what there "
        "is memory for)",
    )
    parser.add_argument(
        "--gpu-memory-utilization",
        type=float,
        default=GPU_MEMORY_UTILIZATION,
        metavar="SHARE",
        help="of the GPU's memory, for everything (default: %(default)s)",
    )
    parser.add_argument(
        "--graph-mode",
        default="full_and_piecewise",
        help="what is captured on a GPU: none, piecewise, full or full_and_piecewise (the default)",
    )
    parser.add_argument(
        "--num-scheduler-steps",
        type=int,
        default=1,
        metavar="K",
        help="decode steps, 1 to 64, that are queued together while nobody could join (default 1)",
    )
    parser.add_argument(
        "--step-loops",
        action=argparse.BooleanOptionalAction,
        help="on a GPU those are one launch, which ends when all answers have or somebody comes "
        "(default: where K is more than 1); without, a prompt waits for all that are queued, up to "
        "2 K - 1 steps",
    )
    parser.add_argument(
        "--async-scheduling",
        action=argparse.BooleanOptionalAction,
        help="queue a step while the last still runs (default: on a GPU)",
    )
    parser.add_argument(
        "--traceback", action="store_true", help="show the Python traceback of an error"
    )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each sampling parameter that a person would type."""
    group = parser.add_argument_group("sampling")
    for name, type_, text in _SAMPLING:
        flag = "--" + name.replace("_", "-")
        group.add_argument(flag, type=type_, metavar=type_.__name__.upper(), help=text)
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be repeated"
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on after EOS")


def sampling_params(args: argparse.Namespace, llm: LLM) -> SamplingParams:
    """The model's own sampling, with what was given on the command line in its place.

    A command prints one answer, whatever ``n`` the model asks for.

    Raises:
        TypeError, ValueError: as of ``SamplingParams``, and where the model's own are wrong and no
            temperature was given.
    """
    given = _given_sampling(args)
    try:
        default = llm.default_params()
    except (TypeError, ValueError) as error:
        if args.temperature is None:
            raise ValueError(f"{error}; here: give --temperature") from None
        default = SamplingParams()
    if default.is_greedy and given.keys() & {"top_k", "top_p", "min_p", "seed"}:
        given.setdefault("temperature", 1.0)
    return dataclasses.replace(default, n=1, **given)


def check_sampling(args: argparse.Namespace) -> None:
    """Refuse what no model takes, before one is loaded.

    Raises:
        TypeError, ValueError: as of ``SamplingParams``.
    """
    SamplingParams(**_given_sampling(args))


def _given_sampling(args: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(args, name) for name, _, _ in _SAMPLING}
    given = {name: value for name, value in given.items() if value is not None}
    if args.stop:
        given["stop"] = args.stop
    if args.ignore_eos:
        given["ignore_eos"] = True
    return given


def load_llm(args: argparse.Namespace, **limits: Any) -> LLM:  # noqa: ANN401 - as of LLM
    """Load the model with a progress bar on stderr, which shows only on a terminal.

    Args:
        args: with the options of :func:`add_device_options`, and the model.
        limits: what else ``LLM`` takes.
    """
    if args.device != "cpu":
        with held_interrupt():  # as LLM would, which leaves the handling of signals alone
            wake_driver()
    columns = (
        TextColumn("loading weights"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    console = Console(file=sys.stderr)
    with (
        device_as_option(),
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task("loading", total=None)
        return LLM(
            args.model,
            device=args.device,
            dtype=args.dtype,
            max_model_len=args.max_model_len,
            num_kv_blocks=args.num_kv_blocks,
            gpu_memory_utilization=args.gpu_memory_utilization,
            graph_mode=args.graph_mode,
            num_scheduler_steps=args.num_scheduler_steps,
            step_loops=args.step_loops,
            async_scheduling=args.async_scheduling,
            allow_tf32=args.allow_tf32,
            tuning_table=args.tuning_table,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
            **limits,
        )


@contextmanager
def device_as_option() -> Iterator[None]:
    """Where the library offers the CPU as its callers ask for it, offer the command's option."""
    try:
        yield
    except CudaUnavailable as error:
        if error.cpu_instead is None:
            raise
        raise CudaUnavailable(error.problem, cpu_instead="--device cpu") from error


def print_stats(args: argparse.Namespace, llm: LLM) -> None:
    """Print what ran and where memory went on stderr, where that is asked for."""
    if args.stats:
        print(f"{llm.stats()}\n{llm.memory_map()}", file=sys.stderr)
