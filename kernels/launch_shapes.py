"""How launches are shaped: vector widths, block sizes, loads. Follows from axes and dtypes alone.

Memory answers after some 0.7 us, so a card reads at its full rate only while megabytes of loads
are under way. Where threads are many, one load of 16 bytes each is enough; where a block holds a
row, and its threads wait for each other, each has several.
"""

from __future__ import annotations

from cugraphs.kernel import DTYPES

MAX_LOAD_BYTES = 16  # the widest load of a thread
LOADS_OF_THREAD = 4  # of one array, in flight at once, where a block holds a row

# Of an H100 or H200: what forms for sm_90a are made for.
MULTIPROCESSORS = 132
SM90_SHARED_BYTES = 227 << 10  # of a block that has a multiprocessor for itself


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


def row_shape(vectors: int) -> tuple[int, int]:
    """Threads and vectors of each, for a block that holds a whole row of so many vectors.

    They follow from the row alone, so its sums are added in one order whatever rows are beside it.
    """
    threads = block_threads(-(-vectors // LOADS_OF_THREAD), 512)
    return threads, -(-vectors // threads)
