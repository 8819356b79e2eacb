"""Which tokens run in the next step. Knows sequences and blocks; no arrays, no CuPy.

Sequences that decode come first, one token each. What is left of the token budget goes to
prompts, in their order and in chunks if need be, so neither kind waits for the other. When
blocks run out, the running sequence that is last in order gives its blocks back and is computed
again later. The order never changes, so the first sequence always gets on, and none starves.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from cugraphs.block_manager import BlockManager
from cugraphs.sequence import Sequence


@dataclass(frozen=True)
class ScheduledChunk:
    """``num_tokens`` tokens of ``sequence``, the first uncomputed ones."""

    sequence: Sequence
    num_tokens: int
    is_new: bool = False  # admitted in this step: its slot of the sampling state must be written

    @property
    def samples(self) -> bool:
        """Whether the chunk reaches the end of the sequence, so that a token is sampled."""
        return self.num_tokens == self.sequence.num_uncomputed


class Scheduler:
    """Queues of waiting and running sequences."""

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_prompt_logits: int,
    ) -> None:
        """Limit every step.

        Args:
            blocks: of the cache.
            max_num_seqs: sequences that run at once.
            max_num_batched_tokens: tokens of a step.
            max_prompt_logits: tokens of a step that belong to prompts whose log-probabilities
                are wanted, since each of them takes a row of logits.

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
        self.max_prompt_logits = max_prompt_logits
        self.waiting: list[Sequence] = []  # in order
        self.running: list[Sequence] = []  # in order of admission
        self.num_preemptions = 0
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        insort(self.waiting, sequence, key=_order)

    def schedule(self) -> list[ScheduledChunk]:
        """The chunks of the next step; empty only if nothing waits and nothing runs."""
        for sequence in list(self.running):
            if sequence.slot >= 0 and sequence.num_uncomputed == 1:
                self._grow(sequence)
        chunks = [ScheduledChunk(s, 1) for s in self.running if s.num_uncomputed == 1]
        budget = self.max_num_batched_tokens - len(chunks)
        prompt_logits = self.max_prompt_logits

        def room(sequence: Sequence) -> int:
            limit = min(budget, prompt_logits) if sequence.wants_prompt_logprobs else budget
            return min(sequence.num_uncomputed, limit)

        def take(sequence: Sequence, count: int, *, is_new: bool) -> None:
            nonlocal budget, prompt_logits
            chunks.append(ScheduledChunk(sequence, count, is_new))
            budget -= count
            if sequence.wants_prompt_logprobs:
                prompt_logits -= count

        for sequence in self.running:
            if sequence.num_uncomputed > 1 and (count := room(sequence)):
                take(sequence, count, is_new=False)
        # A sequence is admitted only with blocks for all its tokens, so that half-computed prompts
        # do not take the blocks from each other.
        for sequence in list(self.waiting):
            if sequence.waits_for_leader:
                continue
            if not self._free_slots or not room(sequence):
                break
            prefix: list[int] = []
            if not sequence.wants_prompt_logprobs:
                prefix = self.blocks.cached_prefix(sequence.tokens(0, sequence.num_tokens))
            if not self.blocks.admit(sequence.seq_id, sequence.num_tokens, prefix):
                break
            self.waiting.remove(sequence)
            self.running.append(sequence)
            sequence.num_computed = len(prefix) * self.blocks.block_size
            sequence.slot = self._free_slots.pop()
            take(sequence, room(sequence), is_new=True)
        return chunks

    def finish(self, sequence: Sequence) -> None:
        """Drop a sequence, running or waiting, and free its blocks."""
        if sequence.slot >= 0:
            self.running.remove(sequence)
            self._release(sequence)
        else:
            self.waiting.remove(sequence)

    def preempt_all(self) -> None:
        """Send every running sequence back to the head of the queue, to be computed anew."""
        while self.running:
            self._preempt_last()

    def _grow(self, sequence: Sequence) -> None:
        """Get blocks for all tokens of ``sequence``; preempt the last in order, at worst itself."""
        while not self.blocks.grow(sequence.seq_id, sequence.num_tokens):
            if self._preempt_last() is sequence:
                return

    def _preempt_last(self) -> Sequence:
        """Take slot and blocks from the running sequence that is last in order."""
        victim = max(self.running, key=_order)
        self.running.remove(victim)
        self._release(victim)
        victim.num_computed = 0
        self.add(victim)
        self.num_preemptions += 1
        return victim

    def _release(self, sequence: Sequence) -> None:
        self.blocks.free(sequence.seq_id)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order, sequence.seq_id
