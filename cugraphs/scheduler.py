"""Which tokens run in the next step. Knows sequences and blocks; no arrays, no CuPy.

Sequences that decode come first, one token each. What is left of the token budget goes to
prompts, in order of arrival and in chunks if need be, so neither kind waits for the other. When
blocks run out, the sequence that was admitted last gives its blocks back and is computed again
later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from cugraphs.block_manager import BlockManager
from cugraphs.sequence import Sequence


@dataclass(frozen=True)
class ScheduledChunk:
    """``num_tokens`` tokens of ``sequence``, the first uncomputed ones."""

    sequence: Sequence
    num_tokens: int

    @property
    def samples(self) -> bool:
        """Whether the chunk reaches the end of the sequence, so that a token is sampled."""
        return self.num_tokens == self.sequence.num_uncomputed


class Scheduler:
    """Queues of waiting and running sequences."""

    def __init__(
        self, blocks: BlockManager, *, max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        """Schedule at most ``max_num_seqs`` sequences and that many tokens a step.

        Raises:
            ValueError: the token budget is smaller than the number of sequences.
        """
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"Scheduler: max_num_batched_tokens is {max_num_batched_tokens}, "
                f"expected at least max_num_seqs, {max_num_seqs}"
            )
        self.blocks = blocks
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of admission
        self.num_preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def schedule(self) -> list[ScheduledChunk]:
        """The chunks of the next step; empty only if nothing waits and nothing runs."""
        chunks: list[ScheduledChunk] = []
        budget = self.max_num_batched_tokens
        for sequence in [s for s in self.running if s.num_uncomputed == 1]:
            if sequence in self.running and self._grow(sequence, sequence.num_tokens):
                chunks.append(ScheduledChunk(sequence, 1))
        # A sequence scheduled above may have been preempted by a later one's growth.
        chunks = [chunk for chunk in chunks if chunk.sequence in self.running]
        budget -= len(chunks)
        scheduled = {chunk.sequence for chunk in chunks}
        for sequence in list(self.running):
            if sequence not in scheduled and budget > 0:
                count = min(sequence.num_uncomputed, budget)
                if self.blocks.grow(sequence.seq_id, sequence.num_computed + count):
                    chunks.append(ScheduledChunk(sequence, count))
                    budget -= count
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            count = min(sequence.num_uncomputed, budget)
            # Admit only what can hold its whole prompt, so that half-computed prompts do not
            # take the blocks from each other.
            if not self.blocks.grow(sequence.seq_id, sequence.num_tokens):
                break
            self.waiting.popleft()
            self.running.append(sequence)
            chunks.append(ScheduledChunk(sequence, count))
            budget -= count
        return chunks

    def finish(self, sequence: Sequence) -> None:
        """Drop a sequence, running or waiting, and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self.blocks.free(sequence.seq_id)

    def _grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Get blocks for ``sequence``, preempting from the end; False if it had to go itself."""
        while not self.blocks.grow(sequence.seq_id, num_tokens):
            victim = self.running.pop()
            self.blocks.free(victim.seq_id)
            victim.num_computed = 0
            self.waiting.appendleft(victim)
            self.num_preemptions += 1
            if victim is sequence:
                return False
        return True
