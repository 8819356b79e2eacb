"""How launches are shaped: vector widths, block sizes. Follows from axes and dtypes alone."""

from __future__ import annotations

from cugraphs.kernel import DTYPES

MAX_LOAD_BYTES = 16  # the widest load of a thread


def vector_width(dtype: str, *sizes: int) -> int:
    """Elements of the widest load, at most 16 bytes, that divides every one of ``sizes``."""
    width = MAX_LOAD_BYTES // DTYPES[dtype].itemsize
    while any(size % width for size in sizes):
        width //= 2
    return width


def block_threads(work_items: int, maximum: int = 256) -> int:
    """Threads for a block with so many items: whole warps, a power of two, at most ``maximum``."""
    threads = 32
    while threads < min(work_items, maximum):
        threads *= 2
    return threads
