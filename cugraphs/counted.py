"""Numbers with what they count, as commands and messages have them."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``1 row``, ``2 rows``, ``1,024 rows``.

    Args:
        number: at least 0.
        noun: in the singular.
        plural: of a noun that does more than end in s then: ``counted(2, "batch", "batches")``.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
