"""The command ``cugraphs``: one module per subcommand.

A user's mistake is one line on stderr and exit code 2; ``--traceback`` shows where it came from.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence

from cugraphs.cli.exit_codes import EXIT_BROKEN_PIPE, EXIT_ERROR, EXIT_INTERRUPTED
from cugraphs.cli.held_interrupt import held_interrupt
from cugraphs.one_line import one_line


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code.

    Raises:
        SystemExit: after --help, --version, or an option that does not exist.
    """
    _prepare_streams()
    wants_traceback = False
    try:
        # What is imported above is little: nothing holds an interrupt back there.
        with held_interrupt():
            from cugraphs.cli.parser import make_parser

            parser = make_parser()
        try:
            args = parser.parse_args(argv)
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
        print(f"cugraphs: error: {one_line(_message(error), 2000)}", file=sys.stderr)
        return EXIT_ERROR
    return code


def _message(error: Exception) -> str:
    """What an error says, without the number of the system's."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return " ".join(text.split()) or type(error).__name__


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
