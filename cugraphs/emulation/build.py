"""Build instantiations of a ``.cu`` file as a library for the CPU, with g++, and keep it on disk.

Knows the compiler, its flags and its messages. Does not load or run what it builds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from cugraphs.build_cache import cache_folder, cache_key
from cugraphs.kernel_source import cuda_include_folder, include_folders, source_key

CPP_FOLDER = Path(__file__).resolve().parent / "cpp"
RUNTIME_SOURCES = (
    "launch.cpp",
    "scheduler.cpp",
    "kernel_calls.cpp",
    "checks.cpp",
    "compiler_hooks.cpp",
    "fiber.cpp",
)

_COMMON = ("-std=c++17", "-fPIC", "-w")
_KERNEL = (
    *_COMMON,
    "-g1",  # lines, for the place of a failure
    # Otherwise the `static thread_local` of a template (a __shared__ array) is one symbol for the
    # whole process, and two libraries that are loaded at once share their "shared memory".
    "-fno-gnu-unique",
    "-fvisibility-inlines-hidden",
    "-fno-extern-tls-init",  # `extern __shared__` needs no initialisation call at each use
    "-fno-strict-aliasing",  # nvcc lets kernels read bytes as another type
)
_PLAIN = ("-O1",)
_CHECKED = (
    "-O1",
    "-fsanitize=thread",  # calls a hook at each access (cpp/compiler_hooks.cpp)
    "-fsanitize=alignment,bounds,signed-integer-overflow,shift,integer-divide-by-zero",
)
_ERROR = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):\d+: (?:fatal )?error: (?P<text>.*)$", re.M)
_UNDEFINED = re.compile(r"undefined (?:reference to|symbol:) `?([^'\n]+)")


class BuildError(ValueError):
    """g++ refused a kernel; one line that begins with ``file:line``."""


@cache
def compiler() -> str:
    """The path of g++.

    Raises:
        RuntimeError: it is not installed.
    """
    path = shutil.which("g++")
    if path is None:
        raise RuntimeError(
            "emulation: g++ is not found, expected it to build kernels for the CPU; "
            "install it (Debian, Ubuntu: sudo apt-get install g++)"
        )
    return path


@cache
def build_runtime() -> Path:
    """The library that schedules the threads of every kernel; built once."""
    sources = [CPP_FOLDER / name for name in RUNTIME_SOURCES]
    return _build_once("runtime", (*_COMMON, "-O2", "-shared"), sources, "")


def build_kernel(source: Path, functions: Sequence[str], *, checked: bool) -> Path:
    """The library that exports ``functions`` as ``emu_function_0``, ``emu_function_1`` and so on.

    Args:
        source: the ``.cu`` file; its text is compiled unchanged.
        functions: C++ names with their template arguments.
        checked: with the hooks that find races, bad addresses and uninitialised reads.

    Raises:
        BuildError: g++ refuses the text, or a name is not a function of it.
        RuntimeError: g++ or CUDA's headers are not installed.
    """
    text = f'#include "cuda_on_cpu.h"\n#include "{source.resolve()}"\n'
    text += "".join(f"EMU_EXPORT(emu_function_{i}, {f})\n" for i, f in enumerate(functions))
    flags = (
        *_KERNEL,
        *(_CHECKED if checked else _PLAIN),
        *(f"-I{folder}" for folder in (CPP_FOLDER, *include_folders(source))),
        "-isystem",
        str(cuda_include_folder()),
    )
    name = f"{source.stem}-{'checked' if checked else 'plain'}"
    return _build_once(name, flags, [], text, source)


def _build_once(
    name: str, flags: Sequence[str], sources: Sequence[Path], text: str, kernel: Path | None = None
) -> Path:
    """The library in the cache, built if it is not there."""
    headers = sorted(file for file in CPP_FOLDER.rglob("*") if file.is_file())
    version = _compiler_version()
    key = cache_key(
        *flags, text, version, *map(Path.read_text, headers), kernel and source_key(kernel)
    )
    library = cache_folder("emulation") / f"{name}-{key}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".build-") as folder:
        made = Path(folder) / "library.so"
        if kernel is None:
            _run([*flags, *map(str, sources), "-o", str(made)], "", kernel)
        else:
            part = f"{folder}/kernel.o"
            _run([*flags, "-x", "c++", "-c", "-", "-o", part], text, kernel)
            # Linked without -fsanitize, which would bring the sanitizers' own runtime in.
            parts = [part, str(CPP_FOLDER / "shared_memory.cpp"), str(build_runtime())]
            link = ["-shared", "-Wl,-z,defs", "-o", str(made)]
            _run([*_KERNEL, *parts, *link], "", kernel)
        os.replace(made, library)
    return library


@cache
def _compiler_version() -> str:
    return subprocess.run(
        [compiler(), "--version"], capture_output=True, text=True, check=True
    ).stdout


def _run(arguments: Sequence[str], text: str, kernel: Path | None) -> None:
    """Call g++ and turn its first complaint into one line."""
    done = subprocess.run(
        [compiler(), *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode == 0:
        return
    who = kernel.name if kernel else "emulation"
    error, undefined = _ERROR.search(done.stderr), _UNDEFINED.search(done.stderr)
    if error and error["file"] != "<stdin>":
        raise BuildError(f"{Path(error['file']).name}:{error['line']}: {error['text']}")
    if error:
        raise BuildError(f"{who}: {error['text']}")
    if undefined:
        raise BuildError(
            f"{who}: {undefined[1]} is not defined; dynamic shared memory is named `smem` "
            "(extern __shared__ unsigned char smem[];)"
        )
    raise BuildError(f"{who}: g++ failed: {' '.join(done.stderr.split())[:300]}")
