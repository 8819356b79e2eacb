"""Decode steps launched together, and their tokens from the ring: what CPU and GPU tests share.

Every check compares launches of several steps, or a loop, with the same steps launched one by one.
"""

from functools import partial

import numpy as np
from model_runs import CheckpointRun
from test_goldens import GOLDENS

from cugraphs.ladder import Ladder
from cugraphs.sampling_params import SamplingParams
from cugraphs.step_state import Chunk, fill_launch
from cugraphs.token_ring import DEAD

PROMPTS = [[5, 9, 12], [7], [20, 21, 22, 23, 24], [40, 3], [11, 11, 11], [30, 31, 32, 33]]
MOST = 12  # tokens that the longest answer has after its first one
LIMITS = [MOST, 3, 7, 1, MOST, 5]  # of each prompt
SLOTS = [4, 0, 2, 5, 1, 3]
ROWS = 6
SAMPLINGS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=0.7, presence_penalty=0.5),
    SamplingParams(temperature=1.0, top_k=20, frequency_penalty=0.3),
    SamplingParams(temperature=0),
]


class LoopRun(CheckpointRun):
    """Sequences whose steps are launched together."""

    def __init__(self, device, mode, *, loops=True, **options):
        # One rung: every launch runs the same kernels, so results are equal bit for bit.
        ladder = Ladder(8, [8])
        options = {"max_num_seqs": 8, "ladder": ladder, **options}
        super().__init__(GOLDENS / "gqa", device=device, mode=mode, **options)
        if loops:
            self.runner.decode.add_loops(self.runner.plan.loop_control)

    def begin(self, prompts=PROMPTS, slots=SLOTS, limits=LIMITS, stops=None):
        """Write and prefill sequences; the first token of each."""
        chunks = []
        for index, (prompt, slot, limit) in enumerate(zip(prompts, slots, limits, strict=True)):
            self.runner.write_slot(
                slot,
                SAMPLINGS[index],
                prompt_token_ids=prompt,
                output_token_ids=(),
                seed=1000 + index,
                sample_index=0,
                stop_token_ids=(stops or {}).get(slot, ()),
                end_position=len(prompt) + 1 + limit,
            )
            chunks.append(Chunk(prompt, 0, self.block_tables[slot], slot))
        return self.runner.run_mixed(chunks)["token_ids"].tolist()

    def launch(self, slots=SLOTS, *, num_steps=1, loop=False, until=None):
        """Queue steps; the number of the first."""
        runner = self.runner
        inputs = runner.decode.inputs(len(slots))
        runner.mirror.take(inputs["changes"])
        first = runner.ring.begin(num_steps)
        fill_launch(inputs, first, num_steps)
        inputs["row_ids"][:] = -1
        inputs["row_ids"][: len(slots)] = slots
        until = until or (partial(runner.ring.has_ended, first) if loop else None)
        runner.decode.run(len(slots), num_steps=num_steps, until=until)
        return first

    def tokens(self, first, num_steps, rows=ROWS, loop=None):
        """int32 [steps, rows] from the ring; of a loop those that it made."""
        found = [self.runner.ring.wait(first + i, rows, loop=loop) for i in range(num_steps)]
        made = [tokens for tokens in found if tokens is not None]
        assert found[len(made) :] == [None] * (num_steps - len(made))
        return np.array(made, np.int32).reshape(-1, rows)

    def one_by_one(self, count=MOST, slots=SLOTS):
        """int32 [count, rows]: each step launched once the tokens of the one before are there."""
        return np.concatenate(
            [self.tokens(self.launch(slots), 1, rows=len(slots)) for _ in range(count)]
        )

    def state(self):
        """The bytes of all that a step leaves behind for the next."""
        device, state = self.runner.device, self.runner.state
        device.wait()
        names = ("last_token", "num_computed", "done", "token_counts")
        names += tuple(name for name in state if "cache" in name)
        return {name: device.read(state[name]).tobytes() for name in names}


def live_until(limits):
    """bool [steps, rows]: which rows a step samples for."""
    return np.arange(MOST)[:, None] < np.array(limits)[None]


def check_several_steps_are_single_steps(device, mode):
    single = LoopRun(device, mode)
    begun = single.begin()
    expected = single.one_by_one()
    np.testing.assert_array_equal(expected != DEAD, live_until(LIMITS))
    for name, sizes, loop in (
        ("three launches of 4 steps", [4, 4, 4], False),
        ("one of 12", [12], False),
        ("a loop", [12], True),
        ("a loop with more steps than tokens", [40], True),
        ("loops of 5 steps", [5, 5, 2], True),
    ):
        run = LoopRun(device, mode)
        assert run.begin() == begun
        firsts = [run.launch(num_steps=size, loop=loop) for size in sizes]  # all are under way
        parts = [
            run.tokens(first, size, loop=first if loop else None)
            for first, size in zip(firsts, sizes, strict=True)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), expected, err_msg=name)
        assert run.state() == single.state(), name
        if loop:
            made = [run.runner.ring.steps_made(first) for first in firsts]
            assert made == [min(size, MOST) for size in sizes], name


def check_a_stop_token_ends_its_row_within_a_launch(device, mode):
    free = LoopRun(device, mode)
    free.begin()
    row = 0
    said = free.one_by_one()[:, row].tolist()
    stop = next(t for t in said[2:] if said.index(t) >= 2)  # it is not said before
    at = said.index(stop)
    run = LoopRun(device, mode)
    run.begin(stops={SLOTS[row]: [stop]})
    tokens = run.tokens(run.launch(num_steps=MOST), MOST)[:, row].tolist()
    assert tokens == said[: at + 1] + [DEAD] * (MOST - at - 1)


def check_a_stopped_loop_ends(device, mode):
    run = LoopRun(device, mode)
    run.begin()
    ring = run.runner.ring
    ring.stop(ring.next_step)  # before it is launched
    first = run.launch(num_steps=MOST, loop=True)
    tokens = run.tokens(first, MOST, loop=first)
    assert len(tokens) == 0 and ring.steps_made(first) == 0
    after = run.launch(num_steps=MOST, loop=True)  # a later one does not hear it
    rest = run.tokens(after, MOST, loop=after)
    single = LoopRun(device, mode)
    single.begin()
    expected = single.one_by_one()
    np.testing.assert_array_equal(np.concatenate([tokens, rest]), expected)


def check_numbers_wrap(device, mode):
    run, other = (LoopRun(device, mode) for _ in range(2))
    run.begin()
    other.begin()
    ring = run.runner.ring
    device.wait()
    ring._tokens[:] = 12345 << 32  # of no step here
    ring.next_step = 2**31 - 5
    parts = [run.tokens(run.launch(num_steps=4), 4)]  # across the largest int32
    ring.next_step = 2**32 - 6
    first = run.launch(num_steps=4)
    parts.append(run.tokens(first, 4))
    first = run.launch(num_steps=9, loop=True)  # its numbers go through 0
    assert first < 2**32 < first + 4
    parts.append(run.tokens(first, 9, loop=first))
    np.testing.assert_array_equal(np.concatenate(parts), other.one_by_one())


def check_a_slot_is_used_again_at_once(device, mode):
    fresh, run = (LoopRun(device, mode) for _ in range(2))
    fresh.begin(PROMPTS[:1], [6], [MOST])
    expected = fresh.one_by_one(slots=[6])[:, 0].tolist()
    run.begin()
    first = run.launch(num_steps=4)  # slot 5's sequence ends after one token
    run.runner.mirror.fields["done"][5] = 1  # as the device's is by then
    run.begin(PROMPTS[:1], [5], [MOST])  # another takes the slot while those steps are under way
    slots = [5, *SLOTS[:3]]
    second = run.launch(slots, num_steps=8)
    others = run.tokens(first, 4)
    found = run.tokens(second, 8, rows=4)
    assert found[:, 0].tolist() == expected[:8]
    single = LoopRun(device, mode)
    single.begin()
    np.testing.assert_array_equal(
        np.concatenate([others[:, :3], found[:, 1:]]), single.one_by_one()[:, :3]
    )


def check_changes_are_applied_once(device, mode):
    """A sequence that is taken back by three tokens says the same three again, and goes on."""
    run, other = (LoopRun(device, mode) for _ in range(2))
    slot, row = SLOTS[0], 0
    for each in (run, other):
        each.begin()
    said = other.one_by_one()[:, row].tolist()
    run.one_by_one(6)
    mirror = run.runner.mirror
    at = len(PROMPTS[row]) + 3
    assert mirror.num_changes == 0
    # The mirror stands where the prompt ended; these are sent as words that differ from it.
    mirror.set("num_computed", slot, at)
    mirror.set("last_token", slot, said[2])
    found = run.tokens(run.launch([slot], num_steps=8), 8, rows=1)[:, 0].tolist()
    assert found == said[3:11]


def check_a_row_without_a_block_waits(device, mode):
    run, other = (LoopRun(device, mode) for _ in range(2))
    run.begin()
    other.begin()
    expected = other.one_by_one()
    slot, row = SLOTS[4], 4  # three tokens of prompt, then twelve: blocks of 4 tokens
    mirror = run.runner.mirror
    whole = mirror.fields["block_tables"][slot].copy()
    mirror.set("block_tables", slot, np.where(np.arange(len(whole)) < 2, whole, 0))
    first = run.launch(num_steps=9, loop=True)
    short = run.tokens(first, 9, loop=first)
    np.testing.assert_array_equal(short[:, :4], expected[:9, :4])
    alive = 2 * 4 - 3  # tokens for which there was a block
    assert short[:, row].tolist() == [*expected[:alive, row], *[DEAD] * (9 - alive)]
    mirror.set("block_tables", slot, whole)
    rest = run.tokens(run.launch([slot], num_steps=7), 7, rows=1)
    assert rest[:, 0].tolist() == expected[alive:, row].tolist()


def check_a_loop_queued_behind_another_makes_no_dead_step(device, mode):
    run, other = (LoopRun(device, mode) for _ in range(2))
    run.begin()
    other.begin()
    firsts = [run.launch(num_steps=MOST, loop=True) for _ in range(2)]
    parts = [run.tokens(first, MOST, loop=first) for first in firsts]
    assert [run.runner.ring.steps_made(first) for first in firsts] == [MOST, 0]
    np.testing.assert_array_equal(np.concatenate(parts), other.one_by_one())


def check_changes_of_a_loop_without_steps_are_applied(device, mode):
    run, other = (LoopRun(device, mode) for _ in range(2))
    slot, row = SLOTS[0], 0
    for each in (run, other):
        each.begin()
    said = other.one_by_one()[:, row].tolist()
    run.one_by_one(6)
    run.runner.mirror.set("num_computed", slot, len(PROMPTS[row]) + 3)
    run.runner.mirror.set("last_token", slot, said[2])
    ring = run.runner.ring
    ring.stop(ring.next_step)
    first = run.launch([slot], num_steps=8, loop=True)
    assert run.runner.mirror.num_changes == 0
    assert len(run.tokens(first, 8, rows=1, loop=first)) == 0
    found = run.tokens(run.launch([slot], num_steps=8), 8, rows=1)[:, 0].tolist()
    assert found == said[3:11]


CHECKS = (
    check_a_loop_queued_behind_another_makes_no_dead_step,
    check_changes_of_a_loop_without_steps_are_applied,
    check_several_steps_are_single_steps,
    check_a_stop_token_ends_its_row_within_a_launch,
    check_a_stopped_loop_ends,
    check_numbers_wrap,
    check_a_slot_is_used_again_at_once,
    check_changes_are_applied_once,
    check_a_row_without_a_block_waits,
)
