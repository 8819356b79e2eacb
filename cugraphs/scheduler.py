"""Which tokens run in the next step. Knows sequences and blocks; no CuPy.

Sequences that decode come first, one token each. What is left of the token budget goes to
prompts, in their order and in chunks if need be, so neither kind waits for the other. When
blocks run out, the running sequence that is last in order gives its blocks back and is computed
again later. The order never changes, so the first sequence always gets on, and none starves.

Steps may be scheduled while earlier ones still run. A sequence that has ended keeps its blocks and
its slot until every step with a row of it was collected, so nobody else can meet what those write.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from cugraphs.block_manager import BlockManager
from cugraphs.kernel import Array
from cugraphs.sequence import Sequence, SequenceSlots


class ScheduledChunk(NamedTuple):
    """The tokens ``start`` to ``start + num_tokens - 1`` of a sequence, known and not computed."""

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool  # whether it reaches the sequence's end, so that a token is sampled
    is_new: bool = False  # admitted in this step: its slot of the device's state must be written


class ScheduledStep(NamedTuple):
    """What runs next.

    Args:
        decode_slots: int64 [n]; the sequences that compute their newest token and sample another.
        positions: int64 [n]; where those (first) sampled tokens will stand.
        chunks: of prompts, after those.
        num_steps: how often in a row; more than once only without chunks.
        grown: what was appended to the block tables for it, as (slots, indices, blocks).
        copies: blocks of the cache to copy before it, as (source, target).
    """

    decode_slots: Array
    positions: Array
    chunks: list[ScheduledChunk]
    num_steps: int
    grown: tuple[Array, Array, Array]
    copies: list[tuple[int, int]]


class Scheduler:
    """Queues of waiting and running sequences."""

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_num_seqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        max_prompt_logits: int,
    ) -> None:
        """Limit every step.

        Args:
            blocks: of the cache.
            max_num_seqs: sequences that run at once.
            max_model_len: tokens of the longest sequence.
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
        self.max_model_len = max_model_len
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_prompt_logits = max_prompt_logits
        self.num_preemptions = 0
        self.start_over(())

    def start_over(self, sequences: Iterable[Sequence]) -> None:
        """Let these wait, to be computed anew; nothing else is known, runs or is in flight.

        Everything is made new, so what was so far may have been left halfway by an interrupt.

        Args:
            sequences: with all tokens that are known in ``token_ids``, wherever they were.
        """
        self.blocks.start_over()
        self.slots = SequenceSlots(self.max_num_seqs, self.max_model_len)
        self.waiting: list[Sequence] = sorted(sequences, key=_order)
        self.running: list[Sequence] = []  # in order of admission
        self._prefilling: list[Sequence] = []  # the running ones that do not decode yet
        self._free_slots = list(range(self.max_num_seqs - 1, -1, -1))
        self._leaving: list[Sequence] = []  # ended, in steps that are not collected
        self._submitted = self._collected = 0  # numbers of steps
        self._copies: list[tuple[int, int]] = []  # of the step that is being scheduled
        # Free blocks and known prefixes when whoever waits first was refused for want of blocks.
        self._refused: tuple[int, int] | None = None
        for sequence in self.waiting:
            sequence.slot = -1
            sequence.holders.clear()

    @property
    def num_in_flight(self) -> int:
        """Steps that are submitted and not collected."""
        return self._submitted - self._collected

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self.waiting and not self.running

    @property
    def could_join(self) -> bool:
        """Whether a prompt waits that the next step might have room for."""
        if self._prefilling or self._refused is None:
            return bool(self._prefilling or (self.waiting and self._free_slots))
        free, known = self._refused
        has_more = self.blocks.num_free > free or self.blocks.num_prefixes > known
        return bool(self.waiting and self._free_slots and has_more)

    def num_tokens(self, sequence: Sequence) -> int:
        """Tokens of prompt and answer that are known."""
        slot = sequence.slot
        return len(sequence.token_ids if slot < 0 else self.slots.known_tokens(slot))

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._refused = None
        insort(self.waiting, sequence, key=_order)

    def schedule(self, num_steps: int = 1) -> ScheduledStep | None:
        """What the next step runs, to be followed by :meth:`submit`.

        Args:
            num_steps: how often in a row, if it is decode rows alone and nobody could join.

        Returns:
            None if nothing is to be done; or nothing until the steps in flight are collected.
        """
        if self.could_join:
            num_steps = 1
        found = self._grow_decode_rows(num_steps)
        if found is None:
            return None
        rows, positions, grown, num_steps = found
        # Steps that are queued behind a loop rely on it that nobody joins where nobody could.
        budget = self.max_num_batched_tokens - len(rows)
        chunks = self._prompt_chunks(budget) if self.could_join else []
        if not chunks and not len(rows):
            return None
        copies, self._copies = self._copies, []
        return ScheduledStep(rows, positions, chunks, 1 if chunks else num_steps, grown, copies)

    def submit(self, step: ScheduledStep) -> int:
        """Count what was scheduled as computed; returns the number of the (last) step."""
        slots = self.slots
        self._submitted += step.num_steps
        rows = step.decode_slots
        slots.num_computed[rows] = self._ahead(rows, step.positions, step.num_steps)
        slots.last_step[rows] = self._submitted
        for chunk in step.chunks:
            self._refused = None  # a prompt that others wait for gets on
            slot = chunk.sequence.slot
            slots.num_computed[slot] += chunk.num_tokens
            slots.last_step[slot] = self._submitted
            sequence = chunk.sequence
            holds_prompt = slots.num_computed[slot] >= len(sequence.prompt_token_ids)
            if holds_prompt and sequence not in sequence.holders:
                sequence.holders.append(sequence)
            if chunk.samples:
                slots.decodes[slot] = True
                self._prefilling.remove(chunk.sequence)
        return self._submitted

    def collect(self, num_steps: int = 1) -> None:
        """The oldest step in flight is over; who ended before gives back what it alone wrote."""
        self._collected += num_steps
        if self._leaving:
            self._release_leaving()

    @property
    def has_leaving(self) -> bool:
        """Whether sequences have ended that steps in flight have rows of."""
        return bool(self._leaving)

    def finish(self, sequence: Sequence) -> None:
        """Drop a sequence, running or waiting; its blocks are free once no step writes to them."""
        sequence.ended = True
        if sequence.slot < 0:
            self.waiting.remove(sequence)
            self._refused = None
            return
        if sequence.failed:
            self.blocks.forget(sequence.slot)
        self._stop_running(sequence)
        if self._is_in_flight(sequence):
            self.slots.ended[sequence.slot] = True
            self._leaving.append(sequence)
        else:
            self._release(sequence)

    def _grow_decode_rows(
        self, num_steps: int
    ) -> tuple[Array, Array, tuple[Array, Array, Array], int] | None:
        """Give those that decode blocks for ``num_steps`` tokens, or for as few as need be.

        None if blocks run out and a step is in flight: a sequence can be preempted only when all of
        its tokens are known.
        """
        slots = self.slots
        while True:
            # Who reaches its limit in a submitted step needs no other one.
            next_position = slots.num_computed + 1
            goes_on = slots.decodes & (next_position < slots.end_position)
            rows = goes_on.nonzero()[0]
            positions = next_position.take(rows)
            grown = self.blocks.grow(rows, self._ahead(rows, positions, num_steps))
            if grown is not None:
                return rows, positions, grown, num_steps
            if num_steps > 1:
                num_steps //= 2
            elif self.num_in_flight:
                return None
            else:
                self._preempt_last()

    def _ahead(self, rows: Array, positions: Array, num_steps: int) -> Array:
        """Tokens in the cache of those that decode, after ``num_steps`` steps."""
        if num_steps == 1:
            return positions
        ahead: Array = np.minimum(
            positions + (num_steps - 1), self.slots.end_position.take(rows) - 1
        )
        return ahead

    def _prompt_chunks(self, budget: int) -> list[ScheduledChunk]:
        """Chunks of prompts, of those that run first, for at most ``budget`` tokens."""
        slots, chunks = self.slots, []
        prompt_logits = self.max_prompt_logits

        def take(sequence: Sequence, *, is_new: bool) -> None:
            nonlocal budget, prompt_logits
            start = int(slots.num_computed[sequence.slot])
            left = int(slots.num_tokens[sequence.slot]) - start
            count = min(left, budget)
            if sequence.wants_prompt_logprobs:
                count = min(count, prompt_logits)
                prompt_logits -= count
            budget -= count
            if count:
                chunks.append(ScheduledChunk(sequence, start, count, count == left, is_new))

        for sequence in self._prefilling:
            take(sequence, is_new=False)
        # A sequence is admitted only with blocks for all its tokens, so that half-computed prompts
        # do not take the blocks from each other.
        for sequence in list(self.waiting) if self._free_slots else ():
            if sequence.waits_for_leader:
                continue
            room = min(budget, prompt_logits) if sequence.wants_prompt_logprobs else budget
            if not self._free_slots or not room:
                break
            if not self._admit(sequence):
                self._refused = self.blocks.num_free, self.blocks.num_prefixes
                break
            take(sequence, is_new=True)
        return chunks

    def _admit(self, sequence: Sequence) -> bool:
        """Give a waiting sequence a slot and blocks, if there are enough."""
        known = self._take_blocks(sequence)
        if known is None:
            return False
        self.waiting.remove(sequence)
        self.running.append(sequence)
        self._prefilling.append(sequence)
        self.slots.place(sequence, self._free_slots.pop(), known)
        return True

    def _take_blocks(self, sequence: Sequence) -> int | None:
        """Give the next free slot blocks for a sequence; how many of its tokens they hold already.

        None if too few are free. Another sample of its prompt may have more of it than the cache.
        """
        blocks, token_ids, slot = self.blocks, sequence.token_ids, self._free_slots[-1]
        if sequence.wants_prompt_logprobs:  # each of its tokens must be computed
            return 0 if blocks.admit(slot, len(token_ids)) else None
        prefix = blocks.cached_prefix(token_ids)
        shared = min(len(sequence.prompt_token_ids), len(token_ids) - 1)
        if sequence.holders and shared > len(prefix) * blocks.block_size:
            copies = blocks.fork(slot, len(token_ids), sequence.holders[0].slot, shared)
            if copies is None:
                return None
            self._copies += copies
            return shared
        found = blocks.admit(slot, len(token_ids), prefix)
        return len(prefix) * blocks.block_size if found else None

    def _preempt_last(self) -> None:
        """Take slot and blocks from the running sequence that is last in order."""
        victim = max(self.running, key=_order)
        self._stop_running(victim)
        self._release(victim)
        self.add(victim)
        self.num_preemptions += 1

    def _stop_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        if sequence in sequence.holders:
            sequence.holders.remove(sequence)
        self.slots.decodes[sequence.slot] = False
        if sequence in self._prefilling:
            self._prefilling.remove(sequence)

    def _release_leaving(self) -> None:
        """Release the ended sequences that no step in flight has a row of."""
        leaving, self._leaving = self._leaving, []
        for sequence in leaving:
            if self._is_in_flight(sequence):
                self._leaving.append(sequence)
            else:
                self._release(sequence)

    def _is_in_flight(self, sequence: Sequence) -> bool:
        return bool(self.slots.last_step[sequence.slot] > self._collected)

    def _release(self, sequence: Sequence) -> None:
        slot = sequence.slot
        written = int(self.slots.num_written[slot])
        if sequence.failed:
            self.blocks.free(slot)
        else:
            self.blocks.free(slot, self.slots.token_ids[slot], written)
        self.slots.empty(slot)
        self._free_slots.append(slot)


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order, sequence.seq_id
