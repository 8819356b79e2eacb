"""Every request ends, in its turn, within the limits of a step, whatever comes and goes."""

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
    return Scheduler(
        BlockManager(num_blocks, block_size),
        max_num_seqs=seqs,
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
    """What an engine does with a step, without a model."""
    chunks = scheduler.schedule()
    for chunk in chunks:
        sequence = chunk.sequence
        samples = chunk.samples
        if sequence.wants_prompt_logprobs:
            known = min(
                sequence.num_computed + chunk.num_tokens, len(sequence.prompt_token_ids) - 1
            )
            sequence.num_prompt_logprobs = max(sequence.num_prompt_logprobs, known)
        sequence.num_computed += chunk.num_tokens
        scheduler.blocks.register(sequence.seq_id, sequence.tokens, sequence.num_computed)
        if samples:
            sequence.output_token_ids.append(9)
            if len(sequence.output_token_ids) == sequence.max_tokens:
                sequence.finish("length")
                scheduler.finish(sequence)
    return [(chunk.sequence.seq_id, chunk.num_tokens) for chunk in chunks]


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


def test_preempt_all_keeps_the_order():
    scheduler = make_scheduler(seqs=3)
    add(scheduler, *(make_sequence(i, 2) for i in range(5)))
    run_step(scheduler)
    scheduler.preempt_all()
    assert [sequence.seq_id for sequence in scheduler.waiting] == [0, 1, 2, 3, 4]
    assert scheduler.blocks.num_free == scheduler.blocks.num_usable
    assert run_step(scheduler) == [(0, 3), (1, 3), (2, 3)]


def test_a_token_budget_below_the_slots_is_refused():
    with pytest.raises(
        ValueError, match="max_num_batched_tokens is 3, expected at least max_num_seqs, 4"
    ):
        make_scheduler(tokens=3)


class AnyTraffic(RuleBasedStateMachine):
    """Random arrivals, lengths, ends, aborts and interrupts, in a cache that is too small."""

    @initialize(
        seqs=st.integers(1, 5),
        spare_tokens=st.integers(0, 12),
        prompt_logits=st.integers(1, 6),
        block_size=st.integers(1, 4),
        num_blocks=st.integers(4, 14),
    )
    def start(self, seqs, spare_tokens, prompt_logits, block_size, num_blocks):
        self.blocks = BlockManager(num_blocks, block_size)
        self.max_num_seqs, self.max_tokens = seqs, seqs + spare_tokens
        self.max_prompt_logits = prompt_logits
        self.scheduler = Scheduler(
            self.blocks,
            max_num_seqs=seqs,
            max_num_batched_tokens=self.max_tokens,
            max_prompt_logits=prompt_logits,
        )
        self.alive = []
        self.next_id = 0

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
        self.scheduler.finish(sequence)
        self.alive.remove(sequence)

    @rule()
    def interrupt(self):
        self.scheduler.preempt_all()
        assert self.blocks.num_free == self.blocks.num_usable

    @rule(count=st.integers(1, 5))
    def steps(self, count):
        for _ in range(count):
            self.one_step()

    def one_step(self):
        scheduler = self.scheduler
        before = {s: (s.num_computed, s.slot, s.wants_prompt_logprobs) for s in self.alive}
        decoding = [s for s in scheduler.running if s.num_uncomputed == 1]
        schedule, taken, preemptions = scheduler.schedule, [], scheduler.num_preemptions
        scheduler.schedule = lambda: (
            taken.extend(schedule()) or self.checked(taken, before, decoding, preemptions)
        )
        run_step(scheduler)
        scheduler.schedule = schedule
        self.alive = [s for s in self.alive if s.finish_reason is None]

    def checked(self, chunks, before, decoding, preemptions):
        assert bool(chunks) == bool(self.alive)
        assert len(chunks) <= self.max_num_seqs
        assert len({chunk.sequence.slot for chunk in chunks}) == len(chunks)
        assert sum(chunk.num_tokens for chunk in chunks) <= self.max_tokens
        wanting = [chunk.num_tokens for chunk in chunks if before[chunk.sequence][2]]
        assert sum(wanting) <= self.max_prompt_logits
        of = {chunk.sequence: chunk for chunk in chunks}
        for sequence, chunk in of.items():
            assert 1 <= chunk.num_tokens <= sequence.num_uncomputed
            assert chunk.samples == (chunk.num_tokens == sequence.num_uncomputed)
            capacity = len(self.blocks.block_table(sequence.seq_id)) * self.blocks.block_size
            assert sequence.num_computed + chunk.num_tokens <= capacity
            # A slot must be written exactly when the sequence did not hold it before, or lost it.
            if not chunk.is_new:
                assert sequence.slot == before[sequence][1]
            elif before[sequence][1] != -1:
                assert self.scheduler.num_preemptions > preemptions
        for sequence in decoding:  # those that decode never wait for prompts
            assert sequence in of or sequence.num_computed == 0
            if sequence in of and not of[sequence].is_new:
                assert of[sequence].num_tokens == 1
        return chunks

    @invariant()
    def blocks_and_slots_are_each_in_one_place(self):
        if not hasattr(self, "scheduler"):
            return
        self.blocks.check_invariant()
        running, waiting = self.scheduler.running, list(self.scheduler.waiting)
        slots = [sequence.slot for sequence in running]
        assert len(set(slots)) == len(slots)
        assert all(0 <= slot < self.max_num_seqs for slot in slots)
        assert all(s.slot == -1 and s.num_computed == 0 for s in waiting)
        assert all(not self.blocks.block_table(s.seq_id) for s in waiting)
        # First come, first served: whoever came earlier was admitted earlier.
        ids = [sequence.seq_id for sequence in [*running, *waiting]]
        assert ids == sorted(s.seq_id for s in self.alive)

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        # The sequence at the head computes one of its tokens at every step, whatever the others do.
        limit = sum(len(s.prompt_token_ids) + s.max_tokens for s in self.alive)
        for _ in range(limit):
            self.one_step()
            self.blocks_and_slots_are_each_in_one_place()
        assert not self.alive
        assert self.blocks.num_free == self.blocks.num_usable


AnyTraffic.TestCase.settings = settings(max_examples=150, stateful_step_count=25)
TestAnyTraffic = AnyTraffic.TestCase
