"""The scheduler's traffic with several samples of one prompt, and with priorities."""

import test_scheduler as plain
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule


class SamplesAndPriorities(plain.AnyTraffic):
    """Samples wait for the first of them, whose blocks they share; some requests overtake."""

    @rule(data=st.data(), count=st.integers(2, 4), order=st.integers(-5, 5))
    def arrive_together(self, data, count, order):
        longest = self.blocks.num_usable * self.blocks.block_size
        prompt_len = data.draw(st.integers(1, longest - 1))
        max_tokens = data.draw(st.integers(1, longest - prompt_len))
        leader, token = None, self.next_id % 2
        for index in range(count):
            sequence = plain.make_sequence(
                self.next_id,
                prompt_len,
                max_tokens=max_tokens,
                sample_index=index,
                token=token,
                order=order,
            )
            sequence.leader = leader
            leader = leader or sequence
            sequence.holders = leader.holders
            self.next_id += 1
            self.alive.append(sequence)
            self.scheduler.add(sequence)

    @invariant()
    def blocks_and_slots_are_each_in_one_place(self):
        if not hasattr(self, "scheduler"):
            return
        self.blocks.check_invariant()
        running, waiting = self.scheduler.running, self.scheduler.waiting
        assert {*running, *waiting} == set(self.alive)
        assert len(running) + len(waiting) == len(self.alive)
        slots = [sequence.slot for sequence in running]
        assert len(set(slots)) == len(slots) <= self.max_num_seqs
        assert all(sequence.slot == -1 for sequence in waiting)
        orders = [(sequence.order, sequence.seq_id) for sequence in waiting]
        assert orders == sorted(orders)
        # Whoever waits for its leader is right to: that one computes its prompt, or is yet to.
        for sequence in waiting:
            if sequence.waits_for_leader:
                assert sequence.leader in self.alive
        computed = self.scheduler.slots.num_computed
        for sequence in self.alive:
            holders = [s for s in running if s.holders is sequence.holders]
            holders = [s for s in holders if computed[s.slot] >= len(s.prompt_token_ids)]
            assert set(sequence.holders) == set(holders)


SamplesAndPriorities.TestCase.settings = settings(
    max_examples=120, stateful_step_count=20, deadline=None
)
TestSamplesAndPriorities = SamplesAndPriorities.TestCase
