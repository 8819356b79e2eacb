"""Numbers with what they count, as commands print them."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """``1 row``, ``2 rows``, ``1,024 rows``."""
    return f"{number:,} {noun}" + "s" * (number != 1)
