"""Blocks are neither lost nor shared, whatever sequences ask for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cugraphs import prefix_cache
from cugraphs.block_manager import BlockManager


def make_blocks(num_blocks, block_size, **options):
    sizes = {"num_slots": 5, "max_blocks": num_blocks, **options}
    return BlockManager(num_blocks, block_size, **sizes)


def grow(blocks, slot, num_tokens):
    """Whether there was room; what was appended is where the manager says."""
    before, counts = blocks.tables.copy(), blocks.counts.copy()
    appended = blocks.grow(np.int32([slot]), np.int32([num_tokens]))
    if appended is None:
        return False
    slots, indices, taken = appended
    before[slots, indices] = taken
    np.testing.assert_array_equal(before, blocks.tables)
    counts[slot] += len(slots)
    np.testing.assert_array_equal(counts, blocks.counts)
    return True


def test_the_scratch_block_is_not_for_sequences():
    blocks = make_blocks(5, block_size=4)
    assert (blocks.num_usable, blocks.num_free) == (4, 4)
    assert grow(blocks, 0, 16)
    assert sorted(blocks.block_table(0)) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)]
)
def test_blocks_for(num_tokens, num_blocks):
    assert make_blocks(9, block_size=16).blocks_for(num_tokens) == num_blocks


def test_a_pool_without_usable_blocks_is_refused():
    with pytest.raises(ValueError, match="BlockManager: num_blocks is 1, expected at least 2"):
        make_blocks(1, block_size=16)


def test_growing_keeps_the_blocks_there_are_and_their_order():
    blocks = make_blocks(9, block_size=4)
    assert grow(blocks, 0, 5)
    before = blocks.block_table(0)
    assert grow(blocks, 1, 4)
    assert grow(blocks, 0, 12)
    assert blocks.block_table(0)[:2] == before
    assert len(blocks.block_table(0)) == 3
    assert grow(blocks, 0, 1)  # never shrinks
    assert len(blocks.block_table(0)) == 3


def test_a_refusal_changes_nothing():
    blocks = make_blocks(5, block_size=4)
    assert grow(blocks, 0, 8)
    assert not grow(blocks, 0, 17)
    assert not grow(blocks, 1, 9)
    assert (len(blocks.block_table(0)), blocks.block_table(1), blocks.num_free) == (2, [], 2)
    blocks.check_invariant()


def test_freed_blocks_are_given_out_again_once():
    blocks = make_blocks(6, block_size=1)
    assert grow(blocks, 0, 2)
    blocks.free(0)
    blocks.free(0)  # a second time changes nothing
    assert blocks.num_free == 5 and grow(blocks, 1, 5)
    assert sorted(blocks.block_table(1)) == [1, 2, 3, 4, 5]
    blocks.check_invariant()


def computed(blocks, seq_id, tokens):
    """A sequence that was admitted and has computed all of its tokens; the hit tokens."""
    prefix = blocks.cached_prefix(np.int32(tokens))
    assert blocks.admit(seq_id, len(tokens), prefix)
    blocks.register(seq_id, np.int32(tokens), len(tokens))
    blocks.check_invariant()
    return len(prefix) * blocks.block_size


def test_a_prefix_by_hand():
    blocks = make_blocks(20, block_size=4)
    first = list(range(10, 23))  # three full blocks and a token
    assert computed(blocks, 0, first) == 0
    table = blocks.block_table(0)
    assert blocks.cached_prefix(np.int32(first)) == table[:3]
    # The last token is always computed, so a prompt of whole blocks shares all but the last one.
    assert blocks.cached_prefix(np.int32(first[:12])) == table[:2]
    assert blocks.cached_prefix(np.int32(first[:8] + [0] * 9)) == table[:2]
    assert blocks.cached_prefix(np.int32([0, *first[1:]])) == []  # the first counts
    assert blocks.cached_prefix(np.int32([*first[:4], 0, *first[5:]])) == table[:1]
    # Shared while the first one runs, and after it has ended.
    assert computed(blocks, 1, [*first[:8], 7, 7, 7]) == 8
    assert blocks.block_table(1)[:2] == table[:2] and blocks.block_table(1)[2] not in table
    blocks.free(0)
    blocks.check_invariant()
    assert (blocks.num_cached, blocks.num_free) == (1, 16)  # the third one; the first two are used
    assert computed(blocks, 2, first) == 12 and blocks.block_table(2)[:3] == table[:3]
    assert blocks.num_cached_tokens == 20


def test_the_least_recently_used_end_of_a_prefix_goes_first():
    blocks = make_blocks(5, block_size=2)
    computed(blocks, 0, [1, 2, 3, 4])
    blocks.free(0)
    computed(blocks, 1, [5, 6])
    blocks.free(1)
    assert (blocks.num_cached, blocks.num_free) == (3, 4)
    assert grow(blocks, 2, 4)  # one free block, and the end of the older prefix
    blocks.check_invariant()
    assert len(blocks.cached_prefix(np.int32([1, 2, 3, 4, 9]))) == 1
    assert len(blocks.cached_prefix(np.int32([5, 6, 9]))) == 1
    assert blocks.num_evicted == 1
    assert grow(blocks, 2, 8) and not grow(blocks, 2, 9)
    assert blocks.cached_prefix(np.int32([5, 6, 9])) == [] and blocks.num_evicted == 3


def test_what_rests_in_the_cache_is_not_counted_twice():
    blocks = make_blocks(4, block_size=2)
    computed(blocks, 0, [1, 2, 3, 4, 5, 6])
    blocks.free(0)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    prefix = blocks.cached_prefix(np.int32(tokens))
    assert len(prefix) == 3 and blocks.num_free == 3
    assert not blocks.admit(1, len(tokens), prefix)  # a fourth block there is not
    blocks.check_invariant()
    assert blocks.admit(1, 7, prefix[:2]) is False
    assert blocks.admit(1, 6, prefix)


def test_without_prefix_caching_nothing_is_kept():
    blocks = make_blocks(9, block_size=2, prefix_caching=False)
    computed(blocks, 0, [1, 2, 3, 4])
    assert blocks.cached_prefix(np.int32([1, 2, 3])) == []
    blocks.free(0)
    assert blocks.num_cached == 0


def test_equal_hashes_of_other_tokens_do_not_match(monkeypatch):
    """128 bits do not collide by chance; where they are made to, the tokens tell."""
    monkeypatch.setattr(prefix_cache, "_digest", lambda parent, tokens: b"same")
    blocks = make_blocks(9, block_size=2)
    computed(blocks, 0, [1, 2])
    assert len(blocks.cached_prefix(np.int32([1, 2, 9]))) == 1
    assert blocks.cached_prefix(np.int32([3, 4, 9])) == []


def test_a_lost_and_a_shared_block_are_found():
    blocks = make_blocks(4, block_size=1)
    grow(blocks, 0, 2)
    blocks.counts[0] = 1  # and the second one is lost
    with pytest.raises(AssertionError, match="lost or shared"):
        blocks.check_invariant()
    blocks.counts[0] = 2
    blocks.check_invariant()
    blocks.tables[0, 1] = blocks.tables[0, 0]
    with pytest.raises(AssertionError, match="lost or shared"):
        blocks.check_invariant()


def test_many_sequences_grow_at_once_or_none_does():
    blocks = make_blocks(9, block_size=4)
    slots, tokens = np.int32([3, 0, 4]), np.int32([9, 4, 0])
    where = blocks.grow(slots, tokens)
    assert [found.tolist() for found in where] == [[3, 3, 3, 0], [0, 1, 2, 0], [1, 2, 3, 4]]
    assert [blocks.block_table(slot) for slot in (3, 0, 4)] == [[1, 2, 3], [4], []]
    assert blocks.grow(slots, np.int32([13, 16, 1])) is None  # five blocks of four
    assert blocks.counts.tolist() == [1, 0, 0, 3, 0] and blocks.num_free == 4
    where = blocks.grow(slots, np.int32([13, 8, 5]))
    assert [found.tolist() for found in where] == [[3, 0, 4, 4], [3, 1, 0, 1], [5, 6, 7, 8]]
    blocks.check_invariant()
    assert len(blocks.grow(slots, np.int32([1, 1, 1]))[0]) == 0


def answered(blocks, slot, prompt, answer):
    """A sequence that has computed its prompt and its answer, and leaves."""
    computed(blocks, slot, prompt)
    tokens = np.int32(prompt + answer)
    assert grow(blocks, slot, len(tokens))
    blocks.free(slot, tokens, len(tokens))
    blocks.check_invariant()


def test_an_answer_is_found_by_who_goes_on_with_it():
    blocks = make_blocks(12, block_size=2)
    answered(blocks, 0, [1, 2, 3], [4, 5, 6, 7])  # three full blocks: of the prompt's, one
    assert (blocks.num_cached, blocks.num_free) == (3, 11)
    assert len(blocks.cached_prefix(np.int32([1, 2, 3, 4, 5, 6, 7, 8]))) == 3
    assert len(blocks.cached_prefix(np.int32([1, 2, 3, 4, 9, 9, 9]))) == 2
    assert len(blocks.cached_prefix(np.int32([1, 2, 9, 9, 9]))) == 1
    blocks.check_invariant()


def test_a_short_prompts_answer_is_found_too():
    blocks = make_blocks(12, block_size=4)
    answered(blocks, 0, [1], [2, 3, 4, 5, 6])
    assert len(blocks.cached_prefix(np.int32([1, 2, 3, 4, 5]))) == 1


def test_the_end_of_an_answer_is_evicted_before_its_beginning():
    blocks = make_blocks(9, block_size=2)
    answered(blocks, 0, [1, 2], [3, 4, 5, 6, 7, 8])  # four blocks, four are free
    assert grow(blocks, 1, 2 * 6)
    assert (blocks.num_cached, blocks.num_evicted) == (2, 2)
    assert len(blocks.cached_prefix(np.int32([1, 2, 3, 4, 5, 6, 7, 8, 9]))) == 2
    blocks.check_invariant()


@pytest.mark.parametrize("left", [3, 2, 1, 0])
def test_an_answer_that_nobody_asks_for_goes_block_by_block(left):
    blocks = make_blocks(9, block_size=2)
    answered(blocks, 0, [1, 2], [3, 4, 5, 6, 7, 8])
    for slot in range(4 - left):
        assert grow(blocks, slot, 2 * (5 if slot == 0 else 1))
        blocks.check_invariant()
    assert blocks.num_cached == left
    found = blocks.cached_prefix(np.int32([1, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert len(found) == left and blocks.num_cached == left
    blocks.check_invariant()


def test_what_a_fork_has_registered_before_it_left_is_kept_once():
    blocks = BlockManager(8, 2, num_slots=2, max_blocks=7)
    tokens = np.int32([1, 2, 3, 4, 5, 6])
    assert blocks.admit(0, 4) and blocks.fork(1, 6, 0, 4) == []
    blocks.free(1, tokens, 6)  # while its first blocks are the other's too
    blocks.free(0, tokens, 4)
    blocks.check_invariant()
    assert len(blocks.cached_prefix(np.int32([*tokens, 7]))) == 3
    assert blocks.admit(0, 14)  # all blocks
    assert blocks.cached_prefix(np.int32([*tokens, 7])) == []
    blocks.check_invariant()


def test_of_equal_answers_one_is_kept_and_the_others_go_first():
    blocks = make_blocks(9, block_size=2)
    prompt, answer = [1, 2], [3, 4, 5, 6]
    for slot in (0, 1):
        computed(blocks, slot, [*prompt, 0])
        assert grow(blocks, slot, 6)
    for slot in (0, 1):
        blocks.free(slot, np.int32(prompt + answer), 6)
    assert blocks.num_cached == 5  # the prompt's once, as only one of its two blocks is known
    found = blocks.cached_prefix(np.int32([*prompt, *answer, 7]))
    assert len(found) == 3
    assert grow(blocks, 2, 2 * 5)  # three were free, and two hold what others hold
    assert blocks.cached_prefix(np.int32([*prompt, *answer, 7])) == found
    blocks.check_invariant()


@given(
    num_blocks=st.integers(2, 12),
    block_size=st.integers(1, 5),
    calls=st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 30)), max_size=40),
)
def test_any_calls_leave_every_block_in_one_place(num_blocks, block_size, calls):
    blocks = make_blocks(num_blocks, block_size)
    tokens = dict.fromkeys(range(5), 0)  # of each sequence: the most it was given blocks for
    for seq_id, num_tokens in calls:
        if num_tokens < 0:
            blocks.free(seq_id)
            tokens[seq_id] = 0
        else:
            most = max(tokens[seq_id], num_tokens)
            others = sum(-(-n // block_size) for s, n in tokens.items() if s != seq_id)
            fits = others + -(-most // block_size) <= num_blocks - 1
            assert grow(blocks, seq_id, num_tokens) == fits
            if fits:
                tokens[seq_id] = most
        blocks.check_invariant()
        for seq_id, most in tokens.items():
            assert len(blocks.block_table(seq_id)) == -(-most // block_size)


@given(
    num_blocks=st.integers(2, 12),
    block_size=st.integers(1, 4),
    calls=st.lists(
        st.tuples(st.integers(0, 4), st.lists(st.integers(0, 1), max_size=14)), max_size=40
    ),
)
def test_hits_are_what_was_computed_before(num_blocks, block_size, calls):
    """A hit's blocks hold exactly the tokens of the prefix: what a reader would find in them."""
    blocks = make_blocks(num_blocks, block_size)
    contents = {}  # of each block: the tokens from the sequence's first to the block's last
    running = {}
    for seq_id, tokens in calls:
        if seq_id in running or not tokens:
            blocks.free(seq_id)
            running.pop(seq_id, None)
            blocks.check_invariant()
            continue
        prefix = blocks.cached_prefix(np.int32(tokens))
        for index, block in enumerate(prefix):
            assert contents[block] == tokens[: (index + 1) * block_size]
        assert len(prefix) * block_size < len(tokens)
        if blocks.admit(seq_id, len(tokens), prefix):
            running[seq_id] = tokens
            for index, block in enumerate(blocks.block_table(seq_id)):
                if index >= len(prefix):  # written now: nobody else may be reading it
                    assert all(block not in blocks.block_table(s) for s in running if s != seq_id)
                    contents[block] = tokens[: (index + 1) * block_size]
            blocks.register(seq_id, np.int32(tokens), len(tokens))
        blocks.check_invariant()
