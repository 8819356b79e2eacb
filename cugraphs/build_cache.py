"""Where compiled kernels stay between runs: the user's cache folder, written atomically.

Knows neither compilers nor kernels. Every file may be deleted at any time, and a file is named by a
hash of all that it was made from, so none is ever out of date.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path

_KEY_CHARACTERS = 24


@cache
def cache_folder(kind: str) -> Path:
    """The folder of one kind of compiled file, made if it is missing.

    It lies in ``$XDG_CACHE_HOME`` or ``~/.cache``; where neither can be written, it is a fresh
    temporary folder, so that programs still run, only slower to start.
    """
    try:
        root = os.environ.get("XDG_CACHE_HOME")
        folder = (Path(root) if root else Path.home() / ".cache") / "cugraphs" / kind
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        pass
    return Path(tempfile.mkdtemp(prefix=f"cugraphs-{kind}-"))


def cache_key(*parts: object) -> str:
    """A file name's worth of hash over the texts of ``parts``, whose boundaries count."""
    digest = hashlib.sha256()
    for part in parts:
        text = str(part).encode()
        digest.update(f"{len(text)}:".encode() + text)
    return digest.hexdigest()[:_KEY_CHARACTERS]


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that others see whole or not at all; a full or read-only disk is no error."""
    with contextlib.suppress(OSError):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
