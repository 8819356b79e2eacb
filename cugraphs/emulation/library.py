"""Load a kernel that was built for the CPU and launch its functions on raw addresses.

Knows ctypes and the runtime's calls (``cpp/launch.cpp``). Does not know kernels' declarations.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from cugraphs.counted import counted
from cugraphs.emulation.build import build_kernel, build_runtime

ORDERS = {"forward": 0, "reverse": 1, "random": 2}
MAX_BLOCK_THREADS = 1024
MAX_GRID_YZ = 65535

_KINDS = {"p": "a pointer to const", "m": "a pointer", "i": "an integer", "f": "a float"}


class EmulationError(AssertionError):
    """A kernel did what it must not; one line that begins with ``file:line`` where it is known."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a ``__global__`` function: ``kind`` is one of p, m, i, f, s."""

    kind: str
    size_bytes: int
    pointee_bytes: int

    def __str__(self) -> str:
        """``a pointer to const of 2-byte elements``."""
        if self.pointee_bytes:
            return f"{_KINDS[self.kind]} to {self.pointee_bytes}-byte elements"
        return f"{_KINDS.get(self.kind, 'a struct')} of {self.size_bytes} bytes"


@dataclass(frozen=True)
class Buffer:
    """An operand as a launch sees it; ``address`` is 0 where it was left out.

    ``itemsize`` is 0 for scratch memory, to which any pointer fits, const or not. What is ``early``
    may be read before a programmatic launch waits, but for the elements in ``late``.
    """

    name: str
    address: int
    nbytes: int
    itemsize: int
    writable: bool
    uninitialised: bool
    early: bool = False
    late: tuple[range, ...] = ()


class _Function(ctypes.Structure):
    _fields_ = (
        ("call", ctypes.c_void_p),
        ("function", ctypes.c_void_p),
        ("parameters", ctypes.c_char_p),
    )


class _Variable(ctypes.Structure):
    _fields_ = (
        ("offset", ctypes.c_size_t),
        ("bytes", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
    )


# `tile` of _ZZ6kernelPfE4tile, the name of a __shared__ array; copies of one name end in _0, _1.
_LOCAL_NAME = re.compile(r".*E(?P<characters>\d+)(?P<name>[A-Za-z_]\w*)$")


class Library:
    """Some instantiations of one ``.cu`` file, plain or checked.

    All libraries share one runtime, which knows one set of operands and runs one launch at a time.
    """

    def __init__(self, source: Path, functions: Sequence[str], *, checked: bool) -> None:
        """Build what is not in the cache, then load it.

        Raises:
            BuildError: g++ refuses the source.
            RuntimeError: g++ or CUDA's headers are not installed.
        """
        self.checked = checked
        self.path = build_kernel(source, functions, checked=checked)
        self._runtime = _load_runtime()
        try:
            self._library = ctypes.CDLL(str(self.path))
        except OSError:  # a damaged file
            self.path.unlink()
            self._library = ctypes.CDLL(str(build_kernel(source, functions, checked=checked)))
        self._index = {function: i for i, function in enumerate(functions)}
        variables = _shared_variables(self.path) if checked else []
        self._variables = (_Variable * len(variables))(*variables)

    def parameters(self, function: str) -> tuple[Parameter, ...]:
        """The parameters of a function, in order."""
        entry = self._entry(function)
        entry.restype = _Function
        text = entry().parameters.decode()
        fields = (part.split() for part in text.split(";") if part)
        return tuple(Parameter(kind, int(size), int(to)) for kind, size, to in fields)

    def launch(
        self,
        function: str,
        grid: tuple[int, int, int],
        block: int,
        arguments: Sequence[Buffer | np.generic],
        *,
        shared_bytes: int = 0,
        order: str = "forward",
        seed: int = 0,
        programmatic: bool = False,
        settles: bool = False,
        cluster: int = 1,
        meets: bool = False,
        phases: int = 0,
    ) -> None:
        """Run every thread of the launch to its end.

        Args:
            function: one of those that the library was built with.
            grid: blocks in x, y and z.
            block: threads of a block.
            arguments: what the function takes, in order.
            shared_bytes: dynamic shared memory.
            order: in which warps, lanes and blocks take turns: a key of :data:`ORDERS`.
            seed: of the random order.
            programmatic: only what is early may be read before the wait.
            settles: no thread may let the next launch begin before it waits.
            cluster: blocks in x that run together; they divide the grid.
            meets: all blocks run together, and meet in memory.
            phases: that its blocks note, each some block.

        Raises:
            EmulationError: a check failed; the message names file and line. Or the system has no
                memory for the threads' stacks; it says how much they take and what limits it.
            ValueError: the launch's shape is one that no device takes.
        """
        if not 1 <= block <= MAX_BLOCK_THREADS:
            raise ValueError(f"{function}: block is {block}, expected 1 to {MAX_BLOCK_THREADS}")
        if min(grid) < 1 or max(grid[1:]) > MAX_GRID_YZ:
            raise ValueError(
                f"{function}: grid is {grid}, expected at least 1, and at most {MAX_GRID_YZ} "
                "blocks in y and z"
            )
        self._check_arguments(function, arguments)
        values = [_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, values))
        self._runtime.emu_set_order(ORDERS[order], ctypes.c_ulonglong(seed))
        failed = self._runtime.emu_launch(
            self._entry(function),
            self._library.emu_dynamic_shared,
            pointers,
            (ctypes.c_uint * 3)(*grid),
            block,
            shared_bytes,
            grid[0] if meets else cluster,
            int(meets),
            int(self.checked),
            int(programmatic),
            int(settles),
            phases,
            self._variables,
            len(self._variables),
        )
        if failed:
            raise EmulationError(self._failure(function))

    def register(self, buffers: Sequence[Buffer]) -> None:
        """Say which memory the following launches may access; a checked library needs it.

        Raises:
            EmulationError: the system has no memory to note in what is known of it.
        """
        self._runtime.emu_clear_operands()
        for buffer in buffers:
            if self.checked and buffer.address:
                failed = self._runtime.emu_add_operand(
                    ctypes.c_void_p(buffer.address),
                    ctypes.c_size_t(buffer.nbytes),
                    int(buffer.uninitialised),
                    int(buffer.writable),
                    int(buffer.early),
                    buffer.name.encode(),
                )
                if failed:
                    raise EmulationError(self._failure(f"operand {buffer.name}"))
                for elements in buffer.late:
                    self._runtime.emu_mark_late(
                        ctypes.c_void_p(buffer.address + elements.start * buffer.itemsize),
                        ctypes.c_size_t(len(elements) * buffer.itemsize),
                    )

    def _entry(self, function: str) -> ctypes._NamedFuncPointer:
        return self._library[f"emu_function_{self._index[function]}"]

    def _check_arguments(self, function: str, arguments: Sequence[Buffer | np.generic]) -> None:
        """Refuse arguments that the device would silently read as something else."""
        parameters = self.parameters(function)
        if len(arguments) != len(parameters):
            raise EmulationError(
                f"{function}: the launch passes {counted(len(arguments), 'argument')}, "
                f"the function takes {len(parameters)}"
            )
        for i, (argument, parameter) in enumerate(zip(arguments, parameters, strict=True)):
            if isinstance(argument, Buffer):
                pointer = "m" if argument.writable else "p"
                wanted = Parameter(pointer, ctypes.sizeof(ctypes.c_void_p), argument.itemsize)
                what = f"operand {argument.name}"
                # A null pointer fits any element, and so does void*.
                any_element = not argument.address or not parameter.pointee_bytes
                if not argument.itemsize and parameter.kind in ("p", "m"):
                    continue
            else:
                kind = {"f": "f", "V": "s"}.get(argument.dtype.kind, "i")
                wanted = Parameter(kind, argument.nbytes, 0)
                what, any_element = f"the scalar {argument!r}", False
            # What one launch of an op writes, another may only read.
            kinds = ("m", "p") if wanted.kind == "m" else (wanted.kind,)
            fits = parameter.kind in kinds and parameter.size_bytes == wanted.size_bytes
            fits &= any_element or parameter.pointee_bytes == wanted.pointee_bytes
            if not fits:
                raise EmulationError(
                    f"{function}: parameter {i} is {parameter}, expected {wanted} for {what}"
                )

    def _failure(self, function: str) -> str:
        """``file:line: what happened (function)``."""
        site = self._runtime.emu_failure_site().decode()
        offset = self._runtime.emu_failure_offset()
        if not site and offset:
            site = _source_line(self.path, offset)
        message = self._runtime.emu_failure().decode()
        return f"{site}: {message} ({function})" if site else f"{function}: {message}"


@cache
def _load_runtime() -> ctypes.CDLL:
    runtime = ctypes.CDLL(str(build_runtime()))
    runtime.emu_failure.restype = ctypes.c_char_p
    runtime.emu_failure_site.restype = ctypes.c_char_p
    runtime.emu_failure_offset.restype = ctypes.c_size_t
    return runtime


def _value(argument: Buffer | np.generic) -> ctypes.Array[ctypes.c_char]:
    """The bytes of an argument, as a launch passes them."""
    data = (
        argument.address.to_bytes(ctypes.sizeof(ctypes.c_void_p), "little")
        if isinstance(argument, Buffer)
        else argument.tobytes()
    )
    return ctypes.create_string_buffer(data, len(data))


def _shared_variables(library: Path) -> list[_Variable]:
    """Each ``__shared__`` variable of the library, and the guards beside them, which have no name.

    g++ notes in a guard that a ``__shared__`` array of a class (``__nv_bfloat16``) was initialised.
    Every thread reads it and would write it, but it is no memory of the kernel's: reported as a
    race it would be a false alarm. Poisoned memory says that the array is initialised, so no
    constructor ever runs.
    """
    done = subprocess.run(
        ["readelf", "--syms", "--wide", str(library)], capture_output=True, text=True, check=False
    )
    found = {}
    for row in map(str.split, done.stdout.splitlines()):
        if len(row) < 8 or row[3] != "TLS" or row[7] == "smem":
            continue
        offset, size, symbol = int(row[1], 16), int(row[2], 0), row[7]
        local = _LOCAL_NAME.search(symbol)
        name = local["name"][: int(local["characters"])] if local else symbol
        guard = symbol.startswith("_ZGV")
        found[offset] = _Variable(offset, size, None if guard else name.encode())
    return list(found.values())


def _source_line(library: Path, offset: int) -> str:
    """``file:line`` of an address: where the access stands, then where it was inlined."""
    done = subprocess.run(
        ["addr2line", "--inlines", "--basenames", "--exe", str(library), hex(offset)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.split(" (")[0] for line in done.stdout.splitlines()]
    return ", from ".join(dict.fromkeys(line for line in lines if not line.startswith("?")))
