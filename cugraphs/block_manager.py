"""Host accounting of the KV cache's blocks: who uses which, and which prefixes they hold.

A sequence's blocks are a row of ``tables``, named by its slot, so that many sequences grow in a few
array operations. A full block that was written is registered under a hash of all tokens up to
its end. A new sequence with the same beginning uses the same blocks; they are never written again,
since a sequence always computes its last token, in a block of its own. So do the samples of one
prompt, whether prefixes are kept or not; of the block that it will write to, each has a copy. No
CuPy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cugraphs.kernel import Array
from cugraphs.prefix_cache import PrefixCache

NO_TOKENS: Array = np.zeros(0, np.int32)


class BlockManager:
    """Hands out blocks of ``block_size`` tokens and takes them back.

    Attributes:
        tables: int32 [slots, max_blocks]; each slot's blocks in token order, then zeros.
        counts: int64 [slots]; blocks of each slot.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_slots: int,
        max_blocks: int,
        prefix_caching: bool = True,
    ) -> None:
        """Manage blocks 1 to ``num_blocks - 1``.

        Args:
            num_blocks: of the cache, the scratch block included: 0, which dead rows point at.
            block_size: tokens in a block.
            num_slots: sequences that can own blocks.
            max_blocks: of one sequence.
            prefix_caching: keep blocks of finished sequences for those that begin alike.

        Raises:
            ValueError: there is no block beside the scratch block.
        """
        if num_blocks < 2:
            raise ValueError(f"BlockManager: num_blocks is {num_blocks}, expected at least 2")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.num_cached_tokens = 0  # of all admitted sequences: what was found in the cache
        self.num_forked_tokens = 0  # and what another sample of the prompt had computed
        self.num_forks = 0  # sequences that took those
        self.num_copied = 0  # blocks that they have a copy of
        self.num_evicted = 0
        self.tables = np.zeros((num_slots, max_blocks), np.int32)
        self.start_over()

    def start_over(self) -> None:
        """Take back every block, and know no prefix; what was so far may be left halfway."""
        num_slots = len(self.tables)
        self.tables[:] = 0
        self.counts = np.zeros(num_slots, np.int64)
        self._digests: list[list[bytes]] = [[] for _ in range(num_slots)]  # of its full blocks
        self._fixed = [0] * num_slots  # of its first blocks: none is ever written again
        self._free = np.arange(self.num_blocks - 1, 0, -1)  # the first `_num_free` are; a stack
        self._num_free = len(self._free)
        self._users = np.zeros(self.num_blocks, np.int32)
        self._prefixes = PrefixCache(self.num_blocks, self.block_size)

    @property
    def num_usable(self) -> int:
        """Blocks that sequences can own."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that no sequence owns; some of them still hold a prefix."""
        return self._num_free + self._prefixes.num_unused

    @property
    def num_cached(self) -> int:
        """Blocks that hold a prefix and that no sequence owns."""
        return self._prefixes.num_unused

    @property
    def num_prefixes(self) -> int:
        """Blocks that are known to hold a prefix, whether a sequence owns them or not."""
        return self._prefixes.num_known

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens need."""
        return -(-num_tokens // self.block_size)

    def block_table(self, slot: int) -> list[int]:
        """The blocks of a slot, in token order."""
        table: list[int] = self.tables[slot, : self.counts[slot]].tolist()
        return table

    def cached_prefix(self, token_ids: Array) -> list[int]:
        """Registered blocks that hold the beginning of ``token_ids``, at most all but the last."""
        return self._prefixes.find(token_ids) if self.prefix_caching else []

    def admit(self, slot: int, num_tokens: int, prefix: Sequence[int] = ()) -> bool:
        """Give a new sequence the blocks of its cached prefix, and free ones for the rest.

        Args:
            slot: owns nothing yet.
            num_tokens: that it needs room for.
            prefix: from :meth:`cached_prefix`, with nothing given out since.

        Returns:
            Whether there were enough; otherwise nothing changes.
        """
        if not self._give(slot, num_tokens, prefix):
            return False
        self._digests[slot] = self._prefixes.digests(prefix)
        self.num_cached_tokens += len(prefix) * self.block_size
        return True

    def fork(
        self, slot: int, num_tokens: int, parent: int, num_shared: int
    ) -> list[tuple[int, int]] | None:
        """Give a new sequence the beginning of another's blocks, and free ones for the rest.

        The block in which the beginning ends, and which both go on to write, is to be copied.

        Args:
            slot: owns nothing yet.
            num_tokens: that it needs room for.
            parent: the slot of the other one, which does not write those tokens again.
            num_shared: tokens that both begin with, fewer than ``num_tokens``.

        Returns:
            Copies to make before either writes, as (source, target), at most one; None if too few
            blocks are free, and then nothing changes.
        """
        num_full, rest = divmod(num_shared, self.block_size)
        table = self.block_table(parent)
        if not self._give(slot, num_tokens, table[:num_full]):
            return None
        self._digests[slot] = self._digests[parent][:num_full]
        self._fixed[parent] = max(self._fixed[parent], num_full)
        self.num_forked_tokens += num_shared
        self.num_forks += 1
        self.num_copied += rest > 0
        return [(table[num_full], int(self.tables[slot, num_full]))] if rest else []

    def grow(self, slots: Array, num_tokens: Array) -> tuple[Array, Array, Array] | None:
        """Give sequences enough blocks for their tokens.

        Args:
            slots: int64 [n]; none occurs twice.
            num_tokens: int64 [n]; that each needs room for, in all.

        Returns:
            Entries that were appended to ``tables``, as (slots, indices, blocks); None if too few
            blocks are free for all of them, and then nothing changes.
        """
        short = (num_tokens > self.counts.take(slots) * self.block_size).nonzero()[0]
        slots, num_tokens = slots.take(short), num_tokens.take(short)
        before = self.counts.take(slots)
        after = -(-num_tokens // self.block_size)
        missing = after - before
        total = sum(missing.tolist())
        if total > self.num_free:
            return None
        self.counts[slots] = after
        indices = before
        if total > len(slots):  # some need more than one
            indices = np.concatenate([np.arange(*pair) for pair in zip(before, after, strict=True)])
            slots = slots.repeat(missing)
        blocks = self._take(total)
        self.tables[slots, indices] = blocks
        return slots, indices, blocks

    def register(self, slot: int, token_ids: Array, num_computed: int) -> None:
        """Make the slot's full blocks known as prefixes, once a step has written them.

        A prefix that another block holds already stays with that one.

        Args:
            slot: of the sequence.
            token_ids: int32; its tokens, at least ``num_computed``.
            num_computed: of them, those whose K and V are written.
        """
        if not self.prefix_caching:
            return
        digests, size = self._digests[slot], self.block_size
        first, end = len(digests), num_computed // size
        if first == end:
            return
        self._fixed[slot] = max(self._fixed[slot], end)
        blocks = self.tables[slot, first:end].tolist()
        tokens = token_ids[first * size : end * size].tobytes()
        digests += self._prefixes.register(_last(digests), tokens, blocks)

    def forget(self, slot: int) -> None:
        """Let nobody find what the slot's blocks hold, from now on."""
        self._prefixes.forget(self.block_table(slot))

    def free(self, slot: int, token_ids: Array = NO_TOKENS, num_computed: int = 0) -> None:
        """Take back every block of a slot. What holds no prefix is given out again first.

        Args:
            slot: owns nothing afterwards.
            token_ids: int32; its tokens, at least ``num_computed``.
            num_computed: of them, those whose K and V are written. Their full blocks hold prefixes.
        """
        table, digests, size = (
            self.tables[slot, : self.counts[slot]],
            self._digests[slot],
            self.block_size,
        )
        blocks = table.astype(np.intp)
        self._users[blocks] = users = self._users[blocks] - 1
        unowned = users == 0
        first = len(digests)
        end = num_computed // size if self.prefix_caching else first
        if end > first:
            rest = blocks[first:end].tolist()
            # A fork that has left may have registered some of them.
            if np.count_nonzero(unowned[first:end]) == len(rest) and not self._prefixes.knows_any(
                rest
            ):
                tokens = token_ids[first * size : end * size].tobytes()
                self._prefixes.rest_tail(_last(digests), tokens, rest)
                unowned[first:end] = False
            else:
                self.register(slot, token_ids, num_computed)
        # The end of a prefix is evicted before its beginning, without which it is of no use.
        self._give_back(self._prefixes.rest(blocks[unowned][::-1].tolist()))
        table[:] = 0
        self.counts[slot] = 0
        self._digests[slot] = []
        self._fixed[slot] = 0

    def check_invariant(self) -> None:
        """Free, cached and owned blocks are all blocks; shared ones are never written again.

        Raises:
            AssertionError: a block is lost, in two places or shared while it can be written.
        """
        users = [0] * self.num_blocks
        for slot in range(len(self.tables)):
            for block in self.block_table(slot):
                users[block] += 1
        for slot, fixed in enumerate(self._fixed):
            writable = self.block_table(slot)[fixed:]
            assert all(users[block] == 1 for block in writable), "blocks are lost or shared"
        assert users == self._users.tolist(), "blocks are lost or shared"
        used = [block for block, count in enumerate(users) if count]
        free, unused = self._free[: self._num_free].tolist(), self._prefixes.check_invariant(users)
        everywhere = sorted([*free, *unused, *used])
        assert everywhere == list(range(1, self.num_blocks)), "blocks are lost or shared"
        beyond = np.arange(self.tables.shape[1]) >= self.counts[:, None]
        assert not self.tables[beyond].any(), "a table goes on after its last block"

    def _give(self, slot: int, num_tokens: int, beginning: Sequence[int]) -> bool:
        """Blocks with others' contents, then free ones; whether there were enough."""
        assert self.counts[slot] == 0, f"slot {slot} owns blocks already"
        resting = sum(map(self._prefixes.is_unused, beginning))  # no longer free then
        missing = self.blocks_for(num_tokens) - len(beginning)
        if missing > self.num_free - resting:
            return False
        for block in beginning:
            self._users[block] += 1
            self._prefixes.use(block)
        count = len(beginning) + missing
        if beginning:
            self.tables[slot, : len(beginning)] = beginning
        self.tables[slot, len(beginning) : count] = self._take(missing)
        self.counts[slot] = count
        self._fixed[slot] = len(beginning)
        return True

    def _take(self, count: int) -> Array:
        """Free blocks; the oldest unused prefixes are forgotten where there are no others."""
        if count > self._num_free:
            missing = count - self._num_free
            self._give_back(self._prefixes.evict(missing))
            self.num_evicted += missing
        self._num_free -= count
        taken: Array = self._free[self._num_free : self._num_free + count][::-1].copy()
        self._users[taken] = 1
        return taken

    def _give_back(self, blocks: list[int]) -> None:
        """These are free and hold no prefix."""
        self._free[self._num_free : self._num_free + len(blocks)] = blocks
        self._num_free += len(blocks)


def _last(digests: list[bytes]) -> bytes:
    """Of all tokens that have one; empty where none has."""
    return digests[-1] if digests else b""
