"""Prove kernels on this machine, the project's or a user's own, or time them on its GPU.

Runs the stages that the machine has the tools for and names those that it lacks.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from cugraphs.cli.kernel_bench import bench
from cugraphs.cli.tables import TableConsole
from cugraphs.kernel import CUDA_TYPES, Kernel
from cugraphs.kernels import ALL
from cugraphs.one_line import one_line
from cugraphs.testing import (
    STAGES,
    CheckResult,
    check_kernel,
    check_plan,
    missing_tools,
)

if TYPE_CHECKING:
    from argparse import _SubParsersAction

EXIT_FAILED = 1


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser("check", help="prove kernels", description=__doc__)
    parser.add_argument(
        "kernels",
        metavar="KERNEL",
        nargs="*",
        help="FILE.py:NAME of your own declaration, FILE.py for all in it, or the name of one of "
        "this project's (default: all of those)",
    )
    parser.add_argument(
        "--stage", action="append", choices=STAGES, help="run only this; may be repeated"
    )
    parser.add_argument(
        "--dtype", action="append", choices=[*CUDA_TYPES], help="only this; may be repeated"
    )
    parser.add_argument(
        "--bench",
        action="store_true",
        help="time the kernels' benchmarks on the GPU instead of proving them (in bfloat16, unless "
        "--dtype is given)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--traceback", action="store_true", help="show the Python traceback of an error"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check, print a table, and return 1 if something failed."""
    kernels = _find_kernels(args.kernels)
    if args.bench:
        if args.stage:
            raise ValueError("check: --bench and --stage are both given, expected one of them")
        return bench(kernels, args.dtype, as_json=args.json)
    missing = missing_tools()
    stages = args.stage or [stage for stage in STAGES if stage not in missing]
    if not stages:
        raise RuntimeError(f"check: this machine can run no stage; {missing['emulate']}")
    results = _check_all(kernels, stages, args.dtype)
    skipped = {} if args.stage else missing
    num_failed = sum(not result.passed for result in results)
    if args.json:
        record = {
            "stages": stages,
            "missing": skipped,
            "passed": len(results) - num_failed,
            "failed": num_failed,
            "results": [dataclasses.asdict(result) for result in results],
        }
        print(json.dumps(record))
    else:
        TableConsole().print(_table(results))
        for result in results:
            if not result.passed:
                print(result)
        for stage, why in skipped.items():
            print(f"not run: {stage} ({why})")
        print(
            f"{len(results) - num_failed} passed, {num_failed} failed; stages: {', '.join(stages)}"
        )
    return EXIT_FAILED if num_failed else 0


def _check_all(
    kernels: Sequence[Kernel], stages: Sequence[str], dtypes: Sequence[str] | None
) -> list[CheckResult]:
    """Every result, with a progress bar on stderr that shows only on a terminal."""
    console = Console(file=sys.stderr)
    total = sum(len(check_plan(kernel, dtypes)) for kernel in kernels) * len(stages)
    results: list[CheckResult] = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task: TaskID = bar.add_task("", total=total)
        for kernel in kernels:
            bar.update(task, description=kernel.name)
            results += check_kernel(
                kernel,
                stages=stages,
                dtypes=dtypes,
                progress=lambda _: bar.advance(task),
            )
    return results


def _table(results: Iterable[CheckResult]) -> Table:
    """A row for each kernel, case and dtype: the largest errors of all stages."""
    rows: dict[tuple[str, str, str], list[CheckResult]] = {}
    for result in results:
        rows.setdefault((result.kernel, result.case, result.dtype), []).append(result)
    table = Table(box=None, pad_edge=False)
    for column in ("kernel", "case", "dtype"):
        table.add_column(column, no_wrap=True)
    for column in ("max error", "allowed", "rms error", "allowed"):
        table.add_column(column, no_wrap=True, justify="right")
    table.add_column("result", no_wrap=True)
    for names, parts in rows.items():
        computed = [part for part in parts if part.stage != "compile"]
        errors = ["", "", "", ""]
        if computed:
            worst = max(computed, key=lambda part: part.found.max)
            pairs = (worst.found.max, worst.allowed.max, worst.found.rms, worst.allowed.rms)
            errors = [f"{value:.2g}" for value in pairs]
        failed = [part.stage for part in parts if not part.passed]
        table.add_row(*names, *errors, f"FAILED: {', '.join(failed)}" if failed else "passed")
    return table


# ------------------------------------------------------------------------------- finding kernels


def _find_kernels(names: Sequence[str]) -> list[Kernel]:
    """The declarations that were named; all of this project's that have a CUDA form by default."""
    if not names:
        return [kernel for kernel in ALL if kernel.source is not None]
    return [kernel for name in names for kernel in _find(name)]


def _find(name: str) -> list[Kernel]:
    path, _, attribute = name.partition(":")
    if not path.endswith(".py"):
        found = [kernel for kernel in ALL if kernel.name == name]
        if not found:
            raise ValueError(
                f"check: kernel is {name!r}, expected FILE.py:NAME or one of "
                f"{', '.join(kernel.name for kernel in ALL)}"
            )
        return found
    names = _load(Path(path))
    if attribute and attribute not in names:
        raise ValueError(
            f"check: {path} has no kernel {attribute!r}, expected one of {', '.join(names)}"
        )
    return [names[attribute]] if attribute else list(names.values())


def _load(path: Path) -> dict[str, Kernel]:
    """The declarations in a user's file, by name. The file is run.

    Raises:
        ValueError: there is no such file, it does not run, or declares no kernel.
    """
    if not path.is_file():
        raise ValueError(f"check: {path} does not exist, expected a Python file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickles look their module up
    sys.path.insert(0, str(path.resolve().parent))  # its own imports, as if it were run
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(
            f"check: {path} does not run: {type(error).__name__}: {one_line(error)}"
        ) from error
    finally:
        sys.path.pop(0)
    found = {name: value for name, value in vars(module).items() if isinstance(value, Kernel)}
    if not found:
        raise ValueError(f"check: {path} declares no Kernel, expected at least one")
    return found
