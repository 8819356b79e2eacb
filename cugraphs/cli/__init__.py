"""The command ``cugraphs``: one module per subcommand.

A user's mistake is one line on stderr and exit code 2; ``--traceback`` shows where it came from.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from cugraphs.cli import chat, generate, inspect

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\ncugraphs: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough. Python must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except (ValueError, TypeError, OSError, MemoryError, ArithmeticError) as error:
        if args.traceback:
            raise
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"cugraphs: error: {message}", file=sys.stderr)
        return EXIT_ERROR
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cugraphs", description="Llama safetensors, planned and run without a framework."
    )
    parser.add_argument("--version", action="version", version=f"cugraphs {_version()}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (generate, chat, inspect):
        module.add_parser(subparsers)
    return parser


def _version() -> str:
    try:
        return version("cugraphs")
    except PackageNotFoundError:  # a checkout that is not installed
        return "(not installed)"
