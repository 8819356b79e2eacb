"""Compile several kernels at once, in processes of their own, into the cache on disk.

In one process NVRTC compiles hardly faster with more threads, and what the assembler says of each
kernel is then lost. A process takes the next kernel as soon as it is done with one. Whatever goes
wrong here is left to whoever wants the kernel: it compiles it, and sees the error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cugraphs.build_cache import cache_folder
from cugraphs.counted import counted
from cugraphs.nvrtc import compile_cubin, is_compiled
from cugraphs.start_times import span

MOST_PROCESSES = 16
_MOST_FUNCTIONS = 256
_LIMIT_S = 120.0  # a kernel takes a second
_PROGRAM = "import sys; sys.path[:] = {path}; from cugraphs.compile_processes import work; work()"

Function = tuple[Path, str, str]  # source, function with template arguments, architecture


def compile_together(functions: Sequence[Function], options: Sequence[str] = ()) -> int:
    """Compile those that are in no cache; returns in how many processes.

    A single one is left to its caller, and so is everything where there is one core, or no cache
    that other processes can find.
    """
    missing = [function for function in functions if not is_compiled(*function, options=options)]
    count = min(MOST_PROCESSES, len(missing), len(os.sched_getaffinity(0)))
    shared = cache_folder("cubins").parent.name == "cugraphs"
    if count < 2 or not shared or not sys.executable:
        return 0
    with span(
        f"compile {counted(len(missing), 'kernel')} in {counted(count, 'process', 'processes')}"
    ):
        return _compile_in_processes(missing[:_MOST_FUNCTIONS], options, count)


def _compile_in_processes(missing: Sequence[Function], options: Sequence[str], count: int) -> int:
    """Compile all, in so many processes; returns how many could be started."""
    # Everybody reads the number of the next kernel from one pipe, a byte each.
    reading, writing = os.pipe()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        os.write(writing, bytes(range(len(missing))))
        os.close(writing)
        job = json.dumps([[[str(source), *rest] for source, *rest in missing], list(options)])
        program = _PROGRAM.format(path=sys.path)
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-c", program, str(reading), job],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[reading],
            )
            processes.append(process)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LIMIT_S)
    except OSError:  # no more processes
        pass
    finally:
        os.close(reading)
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    return len(processes)


def work() -> None:
    """What each process does: compile the next kernel until there is none."""
    reading, (functions, options) = int(sys.argv[1]), json.loads(sys.argv[2])
    while number := os.read(reading, 1):
        source, function, arch = functions[number[0]]
        with suppress(ValueError, RuntimeError):  # the caller meets it again
            compile_cubin(Path(source), function, arch, options=options)
