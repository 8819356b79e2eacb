"""What ``row_chunks.cuh`` and ``shortest_prefix.cuh`` fix: how blocks share the rows of logits."""

from __future__ import annotations

from cugraphs.kernel import DTYPES

from .launch_shapes import MAX_LOAD_BYTES

CHUNK = 8192  # tokens that a block takes at a time
THREADS = 512  # of a block
MAX_VOCAB = 256_000  # beyond it sums of weights could overflow
MAX_CANDIDATES = 4096  # tokens that a block sorts
SCRATCH_BYTES = 37 * 1024  # of shared memory: sizeof(RowScratch), rounded up
RANKS = 8  # blocks of a cluster that has a row

_BLOCKS = 256  # of a launch: two on each multiprocessor of a large GPU


def check_vocab(kernel: str, vocab: int) -> None:
    """There is a token, and no more of them than the sums have room for.

    Raises:
        ValueError: ``vocab`` is out of range.
    """
    if not 1 <= vocab <= MAX_VOCAB:
        raise ValueError(f"{kernel}: axis 'vocab' is {vocab}, expected 1 to {MAX_VOCAB}")


def row_width(dtype: str, vocab: int) -> int:
    """Logits of one load: 16 bytes of them where every row begins at such a boundary, else one."""
    width = MAX_LOAD_BYTES // DTYPES[dtype].itemsize
    return 1 if vocab % width else width


def blocks_per_row(rows: int, vocab: int) -> int:
    """Blocks that share the chunks of a row: several where there are few rows.

    It changes no result: sums over chunks are exact, or added in the order of the chunks.
    """
    return max(1, min(-(-vocab // CHUNK), _BLOCKS // max(rows, 1)))


def run_bits(vocab: int) -> int:
    """Of a row that a cluster has: each of its threads has a run of ``1 << run_bits`` tokens."""
    most = -(-vocab // (RANKS * THREADS))
    return max(4, (most - 1).bit_length())  # whole chunks for each block


def part_bytes(vocab: int) -> int:
    """Shared memory of one block's part: runs of float32, with four words between them."""
    return 4 * THREADS * ((1 << run_bits(vocab)) + 4)
