"""Compile one instantiation of a ``.cu`` file to a cubin with NVRTC; no GPU and no CuPy needed.

Knows NVRTC's options, logs and names, and keeps cubins on disk. Does not load or launch them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from cugraphs.build_cache import cache_folder, cache_key, write_atomically
from cugraphs.kernel_source import INSTALL_CUDA, cuda_include_folder, include_folders, source_key
from cugraphs.start_times import span

# Shared memory that one block may have; every kernel is compiled for all of these.
MAX_SHARED_BYTES = {
    "sm_80": 163 * 1024,
    "sm_86": 99 * 1024,
    "sm_89": 99 * 1024,
    "sm_90": 227 * 1024,
    "sm_100": 227 * 1024,
    "sm_120": 99 * 1024,
}
ARCHITECTURES = tuple(MAX_SHARED_BYTES)
LOWEST_NVRTC = (12, 8)  # the first that knows sm_120

_CACHING_NVRTC = (12, 9)  # the first that keeps what it compiled, by its PTX
_OPTIONS = ("--std=c++17", "--ptxas-options=-v")
_NAMES_FILE = "__nv_name_map"
_ERROR = re.compile(
    r"^(?P<file>[^\n(]+)\((?P<line>\d+)\): (?:catastrophic )?error:? (?P<text>.*)$", re.M
)


class CompileError(ValueError):
    """NVRTC refused a source; one line that begins with ``file:line``. ``log`` is all it said."""

    def __init__(self, message: str, log: str = "") -> None:
        """Hold the line and the whole log."""
        super().__init__(message)
        self.log = log


@dataclass(frozen=True)
class Cubin:
    """One compiled ``__global__`` function.

    Args:
        data: the cubin, as the driver loads it.
        lowered_name: the function's name in it.
        log: what compiler and assembler said.
        registers: of a thread.
        spill_bytes: stored and loaded, in the function and what it calls; 0 is expected.
        stack_bytes: of a thread: spills, and arrays that are indexed at run time.
        shared_bytes: of a block, static; dynamic shared memory comes on top.
    """

    data: bytes
    lowered_name: str
    log: str = field(compare=False)  # it says how long the assembler took
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


def compile_cubin(source: Path, function: str, arch: str, *, options: Sequence[str] = ()) -> Cubin:
    """The cubin of ``function``, from disk if the same text was compiled before.

    Args:
        source: the ``.cu`` file.
        function: a C++ name with its template arguments: ``"rms_norm<float, 4, 32>"``.
        arch: ``"sm_90"`` or, for what only one generation has, ``"sm_90a"``.
        options: further options of NVRTC.

    Raises:
        CompileError: the source does not compile.
        RuntimeError: NVRTC or CUDA's headers are not installed, or NVRTC is too old.
    """
    path = _cubin_path(source, function, arch, options)
    cubin = _read(path)
    if cubin is None:
        with span(f"compile {function}"):
            cubin = _compile(source, function, arch, (*_OPTIONS, *options))
        _write(path, cubin)
    return cubin


def is_compiled(source: Path, function: str, arch: str, *, options: Sequence[str] = ()) -> bool:
    """Whether :func:`compile_cubin` finds it on disk, as far as a look at the folder tells."""
    return _cubin_path(source, function, arch, options).is_file()


def _cubin_path(source: Path, function: str, arch: str, options: Sequence[str]) -> Path:
    key = cache_key(source_key(source), function, arch, *_OPTIONS, *options, nvrtc_version())
    return cache_folder("cubins") / f"{source.stem}-{arch}-{key}.cubin"


@cache
def nvrtc_version() -> tuple[int, int]:
    """Major and minor version of the NVRTC that compiles here.

    Raises:
        RuntimeError: it is not installed, or older than :data:`LOWEST_NVRTC`.
    """
    nvrtc = _nvrtc()
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as error:  # cuda-bindings raises it when libnvrtc is nowhere
        raise RuntimeError(
            f"nvrtc: libnvrtc is not found, expected the wheel; {INSTALL_CUDA}"
        ) from error
    _check(nvrtc, status, "nvrtcVersion")
    if (major, minor) < LOWEST_NVRTC:
        raise RuntimeError(
            f"nvrtc: version is {major}.{minor}, expected at least "
            f"{LOWEST_NVRTC[0]}.{LOWEST_NVRTC[1]}; {INSTALL_CUDA}"
        )
    return major, minor


def _nvrtc() -> Any:  # noqa: ANN401  (a Cython module without types)
    """``cuda.bindings.nvrtc``."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise RuntimeError(
            f"nvrtc: cuda-bindings is not installed, expected it to compile kernels; {INSTALL_CUDA}"
        ) from error
    return nvrtc


def _check(nvrtc: Any, status: Any, call: str) -> None:  # noqa: ANN401
    """Refuse any status but success."""
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"nvrtc: {call} returned {status.name}, expected NVRTC_SUCCESS")


def _compile(source: Path, function: str, arch: str, options: Sequence[str]) -> Cubin:
    nvrtc = _nvrtc()
    include = cuda_include_folder(nvrtc_version()[0])
    folders = (*include_folders(source), include)
    arguments = [f"--gpu-architecture={arch}", *options, *(f"--include-path={f}" for f in folders)]
    if nvrtc_version() >= _CACHING_NVRTC:  # what comes from its cache has no log
        arguments.append("--no-cache")
    text = source.read_text(encoding="utf-8")
    status, program = nvrtc.nvrtcCreateProgram(text.encode(), source.name.encode(), 0, None, None)
    _check(nvrtc, status, "nvrtcCreateProgram")
    try:
        (status,) = nvrtc.nvrtcAddNameExpression(program, function.encode())
        _check(nvrtc, status, "nvrtcAddNameExpression")
        (status,) = nvrtc.nvrtcCompileProgram(
            program, len(arguments), [argument.encode() for argument in arguments]
        )
        log = _text(nvrtc, program, "ProgramLog")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(_first_error(log, source, function, arch), log)
        status, lowered = nvrtc.nvrtcGetLoweredName(program, function.encode())
        _check(nvrtc, status, "nvrtcGetLoweredName")
        return _with_usage(
            Cubin(_bytes(nvrtc, program, "CUBIN"), lowered.decode(), log, 0, 0, 0, 0)
        )
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _bytes(nvrtc: Any, program: Any, what: str) -> bytes:  # noqa: ANN401
    """The result ``what`` of a program, whose size NVRTC gives first."""
    status, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    _check(nvrtc, status, f"nvrtcGet{what}Size")
    data: bytes = b" " * size
    (status,) = getattr(nvrtc, f"nvrtcGet{what}")(program, data)  # fills the bytes in place
    _check(nvrtc, status, f"nvrtcGet{what}")
    return data


def _text(nvrtc: Any, program: Any, what: str) -> str:  # noqa: ANN401
    return _bytes(nvrtc, program, what).decode(errors="replace").rstrip("\0 \n")


def _first_error(log: str, source: Path, function: str, arch: str) -> str:
    """``file:line: what``, from a log that writes ``file(line): error: what``."""
    match = _ERROR.search(log)
    if match is None:
        lines = [line for line in log.splitlines() if "error" in line] or ["nvrtc: no message"]
        where = f"{source.name}: {lines[0].strip()}"
    elif match["file"] == _NAMES_FILE:  # NVRTC's own text, which names the function
        where = f"{source.name}: {match['text']}"
    else:
        where = f"{Path(match['file']).name}:{match['line']}: {match['text']}"
    return f"{where} (compiling {function} for {arch})"


def _with_usage(cubin: Cubin) -> Cubin:
    """The cubin with what the assembler's log says of its registers and memory."""
    # A section for each __global__ function: those that are no templates are compiled as well.
    sections = cubin.log.split("Compiling entry function ")
    own = next((part for part in sections if part.startswith(f"'{cubin.lowered_name}'")), "")
    registers = re.search(r"Used (\d+) registers", own)
    if registers is None:
        raise CompileError(f"nvrtc: the log says nothing of {cubin.lowered_name}", cubin.log)
    shared = re.search(r"(\d+) bytes smem", own)
    return replace(
        cubin,
        registers=int(registers[1]),
        spill_bytes=sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", own))),
        stack_bytes=sum(map(int, re.findall(r"(\d+) bytes stack frame", own))),
        shared_bytes=int(shared[1]) if shared else 0,
    )


# ------------------------------------------------------------------------------- the file on disk
# One line of JSON (all fields but the data), then the data. The hash tells a file that was cut off.


def _write(path: Path, cubin: Cubin) -> None:
    fields = asdict(cubin)
    del fields["data"]
    header = json.dumps({**fields, "hash": cache_key(cubin.data.hex())})
    write_atomically(path, header.encode() + b"\n" + cubin.data)


def _read(path: Path) -> Cubin | None:
    """The cubin in a file; None where there is no file or it is not whole."""
    try:
        header, _, data = path.read_bytes().partition(b"\n")
        fields = json.loads(header)
        if fields.pop("hash") != cache_key(data.hex()):
            return None
        return Cubin(data=data, **fields)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
