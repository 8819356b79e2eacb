"""The command ``cugraphs``: one module per subcommand.

A user's mistake is one line on stderr and exit code 2; ``--traceback`` shows where it came from.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

from cugraphs.one_line import one_line

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code.

    Raises:
        SystemExit: after --help, --version, or an option that does not exist.
    """
    _prepare_streams()
    wants_traceback = False
    try:
        try:
            args = _parser().parse_args(argv)
        finally:
            sys.stdout.flush()  # a closed pipe shows here, not at exit
        wants_traceback = args.traceback
        code: int = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        start = "\n" if sys.stderr.isatty() else ""  # the terminal has written ^C
        print(f"{start}cugraphs: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # whoever read our output has enough
        _drop_output()
        return EXIT_BROKEN_PIPE
    except (ValueError, TypeError, OSError, RuntimeError, MemoryError, ArithmeticError) as error:
        if isinstance(error, OSError):
            _drop_output()
        if wants_traceback:
            raise
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"cugraphs: error: {one_line(message, 2000)}", file=sys.stderr)
        return EXIT_ERROR
    return code


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and takes options only by their full names."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(allow_abbrev=False, **kwargs)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_ERROR, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    # Imported here, where an interrupt and an error of the import are met as any other.
    from cugraphs.cli import bench, chat, check, generate, inspect, plan, profile, tune

    parser = _Parser(
        prog="cugraphs", description="Llama safetensors, planned and run without a framework."
    )
    parser.add_argument("--version", action="version", version=f"cugraphs {_version()}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (generate, chat, plan, inspect, check, tune, bench, profile):
        module.add_parser(subparsers)
    return parser


def _prepare_streams() -> None:
    """Make the standard streams usable: open, and printing "?" for what they cannot encode."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 - each is open as long as we run
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _drop_output() -> None:
    """Throw away what stdout cannot take, so that Python does not complain of it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):  # no file behind it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version() -> str:
    try:
        return version("cugraphs")
    except PackageNotFoundError:  # a checkout that is not installed
        return "(not installed)"
