"""Host accounting of the KV cache's blocks: which sequence owns which. No arrays, no CuPy."""

from __future__ import annotations

from collections import deque

SCRATCH_BLOCK = 0  # dead rows point at it; it is never given out


class BlockManager:
    """Hands out blocks of ``block_size`` tokens and takes them back."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Manage blocks 1 to ``num_blocks - 1``.

        Raises:
            ValueError: there is no block beside the scratch block.
        """
        if num_blocks < 2:
            raise ValueError(f"BlockManager: num_blocks is {num_blocks}, expected at least 2")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = deque(range(1, num_blocks))
        self._owned: dict[int, list[int]] = {}

    @property
    def num_usable(self) -> int:
        """Blocks that sequences can own."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that no sequence owns."""
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens need."""
        return -(-num_tokens // self.block_size)

    def block_table(self, seq_id: int) -> list[int]:
        """The blocks of a sequence, in token order (not a copy)."""
        return self._owned.get(seq_id, [])

    def grow(self, seq_id: int, num_tokens: int) -> bool:
        """Give the sequence enough blocks for ``num_tokens`` tokens; False if too few are free."""
        missing = self.blocks_for(num_tokens) - len(self._owned.get(seq_id, ()))
        if missing > len(self._free):
            return False
        if missing > 0:
            table = self._owned.setdefault(seq_id, [])
            table.extend(self._free.popleft() for _ in range(missing))
        return True

    def free(self, seq_id: int) -> None:
        """Take back every block of the sequence. Freed blocks are given out last."""
        self._free.extend(self._owned.pop(seq_id, ()))

    def check_invariant(self) -> None:
        """Free and owned blocks are all blocks, each once.

        Raises:
            AssertionError: a block is lost, shared, or the scratch block is in use.
        """
        blocks = [*self._free, *(block for table in self._owned.values() for block in table)]
        assert sorted(blocks) == list(range(1, self.num_blocks)), "blocks are lost or shared"
