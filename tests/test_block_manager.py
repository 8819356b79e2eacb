"""Blocks are neither lost nor shared, whatever sequences ask for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cugraphs.block_manager import SCRATCH_BLOCK, BlockManager


def test_the_scratch_block_is_not_for_sequences():
    blocks = BlockManager(5, block_size=4)
    assert (blocks.num_usable, blocks.num_free) == (4, 4)
    assert blocks.grow(0, 16)
    assert sorted(blocks.block_table(0)) == [1, 2, 3, 4]
    assert SCRATCH_BLOCK == 0


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)]
)
def test_blocks_for(num_tokens, num_blocks):
    assert BlockManager(9, block_size=16).blocks_for(num_tokens) == num_blocks


def test_a_pool_without_usable_blocks_is_refused():
    with pytest.raises(ValueError, match="BlockManager: num_blocks is 1, expected at least 2"):
        BlockManager(1, block_size=16)


def test_growing_keeps_the_blocks_there_are_and_their_order():
    blocks = BlockManager(9, block_size=4)
    assert blocks.grow(0, 5)
    before = list(blocks.block_table(0))
    assert blocks.grow(1, 4)
    assert blocks.grow(0, 12)
    assert blocks.block_table(0)[:2] == before
    assert len(blocks.block_table(0)) == 3
    assert blocks.grow(0, 1)  # never shrinks
    assert len(blocks.block_table(0)) == 3


def test_a_refusal_changes_nothing():
    blocks = BlockManager(5, block_size=4)
    assert blocks.grow(0, 8)
    assert not blocks.grow(0, 17)
    assert not blocks.grow(1, 9)
    assert (len(blocks.block_table(0)), blocks.block_table(1), blocks.num_free) == (2, [], 2)
    blocks.check_invariant()


def test_freed_blocks_are_given_out_last():
    blocks = BlockManager(6, block_size=1)
    assert blocks.grow(0, 2)
    freed = list(blocks.block_table(0))
    blocks.free(0)
    blocks.free(0)  # a second time changes nothing
    assert blocks.grow(1, 5)
    assert blocks.block_table(1)[-2:] == freed


def test_a_lost_and_a_shared_block_are_found():
    blocks = BlockManager(4, block_size=1)
    blocks.grow(0, 2)
    taken = blocks.block_table(0).pop()
    with pytest.raises(AssertionError, match="lost or shared"):
        blocks.check_invariant()
    blocks.block_table(0).extend([taken, blocks.block_table(0)[0]])
    with pytest.raises(AssertionError, match="lost or shared"):
        blocks.check_invariant()


@given(
    num_blocks=st.integers(2, 12),
    block_size=st.integers(1, 5),
    calls=st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 30)), max_size=40),
)
def test_any_calls_leave_every_block_in_one_place(num_blocks, block_size, calls):
    blocks = BlockManager(num_blocks, block_size)
    tokens = dict.fromkeys(range(5), 0)  # of each sequence: the most it was given blocks for
    for seq_id, num_tokens in calls:
        if num_tokens < 0:
            blocks.free(seq_id)
            tokens[seq_id] = 0
        else:
            most = max(tokens[seq_id], num_tokens)
            others = sum(-(-n // block_size) for s, n in tokens.items() if s != seq_id)
            fits = others + -(-most // block_size) <= num_blocks - 1
            assert blocks.grow(seq_id, num_tokens) == fits
            if fits:
                tokens[seq_id] = most
        blocks.check_invariant()
        for seq_id, most in tokens.items():
            assert len(blocks.block_table(seq_id)) == -(-most // block_size)
