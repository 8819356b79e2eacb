"""Plants the bugs of tests/mutations/ in copies of the kernels and says which ones are noticed.

    python scripts/mutate_kernels.py
    python scripts/mutate_kernels.py --kernel linear --kernel rms_norm --jobs 2
    python scripts/mutate_kernels.py --list

Needs g++ and no GPU. Each bug is planted alone, in a copy of kernels/ in a temporary folder. Then
the kernel's cases run through the emulation in all dtypes, checked and plain in three orders, and
after them the identities of tests/emulated_identities, until something is red. A kernel without
a bug goes first and must be green; three times its processor time, and some more, is what a bug may
take, so that a loop without an end is red. Prints a table, then the survivors and the share that
was noticed. Exit code 1 where that is below 95 %, or where a kernel is red without a bug.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NEEDED_SHARE = 0.95
FIRST_LIMIT_S = 600  # of processor time, while nothing is known about a kernel
EXTRA_LIMIT_S = 20
CASES_AT_A_TIME = 6  # are built together: a bug that the first cases notice costs no more building

sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported

from mutations import MUTATIONS, Mutation  # type: ignore[import-not-found]  # noqa: E402


@dataclass(frozen=True)
class Outcome:
    """What became of one kernel with a bug, or without one.

    Args:
        red: what noticed it (``case dtype run: message``); empty where nothing did.
        seconds: processor time of the process that ran it.
    """

    red: str
    seconds: float


class _Red(Exception):
    """The first result that is wrong."""


def copy_of_kernels(folder: Path, mutation: Mutation | None) -> None:
    """Put kernels/ into ``folder``, with the bug in it.

    Raises:
        ValueError: the text that the mutation replaces is not there exactly once.
    """
    copy = folder / "kernels"
    shutil.copytree(ROOT / "kernels", copy, ignore=shutil.ignore_patterns("__pycache__"))
    if mutation is not None:
        file = copy / mutation.file
        file.write_text(mutation.apply(file.read_text("utf-8")), "utf-8")


def prove(
    kernel: str,
    mutation: Mutation | None,
    limit_s: float = FIRST_LIMIT_S,
    cases: Sequence[str] = (),
) -> Outcome:
    """Run a kernel with a bug, in a process of its own, until something is red.

    Args:
        kernel: its name.
        mutation: the bug, or None.
        limit_s: of processor time.
        cases: the only ones that run, and no identities; by default everything.
    """
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="cugraphs-mutation-") as name:
        copy_of_kernels(Path(name), mutation)
        receiver, sender = spawn.Pipe(duplex=False)
        arguments = (sender, name, kernel, tuple(cases), max(1, round(limit_s)))
        process = spawn.Process(target=_prove_in_child, args=arguments)
        process.start()
        sender.close()
        process.join(10 * limit_s)  # a process that waits uses no processor time
        if process.is_alive():
            process.kill()
            process.join()
            return Outcome("time limit: it waits for ever", limit_s)
        if receiver.poll():
            try:
                outcome: Outcome = receiver.recv()
                return outcome
            except EOFError:
                pass
        if process.exitcode is not None and process.exitcode < 0:
            number = signal.Signals(-process.exitcode)
            if number is signal.SIGXCPU:
                return Outcome(f"time limit: more than {limit_s:.0f} s", limit_s)
            return Outcome(f"the process ended: {number.name}", 0.0)
        return Outcome(f"the process ended: exit code {process.exitcode}", 0.0)


def _prove_in_child(
    sender: Connection, folder: str, name: str, cases: Sequence[str], limit_s: int
) -> None:
    """Prove the kernel of the copy in ``folder``; sends an Outcome, or dies of a signal."""
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path.insert(0, folder)  # so that `kernels` is the copy
    import kernels

    assert Path(kernels.__file__).is_relative_to(folder), f"{kernels.__file__} is not the copy"
    red = ""
    try:
        _until_red({kernel.name: kernel for kernel in kernels.ALL}, name, cases)
    except _Red as found:
        red = str(found)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    sender.send(Outcome(red, usage.ru_utime + usage.ru_stime))


def _until_red(kernels: dict[str, Any], name: str, cases: Sequence[str]) -> None:
    """All cases of a kernel, then its identities.

    Raises:
        _Red: the first of them that fails.
    """
    from cugraphs.testing import CheckResult, check_kernel

    def refuse(result: CheckResult) -> None:
        if not result.passed:
            raise _Red(f"{result.case} {result.dtype} {result.message}")

    kernel = kernels[name]
    chosen = [case for case in kernel.cases if not cases or case.name in cases]
    for first in range(0, len(chosen), CASES_AT_A_TIME):
        part = replace(kernel, cases=tuple(chosen[first : first + CASES_AT_A_TIME]))
        check_kernel(part, stages=["emulate"], progress=refuse)
    if cases:
        return
    from emulated_identities import IDENTITIES  # type: ignore[import-not-found]

    for identity in IDENTITIES[name]:
        try:
            identity(kernels)
        except (AssertionError, ValueError) as problem:
            raise _Red(f"{identity.__name__} {problem}") from None
        except OSError as problem:  # too little address space for far_blocks
            print(f"{name}: {identity.__name__} cannot run here: {problem}", file=sys.stderr)


@contextmanager
def own_cache() -> Iterator[None]:
    """What is built meanwhile goes to a temporary folder, not to the user's cache."""
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory(prefix="cugraphs-mutation-cache-") as name:
        os.environ["XDG_CACHE_HOME"] = name
        try:
            yield
        finally:
            del os.environ["XDG_CACHE_HOME"]
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before


def main() -> int:
    """Plant, prove, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = list(dict.fromkeys(mutation.kernel for mutation in MUTATIONS))
    parser.add_argument(
        "--kernel", action="append", choices=known, help="only this one; repeatable"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    parser.add_argument("--list", action="store_true", help="print the bugs and plant none")
    arguments = parser.parse_args()
    chosen = [m for m in MUTATIONS if not arguments.kernel or m.kernel in arguments.kernel]
    for mutation in chosen:  # before any work, and for --list too
        mutation.apply((ROOT / "kernels" / mutation.file).read_text("utf-8"))
    if arguments.list:
        for mutation in chosen:
            print(f"{mutation.kernel:24} {mutation.file:28} {mutation.bug}")
        print(f"{len(chosen)} bugs")
        return 0
    with own_cache():
        return _run(chosen, arguments.jobs)


def _run(chosen: Sequence[Mutation], jobs: int) -> int:
    started = time.perf_counter()
    names = list(dict.fromkeys(mutation.kernel for mutation in chosen))
    survivors: list[Mutation] = []
    num_proven, healthy = 0, True
    with ThreadPoolExecutor(jobs) as pool:
        controls = dict(zip(names, pool.map(lambda name: prove(name, None), names), strict=True))
        for name in names:
            control = controls[name]
            if control.red:
                healthy = False
                print(f"{name}: red without a bug, so none is planted: {control.red}\n", flush=True)
                continue
            limit_s = EXTRA_LIMIT_S + 3 * control.seconds
            own = [mutation for mutation in chosen if mutation.kernel == name]
            print(f"{name}: {len(own)} bugs, green without one in {control.seconds:.1f} s")
            outcomes = pool.map(lambda m, limit_s=limit_s: prove(m.kernel, m, limit_s), own)
            for mutation, outcome in zip(own, outcomes, strict=True):
                num_proven += 1
                verdict = "red" if outcome.red else "SURVIVED"
                if not outcome.red:
                    survivors.append(mutation)
                told = outcome.red if len(outcome.red) <= 110 else outcome.red[:107] + "..."
                print(f"  {verdict:9}{mutation.file:28}{mutation.bug:60}{told}", flush=True)
            print()
    print(f"{len(survivors)} survivors of {num_proven}")
    for mutation in survivors:
        print(f"  {mutation.kernel}: {mutation.file}: {mutation.bug}")
    share = 1 - len(survivors) / max(num_proven, 1)
    minutes = (time.perf_counter() - started) / 60
    print(f"{share:.1%} turned red, expected at least {NEEDED_SHARE:.0%}; {minutes:.1f} minutes")
    return 0 if healthy and share >= NEEDED_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
