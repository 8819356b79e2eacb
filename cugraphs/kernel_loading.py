"""Load the kernels of whole programs at once, in threads: those that are new are compiled together.

Binding a program would load them one after the other. NVRTC and the driver work without Python's
lock, so a first start takes about as long as its slowest kernel. What is missed here is loaded when
it is bound: this only makes it quicker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cugraphs.kernel import Launch, bind_axis
from cugraphs.program import Op, Program

MOST_THREADS = 16

ProgramSizes = tuple[Program, Mapping[str, int]]  # a program and the sizes that it is bound at
Function = tuple[Path, str, str]  # source, function with template arguments, architecture


def load_kernels(
    programs: Iterable[ProgramSizes], arch: str, load: Callable[[Path, str, str, int], object]
) -> None:
    """Load every function that the programs launch.

    Args:
        programs: to be bound at these sizes.
        arch: of the device.
        load: loads one, given also its dynamic shared memory in bytes; called from threads.

    Raises:
        Exception: what ``load`` raises.
    """
    functions = launched_functions(programs, arch)

    def load_all(function: Function) -> None:
        for shared_bytes in functions[function]:  # in one thread: one compilation
            load(*function, shared_bytes)

    threads = min(MOST_THREADS, len(functions), len(os.sched_getaffinity(0)))
    if threads:
        with ThreadPoolExecutor(threads, thread_name_prefix="cugraphs kernels") as pool:
            list(pool.map(load_all, functions))


def launched_functions(programs: Iterable[ProgramSizes], arch: str) -> dict[Function, set[int]]:
    """What the programs launch, each with the amounts of dynamic shared memory it is given."""
    functions: dict[Function, set[int]] = {}
    seen = set()
    for program, sizes in programs:
        for op in program.ops:
            axes = {name: bind_axis(size, sizes) for name, size in op.axes.items()}
            dtype = op.kernel.dtype_of([buffer.type for buffer in op.operands])
            key = (op.kernel.name, dtype, tuple(axes.items()), tuple(op.attrs.items()))
            if key in seen:  # a model's layers are alike
                continue
            seen.add(key)
            for launch in _launches(op, axes, dtype, arch):
                assert op.kernel.source is not None, f"{op.kernel.name}: launches without a source"
                function = (op.kernel.source, launch.function, launch.arch or arch)
                functions.setdefault(function, set()).add(launch.shared_bytes)
    return functions


def _launches(op: Op, axes: Mapping[str, int], dtype: str, arch: str) -> Iterator[Launch]:
    kernel = op.kernel
    if kernel.launches is not None and kernel.has_work(axes):
        for part in kernel.launches(axes, dtype, **op.attrs):
            if isinstance(part, Launch):
                yield from part.on(arch)
