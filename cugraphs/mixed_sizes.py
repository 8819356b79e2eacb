"""At which sizes a mixed step runs: a little larger than it must be, so that sizes come again.

The host takes some milliseconds to bind a program at sizes that it has not met, and under real
arrivals no two mixed steps are the same. Rows that are too many are dead. Knows no program.
"""

from __future__ import annotations

from functools import lru_cache

_FEW_ROWS = 64  # up to here powers of two, from here on multiples
_TOKEN_STEP = 32  # no GPU is bound by compute at so few tokens that this would cost time
# What so few tokens become that products have kernels of their own for them.
FEW_TOKENS = (_TOKEN_STEP, 2 * _TOKEN_STEP, 128, 192, 256)
_STEPS_PER_DOUBLING = 16  # of larger counts: at most a sixteenth is padding


@lru_cache(4096)  # sizes come again and again
def round_rows(rows: int, most: int) -> int:
    """The number of sequences, or of rows of logits, that serves ``rows``; at most ``most``."""
    if rows <= _FEW_ROWS:
        rounded = 1 << (max(rows, 1) - 1).bit_length()
    else:
        rounded = -(-rows // _FEW_ROWS) * _FEW_ROWS
    return max(min(rounded, most), rows)


@lru_cache(4096)
def round_tokens(tokens: int, most: int) -> int:
    """The number of tokens that serves ``tokens``; at most ``most``."""
    step = max(_TOKEN_STEP, (1 << (tokens.bit_length() - 1)) // _STEPS_PER_DOUBLING)
    return max(min(-(-tokens // step) * step, most), tokens)
