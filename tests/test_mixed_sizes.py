"""Sizes of mixed steps are few, never too small, and never beyond what was planned."""

import pytest

from cugraphs.mixed_sizes import round_rows, round_tokens


@pytest.mark.parametrize(
    ("rows", "rounded"),
    [(0, 1), (1, 1), (2, 2), (3, 4), (33, 64), (64, 64), (65, 128), (129, 192), (256, 256)],
)
def test_rows(rows, rounded):
    assert round_rows(rows, 512) == rounded


@pytest.mark.parametrize(
    ("tokens", "rounded"),
    [(1, 32), (129, 160), (256, 256), (257, 288), (513, 544), (1023, 1024), (1025, 1088)],
)
def test_tokens(tokens, rounded):
    assert round_tokens(tokens, 2048) == rounded


@pytest.mark.parametrize("most", [1, 100, 257, 2048, 8192])
def test_nothing_is_too_small_or_beyond_the_plan(most):
    tokens = [round_tokens(n, most) for n in range(1, most + 1)]
    assert all(n <= found <= most for n, found in enumerate(tokens, start=1))
    assert all(found - n < max(32, n / 16 + 1) for n, found in enumerate(tokens, start=1))
    assert tokens == sorted(tokens)
    rows = [round_rows(n, most) for n in range(1, most + 1)]
    assert all(n <= found <= most for n, found in enumerate(rows, start=1))
    assert all(found < 2 * n and found - n < 64 for n, found in enumerate(rows, start=1))


def test_sizes_are_few():
    assert len({round_tokens(n, 2048) for n in range(129, 2049)}) == 4 + 8 + 16 + 16
    assert len({round_rows(n, 256) for n in range(1, 257)}) == 7 + 3
