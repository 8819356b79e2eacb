"""Continue a text: the answer streams to stdout, notices and statistics go to stderr."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING

from cugraphs.cli.options import (
    add_model_options,
    add_sampling_options,
    check_sampling,
    load_llm,
    print_stats,
    sampling_params,
)
from cugraphs.counted import counted

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser("generate", help="continue a text", description=__doc__)
    add_model_options(parser)
    parser.add_argument("prompt", metavar="PROMPT", help='the text to continue; "-" reads stdin')
    parser.add_argument("--echo", action="store_true", help="print the prompt before the answer")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of streaming"
    )
    add_sampling_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load, generate, print."""
    check_sampling(args)
    prompt = _stdin() if args.prompt == "-" else args.prompt
    llm = load_llm(args, max_num_seqs=1)
    params = sampling_params(args, llm)
    start = time.perf_counter()
    if args.json:
        output = llm.generate(prompt, params)[0]
        seconds = time.perf_counter() - start
        record = {**dataclasses.asdict(output), "seconds": round(seconds, 6)}
        print(json.dumps(record))
        print_stats(args, llm)
        return 0
    stream = llm.stream(prompt, params)
    if args.echo:
        print(prompt, end="", flush=True)
    first_s = None
    for piece in stream:
        first_s = first_s or time.perf_counter() - start
        print(piece, end="", flush=True)
    seconds = time.perf_counter() - start
    print(flush=True)
    output = stream.output
    answer, times = output.outputs[0], output.times
    tokens = len(answer.token_ids)
    # By the engine's clock: text comes some tokens at a time.
    token_s = times.time_per_output_token_s if times is not None else None
    rate = f", {1 / token_s:.1f} tokens/s after the first" if token_s else ""
    print(
        f"cugraphs: {counted(tokens, 'token')} in {seconds:.2f} s, first text after "
        f"{(first_s or seconds) * 1e3:.0f} ms{rate}; finish_reason {answer.finish_reason}",
        file=sys.stderr,
    )
    print_stats(args, llm)
    return 0


def _stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"generate: stdin is no valid text ({error}), expected UTF-8") from None
