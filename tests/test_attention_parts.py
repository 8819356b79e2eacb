"""How rows are cut into parts: what the cuts are for, and some worked out by hand."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cugraphs.kernels import ATTENTION_PARTS
from cugraphs.kernels.attention_parts import (
    BLOCKS,
    LONE_BLOCKS,
    PART_WORDS,
    UNIT_TOKENS,
    Cuts,
    cut_rows,
    most_cut_parts,
    most_parts,
)

LENGTHS = st.one_of(st.integers(0, 200), st.integers(0, 20_000))


def parts_of(lengths, kv_heads=8):
    return cut_rows(lengths, kv_heads, Cuts.of(len(lengths), kv_heads))


def tokens_by_row(lengths, kv_heads=8):
    """Tokens of each row's parts."""
    found = [[] for _ in lengths]
    for row, begin, end, _, _ in parts_of(lengths, kv_heads):
        found[row].append(end - begin)
    return found


@given(st.lists(LENGTHS, min_size=1, max_size=40), st.sampled_from([1, 2, 3, 8, 32, 300]))
def test_parts_are_each_row_once_and_find_room(lengths, kv_heads):
    parts = parts_of(lengths, kv_heads)
    assert len(parts) <= most_parts(len(lengths), kv_heads)
    assert sum(count > 1 for *_, count in parts) <= most_cut_parts(len(lengths), kv_heads)
    order = []
    for row, of_row in itertools.groupby(parts, key=lambda part: part[0]):
        _, begins, ends, indices, counts = zip(*of_row, strict=True)
        assert begins == (0, *ends[:-1]) and ends[-1] == lengths[row]
        assert indices == tuple(range(len(indices))) and set(counts) == {len(indices)}
        assert all(end % UNIT_TOKENS == 0 for end in ends[:-1])
        units = [-(-(end - begin) // UNIT_TOKENS) for begin, end in zip(begins, ends, strict=True)]
        assert max(units) - min(units) <= 1
        order.append(row)
    assert sorted(order) == list(range(len(lengths)))
    # Rows of as many units come in any order; no shorter one comes before a longer one.
    rounded = [-(-max(lengths[row], 1) // UNIT_TOKENS) for row in order]
    assert rounded == sorted(rounded, reverse=True)


@given(st.lists(LENGTHS, min_size=1, max_size=8))
def test_few_rows_have_the_smallest_parts_for_which_there_are_multiprocessors(lengths):
    parts = parts_of(lengths)
    assert len(parts) * 8 <= LONE_BLOCKS
    units = [-(-max(length, 1) // UNIT_TOKENS) for length in lengths]
    longest = max(-(-(end - begin) // UNIT_TOKENS) for _, begin, end, _, _ in parts)
    if longest > 1:
        smaller = sum(-(-own // (longest - 1)) for own in units)
        assert smaller * 8 > LONE_BLOCKS


def test_by_hand():
    # 18 units a row and 8 KV heads. 128 blocks: two parts of 9 units a row.
    assert tokens_by_row([1090] * 8) == [[576, 514]] * 8
    # One long row among short ones: 64 units and 7 times 5. With parts of 7 units these are
    # 10 + 7 = 17, one more than the 16 there are blocks for; with 8 units 8 + 7.
    assert tokens_by_row([4096] + [300] * 7) == [[512] * 8] + [[300]] * 7
    # 9 rows of 18 units: more than half of the multiprocessors have one already. Parts of
    # 18*72/(256-72), rounded up, 8 units, so three a row.
    assert tokens_by_row([1090] * 9) == [[384, 384, 322]] * 9
    # 10 rows: parts of 9 units, of which a multiprocessor would get two, so rows stay whole.
    assert tokens_by_row([1090] * 10) == [[1090]] * 10
    # 10 rows of 128 units: parts of 59, so three a row.
    assert [len(row) for row in tokens_by_row([8192] * 10)] == [3] * 10
    assert tokens_by_row([1090] * 16) == [[1090]] * 16


def test_batch_invariance_cuts_no_row():
    for lengths in ([100_000, 1], [5000] * 3, [70] * 300):
        cuts = Cuts.of(len(lengths), 8, batch_invariant=True)
        assert len(cut_rows(lengths, 8, cuts)) == len(lengths)
        assert most_parts(len(lengths), 8, batch_invariant=True) == len(lengths)


@pytest.mark.parametrize("kv_heads", [1, 2, 8, 32])
def test_more_rows_never_ask_for_fewer_places(kv_heads):
    """A workspace for the most rows is one for all."""
    places = [most_cut_parts(rows, kv_heads) for rows in range(1, 400)]
    assert places == sorted(places)


def test_what_is_left_over_belongs_to_no_row():
    sizes = {"heads": 32, "kv_heads": 8, "part_words": PART_WORDS}
    lengths = np.array([2100, 0, 5], np.int32)
    parts, arrivals = ATTENTION_PARTS.reference(np.array([4, -1, 2], np.int32), lengths, **sizes)
    used = len(parts_of(lengths.tolist()))
    assert parts.shape == (3 + BLOCKS, PART_WORDS) and (parts[used:, 0] == -1).all()
    assert (parts[:used, 0] >= 0).all() and not arrivals.any()
