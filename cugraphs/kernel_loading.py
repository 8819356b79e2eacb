"""Load the kernels of whole programs at once: those that are new are compiled together.

Binding a program would compile and load them one after the other, as it comes to each. What is
missed here is loaded when it is bound: this only makes a first start quicker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cugraphs.compile_processes import Function, compile_together
from cugraphs.kernel import Kernel, Launch, bind_axis, running_on
from cugraphs.program import Op, Program

ProgramSizes = tuple[Program, Mapping[str, int]]  # a program and the sizes that it is bound at


def load_kernels(
    programs: Iterable[ProgramSizes],
    arch: str,
    load: Callable[[Path, str, str, int], object],
    options: Sequence[str] = (),
    *,
    multiprocessors: int | None = None,
) -> None:
    """Load every function that the programs launch.

    Args:
        programs: to be bound at these sizes.
        arch: of the device.
        load: loads one, given also its dynamic shared memory in bytes.
        options: of the compiler, beside its usual ones.
        multiprocessors: of the device; None: as many as any launch wants.

    Raises:
        Exception: what ``load`` raises.
    """
    functions = launched_functions(programs, arch, multiprocessors)
    compile_together(list(functions), options)
    for function, amounts in functions.items():
        for shared_bytes in amounts:
            load(*function, shared_bytes)


def launched_functions(
    programs: Iterable[ProgramSizes], arch: str, multiprocessors: int | None = None
) -> dict[Function, set[int]]:
    """What the programs launch, each with the amounts of dynamic shared memory it is given."""
    functions: dict[Function, set[int]] = {}
    kinds: dict[int, dict[_Kind, None]] = {}  # of ops, by program: a model's layers are alike
    seen = set()
    for program, sizes in programs:
        if id(program) not in kinds:
            kinds[id(program)] = dict.fromkeys(map(_kind, program.ops))
        for kind in kinds[id(program)]:
            axes = tuple([(name, bind_axis(size, sizes)) for name, size in kind.axes])
            bound = replace(kind, axes=axes, dims=())
            if bound in seen:
                continue
            seen.add(bound)
            for launch in _launches(bound, arch, multiprocessors):
                source = kind.kernel.source
                assert source is not None, f"{kind.kernel.name}: launches without a source"
                function = (source, launch.function, launch.arch or arch)
                functions.setdefault(function, set()).add(launch.shared_bytes)
    return functions


@dataclass(frozen=True)
class _Kind:
    """What an op launches follows from this."""

    kernel: Kernel
    dtype: str
    axes: tuple[tuple[str, int], ...]
    attrs: tuple[tuple[str, Any], ...]
    dims: tuple[str, ...] = ()  # two axes that are bound apart may have one maximum


def _kind(op: Op) -> _Kind:
    dtype = op.kernel.dtype_of([buffer.type for buffer in op.operands])
    dims = tuple(map(repr, op.axes.values()))
    return _Kind(op.kernel, dtype, tuple(op.axes.items()), tuple(op.attrs.items()), dims)


def _launches(kind: _Kind, arch: str, multiprocessors: int | None) -> Iterator[Launch]:
    kernel, axes = kind.kernel, dict(kind.axes)
    if kernel.launches is not None and kernel.has_work(axes):
        launches = kernel.launches(axes, kind.dtype, **dict(kind.attrs))
        parts = running_on(arch, launches, multiprocessors)
        yield from (part for part in parts if isinstance(part, Launch))
