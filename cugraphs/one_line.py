"""Anything as a part of a message: names out of files, the errors of other libraries.

Whatever goes in, printable text on one line and of bounded length comes out. Knows text only.
"""

from __future__ import annotations

from collections.abc import Sequence

_LIMIT_CHARACTERS = 300


def one_line(value: object, limit: int = _LIMIT_CHARACTERS) -> str:
    """Return the text of `value`, what is not printable escaped, at most `limit` of its characters.

    Args:
        value: Anything with a text.
        limit: In characters, counted before they are escaped; more are replaced by "…".
    """
    text = str(value)
    text = text if len(text) <= limit else text[:limit] + "…"
    return text if text.isprintable() else repr(text)[1:-1]


def quoted(value: object) -> str:
    """Return the text of a name in single quotes."""
    return f"'{one_line(value)}'"


def reason(error: BaseException) -> str:
    """Return what an error says with its white space folded, or its class if it says nothing."""
    says = (isinstance(error, OSError) and error.strerror) or error
    return one_line(" ".join(str(says).split()) or type(error).__name__)


def several(names: Sequence[str]) -> str:
    """Return the first of one name or more, and how many others there are."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return one_line(names[0]) + more
