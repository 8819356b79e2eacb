"""The arguments of ``cugraphs``: every subcommand's, which imports all that they need."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

from cugraphs.cli import bench, chat, check, generate, inspect, plan, profile, tune
from cugraphs.cli.exit_codes import EXIT_ERROR


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and takes options only by their full names."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(allow_abbrev=False, **kwargs)  # type: ignore[arg-type]

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse what is left over here, where it is known whose options these could have been."""
        known, left = super().parse_known_args(args, namespace)
        if left:
            near = difflib.get_close_matches(left[0].partition("=")[0], self._option_string_actions)
            hint = f" (did you mean {near[0]}?)" if near else ""
            self.error(f"unrecognized arguments: {' '.join(left)}{hint}")
        return known, left

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_ERROR, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = _Parser(
        prog="cugraphs", description="Llama safetensors, planned and run without a framework."
    )
    parser.add_argument("--version", action="version", version=f"cugraphs {_version()}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (generate, chat, plan, inspect, check, tune, bench, profile):
        module.add_parser(subparsers)
    return parser


def _version() -> str:
    try:
        return version("cugraphs")
    except PackageNotFoundError:  # a checkout that is not installed
        return "(not installed)"
