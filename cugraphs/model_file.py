"""One file of a model folder: opened, or refused in one line that names it and says what to do.

Knows what can be wrong with any file (it is missing, a pipe, a git-lfs pointer). Knows no format.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from cugraphs.one_line import one_line, reason

_LFS_POINTER = b"version https://git-lfs"
_PATH_LIMIT_CHARACTERS = 1000


class ModelFileError(ValueError):
    """A file or folder of a model that cannot be read; one line made by `refusal`."""


def refusal(path: Path, found: str, expected: str, advice: str) -> ModelFileError:
    """The one form of all messages: which file, what it is, what it should be, what to do."""
    where = one_line(path, limit=_PATH_LIMIT_CHARACTERS)
    return ModelFileError(f"{where} {found}, expected {expected}; {advice}")


def open_file(path: Path) -> BinaryIO:
    """Open a regular file that is no git-lfs pointer; the caller closes it.

    Raises:
        ModelFileError: It is missing, something else, or may not be read.
    """
    wanted = "a readable file"
    try:
        # Looked at before opening: opening a pipe would wait for its writer.
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            found = "is a folder" if stat.S_ISDIR(mode) else "is a pipe, socket or device"
            raise refusal(path, found, wanted, "put the model's own file there")
        with ExitStack() as stack:
            file = stack.enter_context(open(path, "rb"))
            if file.peek(len(_LFS_POINTER)).startswith(_LFS_POINTER):
                advice = "run `git lfs pull` in its folder"
                raise refusal(path, "is a git-lfs pointer", "the file it points to", advice)
            stack.pop_all()
    except OSError as error:
        if not os.path.lexists(path):
            found, advice = "is missing", "download it from where the rest of the folder came"
        else:
            found = f"cannot be read ({reason(error)})"
            advice = "check its permissions, or download it again"
        raise refusal(path, found, wanted, advice) from error
    return file


def read_file(path: Path, most_bytes: int = 64 << 20) -> bytes:
    """Return the bytes of a file, if they are not many.

    Args:
        path: A regular file.
        most_bytes: The limit; by default well over the index of the largest Llama, under 1 MiB.

    Raises:
        ModelFileError: It is larger, or `open_file` refuses it.
    """
    with open_file(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > most_bytes:
            advice = "check that it is the right file"
            raise refusal(path, f"is {size_bytes} bytes", f"at most {most_bytes} bytes", advice)
        return file.read()
