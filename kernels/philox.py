"""Philox4x32-10: ``out = philox(counter, key)``, a random function without a state.

With ``counter = (c0, c1, c2, c3)`` and ``key = (k0, k1)``, a round is

    (h0, l0) = high and low word of 0xD2511F53 * c0
    (h1, l1) = high and low word of 0xCD9E8D57 * c2
    counter  = (h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0)

and after each of the ten rounds ``key += (0x9E3779B9, 0xBB67AE85)``. It is integer arithmetic only,
so every device gives the same bits. In this project the counter is (position, sample index, use, 0)
and the key is the 64-bit seed of a request, low word first: a draw depends on nothing else.

Source: Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, 2011.
"""

from __future__ import annotations

import numpy as np

from cugraphs.kernel import Array

ROUNDS = 10
_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
_KEY_STEPS = np.arange(ROUNDS, dtype=np.uint64)[:, None] * np.array(
    [0x9E3779B9, 0xBB67AE85], np.uint64
)
_WORD = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)

USE_SAMPLE = 0  # third counter word of the draw that chooses a token


def philox4x32_10(counter: Array, key: Array) -> Array:
    """Return four random words for each counter and key.

    Args:
        counter: uint32 [..., 4].
        key: uint32 [..., 2]; its leading axes broadcast with the counter's.

    Returns:
        uint32 [..., 4].
    """
    words = counter.astype(np.uint64)  # a word a lane: products of two words fit
    even, odd = words[..., 0::2], words[..., 1::2]
    keys = key.astype(np.uint64)
    for step in _KEY_STEPS:
        product = even * _MULTIPLIERS
        crossed = product[..., ::-1]  # the half of c2 feeds c0, and the other way round
        even = (crossed >> _WORD_BITS) ^ odd ^ ((keys + step) & _WORD)
        odd = crossed & _WORD
    return np.stack([even, odd], axis=-1).reshape(*even.shape[:-1], 4).astype(np.uint32)


def uniform(words: Array) -> Array:
    """Return the 24 high bits of each word over 2**24, in [0, 1).

    Every value is a float32 without rounding, so that all devices compute the same one.

    Args:
        words: uint32 [...].

    Returns:
        float32 [...].
    """
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
