"""Host accounting of the KV cache's blocks: who uses which, and which prefixes they hold.

A full block that was written is registered under a hash of all tokens up to its end. A new sequence
with the same beginning uses the same blocks; they are never written again, since a sequence always
computes its last token, in a block of its own. No arrays, no CuPy.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

SCRATCH_BLOCK = 0  # dead rows point at it; it is never given out
HASH_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Prefix:
    """What a registered block holds: its own tokens, after those of the block before it."""

    digest: bytes
    tokens: tuple[int, ...]


@dataclass(slots=True)
class _Owned:
    """Blocks of one sequence, in token order, and the digests of its first full ones."""

    table: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    num_registered: int = 0  # full blocks that were looked at


class BlockManager:
    """Hands out blocks of ``block_size`` tokens and takes them back."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        """Manage blocks 1 to ``num_blocks - 1``.

        Args:
            num_blocks: of the cache, the scratch block included.
            block_size: tokens in a block.
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
        self.num_evicted = 0
        self._free = deque(range(1, num_blocks))
        self._owned: dict[int, _Owned] = {}
        self._users = [0] * num_blocks
        self._prefixes: dict[int, _Prefix] = {}  # of registered blocks
        self._blocks: dict[bytes, int] = {}  # the registered block of each prefix
        self._unused: OrderedDict[int, None] = OrderedDict()  # hold a prefix; the oldest first

    @property
    def num_usable(self) -> int:
        """Blocks that sequences can own."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that no sequence owns; some of them still hold a prefix."""
        return len(self._free) + len(self._unused)

    @property
    def num_cached(self) -> int:
        """Blocks that hold a prefix and that no sequence owns."""
        return len(self._unused)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens need."""
        return -(-num_tokens // self.block_size)

    def block_table(self, seq_id: int) -> list[int]:
        """The blocks of a sequence, in token order (not a copy)."""
        owned = self._owned.get(seq_id)
        return owned.table if owned else []

    def cached_prefix(self, token_ids: Sequence[int]) -> list[int]:
        """Registered blocks that hold the beginning of ``token_ids``, at most all but the last."""
        if not self.prefix_caching:
            return []
        found: list[int] = []
        digest = b""
        for begin in range(0, len(token_ids) - self.block_size, self.block_size):
            tokens = tuple(token_ids[begin : begin + self.block_size])
            digest = _digest(digest, tokens)
            block = self._blocks.get(digest)
            if block is None or self._prefixes[block].tokens != tokens:
                break
            found.append(block)
        return found

    def admit(self, seq_id: int, num_tokens: int, prefix: Sequence[int] = ()) -> bool:
        """Give a new sequence the blocks of its cached prefix, and free ones for the rest.

        Args:
            seq_id: owns nothing yet.
            num_tokens: that it needs room for.
            prefix: from :meth:`cached_prefix`, with nothing given out since.

        Returns:
            Whether there were enough; otherwise nothing changes.
        """
        assert seq_id not in self._owned, f"sequence {seq_id} owns blocks already"
        resting = sum(self._users[block] == 0 for block in prefix)  # no longer free then
        if self.blocks_for(num_tokens) - len(prefix) > self.num_free - resting:
            return False
        owned = self._owned[seq_id] = _Owned(list(prefix))
        owned.digests = [self._prefixes[block].digest for block in prefix]
        owned.num_registered = len(prefix)
        for block in prefix:
            self._users[block] += 1
            self._unused.pop(block, None)
        self.num_cached_tokens += len(prefix) * self.block_size
        return self.grow(seq_id, num_tokens)

    def grow(self, seq_id: int, num_tokens: int) -> bool:
        """Give the sequence enough blocks for ``num_tokens`` tokens; False if too few are free."""
        owned = self._owned.get(seq_id)
        missing = self.blocks_for(num_tokens) - (len(owned.table) if owned else 0)
        if missing > self.num_free:
            return False
        if missing > 0:
            if owned is None:
                owned = self._owned[seq_id] = _Owned()
            owned.table.extend(self._take() for _ in range(missing))
        return True

    def register(
        self, seq_id: int, tokens: Callable[[int, int], Sequence[int]], num_computed: int
    ) -> None:
        """Make the sequence's full blocks known as prefixes, once a step has written them.

        A prefix that another block holds already stays with that one.

        Args:
            seq_id: of the sequence.
            tokens: its tokens at the positions from the first argument to before the second.
            num_computed: of them, those whose K and V are written.
        """
        owned = self._owned.get(seq_id)
        if owned is None or not self.prefix_caching:
            return
        for index in range(owned.num_registered, num_computed // self.block_size):
            begin = index * self.block_size
            held = tuple(tokens(begin, begin + self.block_size))
            digest = _digest(owned.digests[-1] if index else b"", held)
            owned.digests.append(digest)
            owned.num_registered += 1
            if digest not in self._blocks:
                self._blocks[digest] = owned.table[index]
                self._prefixes[owned.table[index]] = _Prefix(digest, held)

    def free(self, seq_id: int) -> None:
        """Take back every block of the sequence. What holds no prefix is given out again first."""
        owned = self._owned.pop(seq_id, None)
        if owned is None:
            return
        # The end of a prefix is evicted before its beginning, without which it is of no use.
        for block in reversed(owned.table):
            self._users[block] -= 1
            if self._users[block] == 0:
                if block in self._prefixes:
                    self._unused[block] = None
                else:
                    self._free.append(block)

    def check_invariant(self) -> None:
        """Free, cached and owned blocks are all blocks; shared ones are full and registered.

        Raises:
            AssertionError: a block is lost, in two places or shared while it can be written.
        """
        users = [0] * self.num_blocks
        for owned in self._owned.values():
            for index, block in enumerate(owned.table):
                users[block] += 1
                full = index < owned.num_registered
                assert users[block] == 1 or full, "blocks are lost or shared"
        assert users == self._users, "blocks are lost or shared"
        used = [block for block, count in enumerate(users) if count]
        everywhere = [*self._free, *self._unused, *used]
        assert sorted(everywhere) == list(range(1, self.num_blocks)), "blocks are lost or shared"
        assert {self._blocks[p.digest] for p in self._prefixes.values()} == set(self._prefixes)
        assert set(self._unused) <= set(self._prefixes) and len(self._blocks) == len(self._prefixes)

    def _take(self) -> int:
        """A free block; the oldest unused prefix is forgotten where there is no other."""
        if self._free:
            block = self._free.popleft()
        else:
            block, _ = self._unused.popitem(last=False)
            del self._blocks[self._prefixes.pop(block).digest]
            self.num_evicted += 1
        self._users[block] = 1
        return block


def _digest(parent: bytes, tokens: tuple[int, ...]) -> bytes:
    """128 bits of the tokens of a block and, through its parent's, of all before it."""
    own = np.array(tokens, np.int32).tobytes()
    return hashlib.blake2b(parent + own, digest_size=HASH_BYTES).digest()
