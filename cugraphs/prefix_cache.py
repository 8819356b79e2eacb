"""Which blocks hold which beginnings of sequences; which of them nobody uses; what is evicted.

A full block that was written is registered under a hash of all tokens up to its end. Most answers
are never read again, so what a sequence leaves behind its registered blocks is a *tail* that is
hashed only once a prompt has come that far. Knows blocks by their numbers, and not who uses them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import NamedTuple

from cugraphs.kernel import Array

HASH_BYTES = 16


class _Tail(NamedTuple):
    """Full blocks that are not registered yet; nobody uses them.

    Args:
        parent: the digest of all tokens before them.
        tokens: of these blocks, and of those that were evicted behind them.
        blocks: in token order.
    """

    parent: bytes
    tokens: bytes
    blocks: list[int]


class PrefixCache:
    """Finds blocks by the tokens that they hold, and keeps those that nobody uses for a while."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Know nothing of any block.

        Args:
            num_blocks: blocks are numbered below it.
            block_size: tokens of a block.
        """
        self._block_size = block_size
        # Of a registered block: the digest of all tokens up to its end, and its own; else nothing.
        # Bytes in two lists, since Python's garbage collector has to follow any other container.
        self._digests: list[bytes] = [b""] * num_blocks
        self._tokens: list[bytes] = [b""] * num_blocks
        self._blocks: dict[bytes, int] = {}  # the registered block of each digest
        self._tails: dict[bytes, list[_Tail]] = {}  # by parent
        # What nobody uses: registered blocks, and tails by their first block. The next to be
        # evicted comes first; of a tail, its last block.
        self._unused: OrderedDict[int, _Tail | None] = OrderedDict()
        self._num_unused = 0

    @property
    def num_unused(self) -> int:
        """Blocks that are kept and that nobody uses."""
        return self._num_unused

    @property
    def num_known(self) -> int:
        """Blocks that can be found."""
        return len(self._blocks)

    def find(self, token_ids: Array) -> list[int]:
        """Blocks that hold the beginning of ``token_ids``, int32 [n], at most all but the last."""
        size = self._block_size
        found: list[int] = []
        digest = b""
        for begin in range(0, len(token_ids) - size, size):
            if digest in self._tails:
                self._register_tails(digest)
            tokens = token_ids[begin : begin + size].tobytes()
            digest = _digest(digest, tokens)
            block = self._blocks.get(digest)
            if block is None or self._tokens[block] != tokens:
                break
            found.append(block)
        return found

    def digests(self, blocks: Sequence[int]) -> list[bytes]:
        """Of registered blocks: each of all tokens up to the block's end."""
        return [self._digests[block] for block in blocks]

    def knows_any(self, blocks: Sequence[int]) -> bool:
        """Whether one of these is registered."""
        return any(map(self._digests.__getitem__, blocks))

    def is_unused(self, block: int) -> bool:
        """Whether nobody uses a block that was found."""
        return block in self._unused

    def use(self, block: int) -> None:
        """Somebody uses a block that was found."""
        if block in self._unused:
            del self._unused[block]
            self._num_unused -= 1

    def register(self, parent: bytes, tokens: bytes, blocks: Sequence[int]) -> list[bytes]:
        """Make full blocks known. A prefix that another block holds already stays with that one.

        Args:
            parent: the digest of all tokens before them; empty where there are none.
            tokens: int32; theirs.
            blocks: in token order.

        Returns:
            The digests of all tokens up to the end of each.
        """
        width = len(tokens) // len(blocks)
        parts = [tokens[begin : begin + width] for begin in range(0, len(tokens), width)]
        _, *digests = accumulate(parts, _digest, initial=parent)
        for digest, own, block in zip(digests, parts, blocks, strict=True):
            if self._blocks.setdefault(digest, block) == block:
                self._digests[block], self._tokens[block] = digest, own
        return digests

    def forget(self, blocks: Sequence[int]) -> None:
        """Let nobody find these, which are used."""
        for block in blocks:
            if self._digests[block]:
                del self._blocks[self._digests[block]]
                self._digests[block] = self._tokens[block] = b""

    def rest(self, blocks: Sequence[int]) -> list[int]:
        """Keep what nobody uses any more, if it is registered.

        Args:
            blocks: of one sequence, in the order in which they are to be evicted.

        Returns:
            The others.
        """
        kept = [block for block in blocks if self._digests[block]]
        self._unused.update(dict.fromkeys(kept))
        self._num_unused += len(kept)
        return [block for block in blocks if not self._digests[block]]

    def rest_tail(self, parent: bytes, tokens: bytes, blocks: list[int]) -> None:
        """Keep full blocks that nobody uses any more, none of them registered.

        Arguments as of :meth:`register`.
        """
        tail = self._unused[blocks[0]] = _Tail(parent, tokens, blocks)
        self._tails.setdefault(parent, []).append(tail)
        self._num_unused += len(blocks)

    def evict(self, count: int) -> list[int]:
        """Forget the unused blocks that rest longest."""
        evicted: list[int] = []
        while len(evicted) < count:
            block, tail = next(iter(self._unused.items()))
            if tail is None:
                self._forget(block)
                evicted.append(block)
                continue
            kept = max(len(tail.blocks) - (count - len(evicted)), 0)
            evicted += reversed(tail.blocks[kept:])
            del tail.blocks[kept:]
            if not kept:
                del self._unused[block]
                self._drop(tail)
        self._num_unused -= count
        return evicted

    def check_invariant(self, users: Sequence[int]) -> set[int]:
        """Every kept block is registered or in a tail, and only unused ones are in tails.

        Args:
            users: of each block.

        Returns:
            The unused blocks.

        Raises:
            AssertionError: a block is in two places, or kept for nothing.
        """
        known = {digest: block for block, digest in enumerate(self._digests) if digest}
        assert known == self._blocks, "a prefix and its block differ"
        tails = [tail for siblings in self._tails.values() for tail in siblings]
        kept = {tail.blocks[0]: tail for tail in tails}
        assert kept == {b: tail for b, tail in self._unused.items() if tail is not None}
        in_tails = [block for tail in tails for block in tail.blocks]
        assert not set(in_tails) & set(known.values()), "a registered block is in a tail"
        unused = {block for block, tail in self._unused.items() if tail is None} | set(in_tails)
        assert len(unused) == self._num_unused, "unused blocks are counted wrong"
        assert {block for block in known.values() if not users[block]} <= unused, "a block is lost"
        assert not any(users[block] for block in unused), "a block is used and unused"
        return unused

    def _register_tails(self, parent: bytes) -> None:
        """Hash what follows a prefix, as if it were used now.

        Blocks that hold what others hold are the next to be evicted.
        """
        width = 4 * self._block_size
        for tail in self._tails.pop(parent):
            del self._unused[tail.blocks[0]]
            self.register(parent, tail.tokens[: width * len(tail.blocks)], tail.blocks)
            for block in reversed(tail.blocks):
                self._unused[block] = None
                if not self._digests[block]:
                    self._unused.move_to_end(block, last=False)

    def _forget(self, block: int) -> None:
        """An unused block holds nothing any more, if it did."""
        del self._unused[block]
        if self._digests[block]:
            del self._blocks[self._digests[block]]
            self._digests[block] = self._tokens[block] = b""

    def _drop(self, tail: _Tail) -> None:
        """All of its blocks are evicted."""
        siblings = self._tails[tail.parent]
        siblings.remove(tail)
        if not siblings:
            del self._tails[tail.parent]


def _digest(parent: bytes, tokens: bytes) -> bytes:
    """128 bits of the tokens of a block and, through its parent's, of all before it."""
    return blake2b(parent + tokens, digest_size=HASH_BYTES).digest()
