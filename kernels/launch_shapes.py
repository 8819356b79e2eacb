"""How launches are shaped: vector widths, block sizes, loads. Follows from axes and dtypes alone.

Memory answers after some 0.7 us, so a card reads at its full rate only while megabytes of loads
are under way. Rows and tiles are therefore cut so that a thread has several loads of 16 bytes in
flight, and small work so that it has one: then more of the multiprocessors take part.
"""

from __future__ import annotations

from cugraphs.kernel import DTYPES

MAX_LOAD_BYTES = 16  # the widest load of a thread
LOADS_OF_THREAD = 4  # of one array, in flight at once, where there is work enough

# So many threads are under way at once on a large card (132 multiprocessors hold 270,336).
_RESIDENT_THREADS = 1 << 18


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


def loads_of_thread(vectors: int, most: int = LOADS_OF_THREAD) -> int:
    """Loads of each thread of a launch over so many vectors: 1 while all threads are resident."""
    return 1 if vectors <= _RESIDENT_THREADS else most


def row_shape(vectors: int) -> tuple[int, int]:
    """Threads and vectors of each, for a block that holds a whole row of so many vectors.

    They follow from the row alone, so its sums are added in one order whatever rows are beside it.
    """
    threads = block_threads(-(-vectors // LOADS_OF_THREAD), 512)
    return threads, -(-vectors // threads)
