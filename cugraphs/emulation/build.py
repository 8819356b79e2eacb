"""Build instantiations of a ``.cu`` file as a library for the CPU, with g++, and keep it on disk.

Knows the compiler, its flags and its messages. Does not load or run what it builds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from cugraphs.build_cache import cache_folder, cache_key
from cugraphs.kernel_source import cuda_include_folder, include_folders, source_key

CPP_FOLDER = Path(__file__).resolve().parent / "cpp"
_HEADER = "cuda_on_cpu.h"
RUNTIME_SOURCES = (
    "launch.cpp",
    "scheduler.cpp",
    "shared_image.cpp",
    "kernel_calls.cpp",
    "checks.cpp",
    "order.cpp",
    "meetings.cpp",
    "phases.cpp",
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
_PLAIN = ("-O1", "-fwrapv")  # an int overflows as it does on the GPU
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
    flags = (*_COMMON, "-O2", "-shared")

    def build(made: str, _: str) -> None:
        _run([*flags, *(str(CPP_FOLDER / name) for name in RUNTIME_SOURCES), "-o", made], "", "")

    return _build_once("runtime-{}.so", cache_key(*flags), build)


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
    flags = (*_KERNEL, *(_CHECKED if checked else _PLAIN))
    cuda = cuda_include_folder()
    text = f'#include "{_HEADER}"\n#include "{source.resolve()}"\n'
    text += "".join(f"EMU_EXPORT(emu_function_{i}, {f})\n" for i, f in enumerate(functions))

    def build(made: str, scratch: str) -> None:
        known = _precompiled_header(flags, cuda).parent
        folders = [f"-I{folder}" for folder in (known, CPP_FOLDER, *include_folders(source))]
        part = f"{scratch}/kernel.o"
        compile_ = [*flags, *folders, "-isystem", str(cuda), "-x", "c++", "-c", "-", "-o", part]
        _run(compile_, text, source.name)
        # Linked without -fsanitize, which would bring the sanitizers' own runtime in.
        parts = [part, str(CPP_FOLDER / "shared_memory.cpp"), str(build_runtime())]
        _run([*_KERNEL, *parts, "-shared", "-Wl,-z,defs", "-o", made], "", source.name)

    # The folder of the source is no part of the key: copies of one kernel share one library.
    key = cache_key(*flags, cuda, source_key(source), *functions)
    return _build_once(f"{source.stem}-{'checked' if checked else 'plain'}-{{}}.so", key, build)


def _precompiled_header(flags: Sequence[str], cuda: Path) -> Path:
    """What every kernel includes first, read once: a third of a second of each build.

    In a folder of its own, where g++ looks before it looks for the text.
    """

    def build(made: str, _: str) -> None:
        folders = [f"-I{CPP_FOLDER}", "-isystem", str(cuda)]
        text = str(CPP_FOLDER / _HEADER)
        _run([*flags, *folders, "-x", "c++-header", text, "-o", made], "", _HEADER)

    return _build_once(f"header-{{}}/{_HEADER}.gch", cache_key(*flags, cuda), build)


def _build_once(name: str, key: str, build: Callable[[str, str], None]) -> Path:
    """The file in the cache; if it is not there, ``build(path, scratch folder)`` makes it.

    Args:
        name: of the file, with ``{}`` for all that it depends on.
        key: what else it depends on than g++ and the runtime's own files.
        build: makes it.
    """
    own_files = sorted(file for file in CPP_FOLDER.rglob("*") if file.is_file())
    key = cache_key(key, _compiler_version(), *map(Path.read_text, own_files))
    folder = cache_folder("emulation")
    path = folder / name.format(key)
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
            made = f"{scratch}/{path.name}"
            build(made, scratch)
            path.parent.mkdir(exist_ok=True)
            os.replace(made, path)
    return path


@cache
def _compiler_version() -> str:
    return subprocess.run(
        [compiler(), "--version"], capture_output=True, text=True, check=True
    ).stdout


def _run(arguments: Sequence[str], text: str, who: str) -> None:
    """Call g++ on ``text`` and turn its first complaint into one line."""
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
