"""Blocks as a reader finds them: a simple model of what each holds, beside the block manager.

Sequences come, compute their tokens in pieces, grow token by token, and leave, in any order. What
is found in the cache must hold the tokens that it is found for; nobody writes where another reads.
"""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cugraphs.block_manager import BlockManager

SLOTS = 4
LONGEST = 14
any_tokens = st.lists(st.integers(0, 1), min_size=1, max_size=LONGEST)  # so that many begin alike


class Contents(RuleBasedStateMachine):
    """``self.held[block]``: the tokens up to and with the last one that was written there."""

    @initialize(
        num_blocks=st.integers(3, 20),
        block_size=st.integers(1, 4),
        caching=st.sampled_from([True, True, True, False]),
    )
    def start(self, num_blocks, block_size, caching):
        self.blocks = BlockManager(
            num_blocks,
            block_size,
            num_slots=SLOTS,
            max_blocks=LONGEST + 20,
            prefix_caching=caching,
        )
        self.size, self.caching = block_size, caching
        self.running = {}  # slot: [tokens, how many are computed]
        self.held = {}
        self.known = []

    def owned(self):
        return {block for slot in self.running for block in self.blocks.block_table(slot)}

    def room(self, apart_from=()):
        return self.blocks.num_usable - len(self.owned() | set(apart_from))

    @precondition(lambda self: len(self.running) < SLOTS)
    @rule(tokens=any_tokens)
    def admit(self, tokens):
        """A new sequence; as much of it as can be is found in the cache."""
        prefix = self.blocks.cached_prefix(np.int32(tokens))
        for index, block in enumerate(prefix):
            assert self.held[block] == tokens[: (index + 1) * self.size]
        assert len(prefix) * self.size < len(tokens)  # the last token is always computed
        assert self.caching or not prefix
        needed = -(-len(tokens) // self.size) - len(prefix)
        fits = needed <= self.room(prefix)
        slot = min(set(range(SLOTS)) - self.running.keys())
        before = self.blocks.num_cached_tokens
        assert self.blocks.admit(slot, len(tokens), prefix) == fits
        if fits:
            self.running[slot] = [tokens, len(prefix) * self.size]
            self.known.append(list(tokens))
            assert self.blocks.block_table(slot)[: len(prefix)] == prefix
            assert self.blocks.num_cached_tokens - before == len(prefix) * self.size

    @precondition(lambda self: self.running and len(self.running) < SLOTS)
    @rule(data=st.data(), rest=any_tokens)
    def fork(self, data, rest):
        """A new sequence takes what one that runs has computed, or a part of it."""
        parent = data.draw(st.sampled_from(sorted(self.running)))
        known, computed = self.running[parent]
        shared = data.draw(st.integers(0, computed))
        tokens = known[:shared] + rest
        table = self.blocks.block_table(parent)
        full, partial = divmod(shared, self.size)
        fits = -(-len(tokens) // self.size) - full <= self.room()
        slot = min(set(range(SLOTS)) - self.running.keys())
        copies = self.blocks.fork(slot, len(tokens), parent, shared)
        assert (copies is not None) == fits
        if copies is None:
            return
        self.running[slot] = [tokens, shared]
        self.known.append(list(tokens))
        own = self.blocks.block_table(slot)
        assert own[:full] == table[:full] and not set(own[full:]) & set(table)
        assert copies == ([(table[full], own[full])] if partial else [])
        for source, target in copies:
            self.held[target] = self.held[source][:shared]

    @precondition(lambda self: self.known and len(self.running) < SLOTS)
    @rule(data=st.data(), rest=any_tokens)
    def admit_a_like_one(self, data, rest):
        """It begins as one that came before, with all of it or a part."""
        begin = data.draw(st.sampled_from(self.known))
        kept = data.draw(st.sampled_from([len(begin), len(begin), len(begin) // 2]))
        self.admit((begin[:kept] + rest)[:LONGEST])

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.sampled_from([LONGEST, LONGEST, 1, 2, 3]), tells=st.booleans())
    def compute(self, data, count, tells):
        """A step writes some tokens' K and V, and only then are full blocks known; or later."""
        slot = data.draw(st.sampled_from(sorted(self.running)))
        tokens, computed = self.running[slot]
        end = min(computed + count, len(tokens))
        table = self.blocks.block_table(slot)
        others = [self.blocks.block_table(s) for s in self.running if s != slot]
        for position in range(computed, end):
            block = table[position // self.size]
            assert not any(block in other for other in others), "it is written while it is shared"
            self.held[block] = tokens[: position + 1]
        self.running[slot][1] = end
        if tells:
            self.blocks.register(slot, np.int32(tokens), end)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), token=st.integers(0, 1))
    def sample(self, data, token):
        """A sequence whose tokens are all computed gets another one, if there is a block for it."""
        slot = data.draw(st.sampled_from(sorted(self.running)))
        tokens, computed = self.running[slot]
        if computed < len(tokens) or len(tokens) > LONGEST + 10:
            return
        table = self.blocks.block_table(slot)
        needed = -(-(len(tokens) + 1) // self.size) - len(table)
        fits = needed <= self.room()
        grown = self.blocks.grow(np.int32([slot]), np.int32([len(tokens) + 1]))
        assert (grown is not None) == fits
        if grown is not None:
            tokens.append(token)
            assert self.blocks.block_table(slot)[: len(table)] == table

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def leave(self, data):
        """What it has computed may be found later, whether it was made known before or not."""
        slot = data.draw(st.sampled_from(sorted(self.running)))
        tokens, computed = self.running.pop(slot)
        self.blocks.free(slot, np.int32(tokens), computed)
        self.known.append(list(tokens))

    @invariant()
    def blocks_add_up(self):
        if not hasattr(self, "blocks"):
            return
        self.blocks.check_invariant()
        assert self.blocks.num_free == self.room()
        assert self.blocks.num_cached <= self.blocks.num_free
        for slot, (tokens, computed) in self.running.items():
            table = self.blocks.block_table(slot)
            assert len(table) == -(-len(tokens) // self.size)
            for index in range(-(-computed // self.size)):
                end = min((index + 1) * self.size, computed)
                assert self.held[table[index]][:end] == tokens[:end]

    def teardown(self):
        if not hasattr(self, "blocks"):
            return
        for slot in list(self.running):
            self.blocks.free(slot)
        self.blocks.check_invariant()
        assert self.blocks.num_free == self.blocks.num_usable


Contents.TestCase.settings = settings(max_examples=500, stateful_step_count=30, deadline=None)
TestContents = Contents.TestCase
