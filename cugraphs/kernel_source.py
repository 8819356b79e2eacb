"""The text that one ``.cu`` file stands for: its own headers, CUDA's headers, and a hash of both.

Knows where files lie and what includes what; compiles nothing and never imports CUDA.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

from cugraphs.build_cache import cache_key

# Headers that a kernel of a user may include too, as #include "common.cuh".
KERNELS_FOLDER = Path(__file__).resolve().parent / "kernels"
INSTALL_CUDA = "pip install 'cugraphs[cuda13]' (or cuda12, for drivers before 580)"

_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
# Inside the namespace package `nvidia` of the wheels: CUDA 13, CUDA 12.
_WHEEL_FOLDERS = {13: ("cu13/include",), 12: ("cuda_runtime/include",)}
_SYSTEM_FOLDERS = ("/usr/local/cuda/include",)
_NEEDED_HEADERS = ("cuda_fp16.h", "cuda_bf16.h", "vector_types.h")


def include_folders(source: Path) -> tuple[Path, Path]:
    """Where a source's own headers are looked for: beside it, then among this project's kernels."""
    return source.resolve().parent, KERNELS_FOLDER


def source_files(source: Path) -> tuple[Path, ...]:
    """The source and every header that it includes in quotes, each once, in order of inclusion.

    Raises:
        FileNotFoundError: the source does not exist.
    """
    if not source.is_file():
        raise FileNotFoundError(f"kernel source: {source} does not exist, expected a .cu file")
    folders = include_folders(source)
    found: dict[Path, None] = {}
    waiting = [source.resolve()]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found[file] = None
        for name in reversed(_INCLUDE.findall(_text(file, _stamp(file)))):
            for folder in (file.parent, *folders):
                if (folder / name).is_file():
                    waiting.append((folder / name).resolve())
                    break
    return tuple(found)


def source_key(source: Path) -> str:
    """A hash of the text of :func:`source_files`: it changes whenever a compiled result may.

    It is computed once, until one of the files changes, or which files their folders hold.
    """
    if source in _KEYS:
        stamps, key = _KEYS[source]
        if stamps == {path: _stamp(path) for path in stamps}:
            return key
    before = {path.resolve(): _stamp(path) for path in include_folders(source)}
    files = source_files(source)
    before |= {file: _stamp(file) for file in files}
    texts = [(file.name, _text(file, before[file])) for file in files]
    key = cache_key(*(part for text in texts for part in text))
    if before == {path: _stamp(path) for path in before}:  # else it was changed meanwhile
        _KEYS[source] = before, key
    return key


@lru_cache(maxsize=256)  # most sources include the same headers
def _text(file: Path, stamp: tuple[int, int] | None) -> str:
    """The text of a file, as long as its stamp stays."""
    return file.read_text(encoding="utf-8")


_KEYS: dict[Path, tuple[dict[Path, tuple[int, int] | None], str]] = {}


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes whenever a file or folder does; None where it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@cache
def cuda_include_folder(major: int = 13) -> Path:
    """The folder that holds CUDA's headers, ``cuda_fp16.h`` among them.

    Looked for in the wheels of ``major``, in ``$CUDA_PATH`` and ``$CUDA_HOME``, in
    ``/usr/local/cuda``, then in the wheels of the other major.

    Raises:
        RuntimeError: it is nowhere; the message says what to install.
    """
    toolkits = [
        f"{os.environ[name]}/include" for name in ("CUDA_PATH", "CUDA_HOME") if os.environ.get(name)
    ]
    own = _wheel_folders(_WHEEL_FOLDERS[major])
    others = [f for m, names in _WHEEL_FOLDERS.items() if m != major for f in _wheel_folders(names)]
    for folder in map(Path, (*own, *toolkits, *_SYSTEM_FOLDERS, *others)):
        if all((folder / header).is_file() for header in _NEEDED_HEADERS):
            return folder
    raise RuntimeError(
        "CUDA headers: cuda_fp16.h is not found in the wheels, in CUDA_PATH or in /usr/local/cuda, "
        f"expected it in one of them; {INSTALL_CUDA}"
    )


def _wheel_folders(names: Sequence[str]) -> list[str]:
    """Folders of those names in every installed part of the namespace package ``nvidia``."""
    spec = importlib.util.find_spec("nvidia")
    places = (spec and spec.submodule_search_locations) or ()
    return [f"{place}/{name}" for place in places for name in names]
