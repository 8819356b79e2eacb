"""Philox4x32-10 and the uniform numbers made of it, against published and hand-computed values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cugraphs.kernels.philox import philox4x32_10, uniform

ONES = 0xFFFFFFFF
WORD = st.integers(0, ONES)

# kat_vectors of Random123 (Salmon et al. 2011), the lines of philox4x32 with 10 rounds: counter,
# key, result. The third takes the digits of pi.
KNOWN_ANSWERS = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (ONES, ONES, ONES, ONES),
        (ONES, ONES),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox_by_hand(counter, key):
    """The published recurrence on Python's integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & ONES, (p0 >> 32) ^ c3 ^ k1, p0 & ONES
        k0, k1 = (k0 + 0x9E3779B9) & ONES, (k1 + 0xBB67AE85) & ONES
    return c0, c1, c2, c3


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers_of_random123(counter, key, expected):
    result = philox4x32_10(np.array(counter, np.uint32), np.array(key, np.uint32))
    assert result.dtype == np.uint32
    assert tuple(result.tolist()) == expected


def test_known_answers_all_at_once():
    counters, keys, expected = (
        np.array(column, np.uint32) for column in zip(*KNOWN_ANSWERS, strict=True)
    )
    np.testing.assert_array_equal(philox4x32_10(counters, keys), expected)


@given(st.tuples(WORD, WORD, WORD, WORD), st.tuples(WORD, WORD))
def test_equals_the_recurrence_on_python_integers(counter, key):
    result = philox4x32_10(np.array(counter, np.uint32), np.array(key, np.uint32))
    assert tuple(result.tolist()) == philox_by_hand(counter, key)


def test_leading_axes_broadcast_and_arguments_stay_as_they_are():
    counters = np.arange(24, dtype=np.uint32).reshape(3, 2, 4)
    key = np.array([7, 9], np.uint32)
    counters.flags.writeable = key.flags.writeable = False
    result = philox4x32_10(counters, key)
    assert result.shape == (3, 2, 4)
    for index in np.ndindex(3, 2):
        expected = philox_by_hand(counters[index].tolist(), key.tolist())
        assert tuple(result[index].tolist()) == expected
    assert philox4x32_10(np.zeros((0, 4), np.uint32), np.zeros((0, 2), np.uint32)).shape == (0, 4)


def test_uniform_takes_24_bits_exactly_and_never_reaches_one():
    words = np.array([0, 0xFF, 0x100, 0x80000000, ONES], np.uint32)
    result = uniform(words)
    assert result.dtype == np.float32
    assert result.tolist() == [0.0, 0.0, 2**-24, 0.5, 1 - 2**-24]


@given(WORD)
def test_uniform_is_the_quotient_without_rounding(word):
    assert float(uniform(np.array([word], np.uint32))[0]) == (word // 256) / 2**24
