"""Sizes that ``row_order.cuh`` and ``shortest_prefix.cuh`` fix: a block for each row of logits."""

from __future__ import annotations

ROW_THREADS = 1024
MAX_VOCAB = 256_000  # beyond it sums of weights could overflow
MAX_CANDIDATES = 8192  # tokens that a block sorts
SCRATCH_BYTES = 68 * 1024 + 512  # of shared memory: sizeof(PrefixScratch), rounded up


def check_vocab(kernel: str, vocab: int) -> None:
    """There is a token, and no more of them than a block can search.

    Raises:
        ValueError: ``vocab`` is out of range.
    """
    if not 1 <= vocab <= MAX_VOCAB:
        raise ValueError(f"{kernel}: axis 'vocab' is {vocab}, expected 1 to {MAX_VOCAB}")
