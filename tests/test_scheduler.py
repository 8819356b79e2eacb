"""Every request ends, in its turn, within the limits of a step, whatever comes and goes."""

from collections import deque

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from cugraphs.block_manager import BlockManager
from cugraphs.sampling_params import SamplingParams
from cugraphs.scheduler import Scheduler
from cugraphs.sequence import Sequence

PLAIN = SamplingParams()
WITH_PROMPT_LOGPROBS = SamplingParams(prompt_logprobs=0)


def make_scheduler(num_blocks=100, block_size=4, seqs=4, tokens=16, prompt_logits=8):
    longest = num_blocks * block_size
    return Scheduler(
        BlockManager(num_blocks, block_size, num_slots=seqs, max_blocks=num_blocks),
        max_num_seqs=seqs,
        max_model_len=longest,
        max_num_batched_tokens=tokens,
        max_prompt_logits=prompt_logits,
    )


def make_sequence(
    seq_id, prompt_len, *, params=PLAIN, max_tokens=8, sample_index=0, token=None, order=0
):
    """Sequences with the same ``token`` have prompts that begin alike."""
    prompt = [seq_id if token is None else token] * prompt_len
    return Sequence(seq_id, prompt, params, max_tokens, sample_index=sample_index, order=order)


def run_step(scheduler):
    """What an engine does with a step, without a model: (sequence, tokens) of each row."""
    step = scheduler.schedule()
    if step is None:
        return []
    scheduler.submit(step)
    return collect(scheduler, step)


def collect(scheduler, step):
    """Sample 9 for every row of the oldest step in flight that still runs."""
    slots = scheduler.slots
    ran = [(slots.sequences[slot].seq_id, 1) for slot in step.decode_slots.tolist()]
    ran += [(chunk.sequence.seq_id, chunk.num_tokens) for chunk in step.chunks]
    sampled = step.decode_slots.tolist()
    for chunk in step.chunks:
        sequence, stop = chunk.sequence, chunk.start + chunk.num_tokens
        if sequence.wants_prompt_logprobs:
            known = min(stop, len(sequence.prompt_token_ids) - 1)
            sequence.num_prompt_logprobs = max(sequence.num_prompt_logprobs, known)
        slots.num_written[sequence.slot] = stop
        scheduler.blocks.register(sequence.slot, slots.token_ids[sequence.slot], stop)
        if chunk.samples:
            sampled.append(sequence.slot)
    sampled = [slot for slot in sampled if not slots.ended[slot]]
    scheduler.collect()
    for slot in sampled:
        position = slots.num_tokens[slot]
        slots.token_ids[slot, position] = 9
        slots.num_tokens[slot] += 1
        slots.num_written[slot] = position
        if slots.num_tokens[slot] == slots.end_position[slot]:
            scheduler.finish(slots.sequences[slot])
    return ran


def add(scheduler, *sequences):
    for sequence in sequences:
        scheduler.add(sequence)


def test_prompts_that_fit_run_whole_and_together():
    scheduler = make_scheduler(tokens=16)
    add(scheduler, *(make_sequence(i, length) for i, length in enumerate([3, 5, 8])))
    assert run_step(scheduler) == [(0, 3), (1, 5), (2, 8)]
    assert run_step(scheduler) == [(0, 1), (1, 1), (2, 1)]


def test_a_long_prompt_is_cut_and_those_that_decode_go_first():
    scheduler = make_scheduler(tokens=10)
    add(scheduler, make_sequence(0, 4), make_sequence(1, 20))
    assert run_step(scheduler) == [(0, 4), (1, 6)]
    assert run_step(scheduler) == [(0, 1), (1, 9)]
    add(scheduler, make_sequence(2, 7))
    assert run_step(scheduler) == [(0, 1), (1, 5), (2, 4)]
    assert run_step(scheduler) == [(0, 1), (1, 1), (2, 3)]


def test_no_more_sequences_than_slots():
    scheduler = make_scheduler(seqs=2)
    add(scheduler, *(make_sequence(i, 1, max_tokens=2) for i in range(3)))
    assert run_step(scheduler) == [(0, 1), (1, 1)]
    assert run_step(scheduler) == [(0, 1), (1, 1)]
    assert run_step(scheduler) == [(2, 1)]


def test_without_blocks_the_last_one_is_preempted_and_computed_again():
    scheduler = make_scheduler(num_blocks=4, block_size=4)  # 3 blocks of 4 tokens
    add(scheduler, make_sequence(0, 4), make_sequence(1, 3))
    assert run_step(scheduler) == [(0, 4), (1, 3)]
    assert run_step(scheduler) == [(0, 1), (1, 1)]  # 0 takes the last block
    assert scheduler.num_preemptions == 0
    assert run_step(scheduler) == [(0, 1)]  # 1 needs another: it is itself the last one
    assert scheduler.num_preemptions == 1
    assert [sequence.seq_id for sequence in scheduler.waiting] == [1]
    while scheduler.running:
        assert run_step(scheduler) == [(0, 1)]
    assert run_step(scheduler) == [(1, 5)]  # its prompt and the 2 tokens it had, in one chunk


def test_a_sequence_waits_for_blocks_of_all_its_prompt():
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    add(scheduler, make_sequence(0, 8), make_sequence(1, 8), make_sequence(2, 1))
    assert run_step(scheduler) == [(0, 8)]  # and 2 does not overtake 1


def test_steps_go_together_while_a_prompt_waits_for_blocks():
    scheduler = make_scheduler(num_blocks=8, block_size=4)  # 7 blocks of 4 tokens
    add(scheduler, make_sequence(0, 8, max_tokens=8), make_sequence(1, 24))
    assert run_step(scheduler) == [(0, 8)]  # 1 needs six blocks, and five are free
    assert run_step(scheduler) == [(0, 1)]  # nor does it begin as 0, which is known now
    assert not scheduler.could_join
    step = scheduler.schedule(4)
    assert (step.num_steps, step.chunks) == (4, [])
    scheduler.submit(step)
    for _ in range(4):
        collect(scheduler, step)
    add(scheduler, make_sequence(2, 2, order=-1))  # which goes first, and for which there is room
    assert scheduler.could_join
    assert run_step(scheduler) == [(0, 1), (2, 2)]
    scheduler.finish(scheduler.running[1])
    assert run_step(scheduler) == [(0, 1)]  # its last token: all blocks are free again
    assert scheduler.could_join
    assert run_step(scheduler) == [(1, 16)]  # as many as a step takes


def test_as_many_steps_go_together_as_there_are_blocks_for():
    scheduler = make_scheduler(num_blocks=6, block_size=4)  # 5 blocks of 4 tokens
    add(scheduler, make_sequence(0, 4, max_tokens=16), make_sequence(1, 4, max_tokens=16))
    assert run_step(scheduler) == [(0, 4), (1, 4)]
    step = scheduler.schedule(16)  # of three free blocks each gets one: four tokens more
    assert step.num_steps == 4 and len(step.decode_slots) == 2
    assert scheduler.num_preemptions == 0


def test_a_prompt_that_was_refused_joins_once_its_beginning_is_known():
    scheduler = make_scheduler(num_blocks=8, block_size=4, tokens=6)
    add(scheduler, make_sequence(0, 12, token=1), make_sequence(1, 18, token=1))
    assert run_step(scheduler) == [(0, 6)]
    assert run_step(scheduler) == [(0, 6)]  # four are free, and 1 needs five, but for a prefix
    assert run_step(scheduler) == [(0, 1), (1, 5)]


def test_rows_of_prompt_logprobs_are_limited():
    scheduler = make_scheduler(tokens=16, prompt_logits=8)
    add(scheduler, make_sequence(0, 20, params=WITH_PROMPT_LOGPROBS), make_sequence(1, 5))
    assert run_step(scheduler) == [(0, 8), (1, 5)]
    assert run_step(scheduler) == [(1, 1), (0, 8)]
    assert run_step(scheduler) == [(1, 1), (0, 4)]


def test_only_the_first_sample_runs_for_prompt_logprobs():
    scheduler = make_scheduler(tokens=16, prompt_logits=8)
    samples = [make_sequence(i, 10, params=WITH_PROMPT_LOGPROBS, sample_index=i) for i in range(2)]
    add(scheduler, *samples)
    assert run_step(scheduler) == [(0, 8), (1, 8)]


def test_starting_over_keeps_the_order():
    scheduler = make_scheduler(seqs=3)
    add(scheduler, *(make_sequence(i, 2) for i in range(5)))
    run_step(scheduler)
    start_over(scheduler, [*scheduler.waiting, *scheduler.running])
    assert [sequence.seq_id for sequence in scheduler.waiting] == [0, 1, 2, 3, 4]
    assert scheduler.blocks.num_free == scheduler.blocks.num_usable
    assert run_step(scheduler) == [(0, 3), (1, 3), (2, 3)]


def test_a_token_budget_below_the_slots_is_refused():
    with pytest.raises(
        ValueError, match="max_num_batched_tokens is 3, expected at least max_num_seqs, 4"
    ):
        make_scheduler(tokens=3)


def start_over(scheduler, sequences):
    for sequence in sequences:
        if sequence.slot >= 0:
            sequence.token_ids = scheduler.slots.known_tokens(sequence.slot).copy()
    scheduler.start_over(sequences)


class AnyTraffic(RuleBasedStateMachine):
    """Random arrivals, ends, aborts and interrupts, with steps in flight, in too small a cache."""

    @initialize(
        seqs=st.integers(1, 5),
        spare_tokens=st.integers(0, 12),
        prompt_logits=st.integers(1, 6),
        block_size=st.integers(1, 4),
        num_blocks=st.integers(4, 14),
        depth=st.integers(0, 3),
        num_steps=st.sampled_from([1, 1, 2, 5]),
    )
    def start(self, seqs, spare_tokens, prompt_logits, block_size, num_blocks, depth, num_steps):
        sizes = {"num_slots": seqs, "max_blocks": num_blocks}
        self.blocks = BlockManager(num_blocks, block_size, **sizes)
        self.max_num_seqs, self.max_tokens = seqs, seqs + spare_tokens
        self.max_prompt_logits = prompt_logits
        self.depth, self.num_steps = depth, num_steps
        self.scheduler = Scheduler(
            self.blocks,
            max_num_seqs=seqs,
            max_model_len=num_blocks * block_size,
            max_num_batched_tokens=self.max_tokens,
            max_prompt_logits=prompt_logits,
        )
        self.alive = []
        self.in_flight = deque()
        self.next_id = 0
        self.held = {}  # of each block, by offset: the sequence up to there, once all steps ran

    @rule(data=st.data(), logprobs=st.booleans())
    def arrive(self, data, logprobs):
        longest = self.blocks.num_usable * self.blocks.block_size
        prompt_len = data.draw(st.integers(1, longest - 1))
        max_tokens = data.draw(st.integers(1, longest - prompt_len))
        params = WITH_PROMPT_LOGPROBS if logprobs else PLAIN
        sequence = make_sequence(
            self.next_id, prompt_len, params=params, max_tokens=max_tokens, token=self.next_id % 2
        )
        self.next_id += 1
        self.alive.append(sequence)
        self.scheduler.add(sequence)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data):
        sequence = data.draw(st.sampled_from(self.alive))
        slot, steps = sequence.slot, len(self.in_flight)
        busy = slot >= 0 and self.scheduler.slots.last_step[slot] > self.scheduler._collected
        self.scheduler.finish(sequence)
        self.alive.remove(sequence)
        assert (sequence.slot >= 0) == busy and (steps > 0 or not busy)

    @rule()
    def interrupt(self):
        self.in_flight.clear()
        start_over(self.scheduler, self.alive[::-1])
        assert self.blocks.num_free == self.blocks.num_usable

    @rule(count=st.integers(1, 5))
    def steps(self, count):
        for _ in range(count):
            self.one_step()

    @rule()
    def submit(self):
        """A step, unless too many are in flight, or one whose results must be read first."""
        wants = any(c.sequence.wants_prompt_logprobs for s in self.in_flight for c in s.chunks)
        if len(self.in_flight) > self.depth or wants:
            return
        slots = self.scheduler.slots
        decoding = np.flatnonzero(slots.decodes & (slots.num_computed + 1 < slots.end_position))
        before = {s: s.slot for s in self.alive}
        preemptions = self.scheduler.num_preemptions
        step = self.scheduler.schedule(self.num_steps)
        preempted = self.scheduler.num_preemptions > preemptions
        if step is None:
            assert self.in_flight or not self.alive
            return
        assert not (preempted and self.in_flight)  # not all of its tokens would be known
        rows = step.decode_slots.tolist()
        # Those that decode wait neither for prompts nor for those that came after them.
        assert set(rows) <= set(decoding.tolist()) and (preempted or len(rows) == len(decoding))
        self.check_limits(step, rows)
        for chunk in step.chunks:
            slot = chunk.sequence.slot
            assert chunk.start == slots.num_computed[slot]
            stop = chunk.start + chunk.num_tokens
            assert stop <= slots.num_tokens[slot] and stop <= self.capacity(slot)
            assert chunk.samples == (stop == slots.num_tokens[slot])
            # A slot must be written exactly when the sequence did not hold it before, or lost it.
            assert chunk.is_new == (before[chunk.sequence] == -1) or preempted
        self.take_new_blocks(step)
        for chunk in step.chunks:
            self.write(chunk.sequence.slot, chunk.start, chunk.start + chunk.num_tokens)
        for slot in rows:
            start = int(slots.num_computed[slot])
            last = int(min(start + step.num_steps, slots.end_position[slot] - 1))
            assert last <= self.capacity(slot)
            self.write(slot, start, last)
        self.nobody_waits_in_vain(step)
        self.scheduler.submit(step)
        self.in_flight.extend([step] * step.num_steps)

    def take_new_blocks(self, step):
        """What they held is forgotten, but for copies."""
        for chunk in step.chunks:
            if chunk.is_new:
                table = self.blocks.block_table(chunk.sequence.slot)
                for block in table[chunk.start // self.blocks.block_size :]:
                    self.held[block] = {}
        targets = [target for _, target in step.copies]
        assert len(set(targets)) == len(targets)
        for source, target in step.copies:
            assert source not in targets
            self.held[target] = dict(self.held[source])

    def write(self, slot, start, stop):
        """Its blocks hold what it counts as computed; those that it writes are its own."""
        sequence, size = self.scheduler.slots.sequences[slot], self.blocks.block_size
        table, prompt = self.blocks.block_table(slot), sequence.prompt_token_ids
        for position in range(stop):  # all sampled tokens are the same
            known = min(position + 1, len(prompt))
            up_to_here = prompt[0], known, position + 1 - known
            block, offset = table[position // size], position % size
            if position < start:
                assert self.held[block][offset] == up_to_here
                continue
            others = [s for s in range(self.max_num_seqs) if s != slot]
            assert not any(block in self.blocks.block_table(s) for s in others)
            self.held.setdefault(block, {})[offset] = up_to_here

    def nobody_waits_in_vain(self, step):
        """Who is first of those that wait would have been taken, had there been room."""
        scheduler = self.scheduler
        left = self.max_tokens - len(step.decode_slots) - sum(c.num_tokens for c in step.chunks)
        waiting = [s for s in scheduler.waiting if not s.waits_for_leader]
        if waiting and scheduler._free_slots and left and not waiting[0].wants_prompt_logprobs:
            needed = self.blocks.blocks_for(len(waiting[0].token_ids))
            assert needed > self.blocks.num_free or step.num_steps > 1

    def check_limits(self, step, rows):
        taken = [*rows, *(chunk.sequence.slot for chunk in step.chunks)]
        assert len(set(taken)) == len(taken) <= self.max_num_seqs
        assert not self.scheduler.slots.ended[taken].any()
        assert len(rows) + sum(chunk.num_tokens for chunk in step.chunks) <= self.max_tokens
        wanting = [c.num_tokens for c in step.chunks if c.sequence.wants_prompt_logprobs]
        assert sum(wanting) <= self.max_prompt_logits
        assert 1 <= step.num_steps <= self.num_steps
        assert step.num_steps == 1 or not step.chunks

    def capacity(self, slot):
        return len(self.blocks.block_table(slot)) * self.blocks.block_size

    @precondition(lambda self: self.in_flight)
    @rule()
    def collect(self):
        collect(self.scheduler, self.in_flight.popleft())
        self.alive = [s for s in self.alive if not s.ended]

    def one_step(self):
        self.submit()
        if self.in_flight:
            self.collect()

    @invariant()
    def blocks_and_slots_are_each_in_one_place(self):
        if not hasattr(self, "scheduler"):
            return
        self.blocks.check_invariant()
        running, waiting = self.scheduler.running, list(self.scheduler.waiting)
        slots = [sequence.slot for sequence in running]
        assert len(set(slots)) == len(slots)
        assert all(0 <= slot < self.max_num_seqs for slot in slots)
        assert all(s.slot == -1 for s in waiting)
        empty = [slot for slot, s in enumerate(self.scheduler.slots.sequences) if s is None]
        assert sorted(self.scheduler._free_slots) == empty
        assert not self.blocks.counts[empty].any()
        assert self.scheduler.num_in_flight == len(self.in_flight)
        # First come, first served: whoever came earlier was admitted earlier.
        ids = [sequence.seq_id for sequence in [*running, *waiting]]
        assert ids == sorted(s.seq_id for s in self.alive)

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        # The sequence at the head computes one of its tokens at every step, whatever the others do.
        limit = sum(len(s.prompt_token_ids) + s.max_tokens for s in self.alive)
        for _ in range((limit + len(self.in_flight)) * (self.depth + self.num_steps + 1)):
            self.one_step()
            self.blocks_and_slots_are_each_in_one_place()
            if not self.alive and not self.in_flight:
                break
        assert not self.alive and not self.in_flight
        assert self.blocks.num_free == self.blocks.num_usable


AnyTraffic.TestCase.settings = settings(max_examples=150, stateful_step_count=25)
TestAnyTraffic = AnyTraffic.TestCase
