"""Steps of the running sequences: scheduled, submitted to the runner, and collected.

What moves at every step is done for all rows at once, in arrays by slot; only sequences that begin,
end, or run a chunk of their prompt are met one by one. Knows no requests and no text: what was
sampled is handed on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from cugraphs.kernel import Array
from cugraphs.model_runner import ModelRunner, Ticket
from cugraphs.scheduler import ScheduledChunk, ScheduledStep, Scheduler
from cugraphs.sequence import Sequence as TokenSequence
from cugraphs.statistics import EngineCounters
from cugraphs.step_state import Chunk
from cugraphs.text_worker import Begun, PromptRows, StepTokens
from cugraphs.token_ring import DEAD


class _StepInFlight(NamedTuple):
    """A step that is submitted and not collected.

    Args:
        ticket: the runner's.
        slots: int64 [n]; of the sequences that a token is sampled for.
        positions: int64 [n]; where those tokens will stand.
        wants_logprobs: whether any row reports log-probabilities.
        rows: int [n]; of each in the step's outputs; None where row i is the i-th.
        chunks: of prompts.
        prompts: rows of the outputs that tell log-probabilities of prompt tokens.
    """

    ticket: Ticket
    slots: Array
    positions: Array
    wants_logprobs: bool
    rows: Array | None = None
    chunks: Sequence[ScheduledChunk] = ()
    prompts: Sequence[PromptRows] = ()


class StepPipeline:
    """Drives one runner as one scheduler says."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        counters: EngineCounters,
        *,
        eos_token_ids: Sequence[int],
        give: Callable[[StepTokens], None],
        num_steps: int = 1,
        steps_ahead: int = 0,
    ) -> None:
        """Start with nothing in flight.

        Args:
            scheduler: says what runs.
            runner: runs it.
            counters: of tokens, steps and time.
            eos_token_ids: that end every sequence that does not ignore them.
            give: takes what each step has sampled.
            num_steps: decode steps that are submitted together.
            steps_ahead: steps that may be in flight when others are submitted; 0 waits for all
                tokens first.
        """
        self.scheduler = scheduler
        self._runner = runner
        self._counters = counters
        self._eos_token_ids = list(eos_token_ids)
        self._give = give
        self._num_steps, self._steps_ahead = num_steps, steps_ahead
        self._in_flight: deque[_StepInFlight] = deque()
        self._begun: list[Begun] = []  # sequences that took a slot since the last tokens

    def step(self) -> None:
        """Submit what there is to do, and collect the oldest step."""
        while True:
            while self._may_submit() and self._submit():
                pass
            if not self._in_flight or self._collect():
                return

    def make_room(self) -> None:
        """Somebody waits: let all loops of steps end soon."""
        if self._in_flight:
            self._runner.stop_loops()

    def drain(self) -> None:
        """Collect all that is in flight."""
        self.make_room()
        while self._in_flight:
            self._collect()

    def start_over(self, sequences: Sequence[TokenSequence]) -> None:
        """Undo what is in flight: these wait, to be computed anew, as of the scheduler."""
        try:
            self._runner.abandon()
        finally:
            self._in_flight.clear()
            self._begun = []
            self.scheduler.start_over(sequences)

    def _may_submit(self) -> bool:
        """Whether another step may follow those in flight before they are collected.

        Not while log-probabilities are to be read, which it would overwrite. Behind a loop only
        decode rows may follow, which find in the state where the loop has left their sequences.
        """
        if not self._in_flight:
            return True
        last = self._in_flight[-1]
        if last.wants_logprobs or (last.ticket.loop is not None and self.scheduler.could_join):
            return False
        return len(self._in_flight) <= self._steps_ahead

    def _submit(self) -> bool:
        """Schedule steps and queue them; whether there were any."""
        scheduled = self.scheduler.schedule(self._most_steps())
        now_s = self._counters.end_phase("schedule")
        if scheduled is None:
            return False
        for item in scheduled.chunks:
            if item.is_new:
                self._begin(item, now_s)
        if len(scheduled.grown[0]):
            self._runner.mirror.set_blocks(*scheduled.grown)
        self._runner.copy_blocks(scheduled.copies)
        chunks = [self._chunk(item) for item in scheduled.chunks]
        wants_logprobs = self._wants_logprobs(chunks)
        tickets = self._runner.submit(
            scheduled.decode_slots,
            scheduled.positions,
            chunks,
            num_steps=scheduled.num_steps,
            wants_logprobs=wants_logprobs,
        )
        if chunks:
            self._in_flight.append(self._mixed(scheduled, chunks, tickets[0], wants_logprobs))
        else:
            rows, first = scheduled.decode_slots, scheduled.positions
            for i, ticket in enumerate(tickets):
                positions = first + i if i else first
                self._in_flight.append(_StepInFlight(ticket, rows, positions, wants_logprobs))
        self.scheduler.submit(scheduled)
        self._counters.end_phase("submit")
        return True

    def _most_steps(self) -> int:
        """How many steps may be submitted together."""
        scheduler = self.scheduler
        if scheduler.slots.num_with_logprobs:  # which are read after each step
            return 1
        if len(scheduler.running) > self._runner.decode.ladder.top:
            return 1
        return self._num_steps

    def _begin(self, item: ScheduledChunk, now_s: float) -> None:
        """Tell the device's state, and whoever takes the tokens, of a sequence in a new slot."""
        sequence, slot = item.sequence, item.sequence.slot
        params, prompt = sequence.params, sequence.prompt_token_ids
        eos = [] if params.ignore_eos else self._eos_token_ids
        self._runner.write_slot(
            slot,
            params,
            seed=sequence.seed,
            sample_index=sequence.sample_index,
            stop_token_ids=[*eos, *(params.stop_token_ids or ())],
            prompt_token_ids=prompt,
            output_token_ids=self.scheduler.slots.known_tokens(slot)[len(prompt) :],
            end_position=sequence.end_position,
        )
        self._runner.mirror.write_table(slot, self.scheduler.blocks.block_table(slot))
        self._begun.append(Begun(slot, sequence, now_s, item.start))

    def _chunk(self, item: ScheduledChunk) -> Chunk:
        """The tokens of a scheduled chunk, and what is wanted of its rows."""
        sequence, params = item.sequence, item.sequence.params
        stop = item.start + item.num_tokens
        targets: Sequence[int] = ()
        if sequence.wants_prompt_logprobs:
            targets = sequence.prompt_token_ids[item.start + 1 : stop + 1]
        return Chunk(
            token_ids=self.scheduler.slots.token_ids[sequence.slot, item.start : stop],
            start=item.start,
            slot=sequence.slot,
            samples=item.samples,
            num_logprobs=-1 if params.logprobs is None else params.logprobs,
            prompt_targets=targets,
            num_prompt_logprobs=-1 if params.prompt_logprobs is None else params.prompt_logprobs,
        )

    def _wants_logprobs(self, chunks: Sequence[Chunk]) -> bool:
        """Whether any row of a step is to report log-probabilities."""
        return self.scheduler.slots.num_with_logprobs > 0 or any(c.prompt_targets for c in chunks)

    def _mixed(
        self,
        scheduled: ScheduledStep,
        chunks: Sequence[Chunk],
        ticket: Ticket,
        wants_logprobs: bool,
    ) -> _StepInFlight:
        """What is to be known of a step with chunks when it is collected."""
        next_row = num_rows = len(scheduled.decode_slots)
        slots, positions, rows, prompts = [], [], [], []
        for item, chunk in zip(scheduled.chunks, chunks, strict=True):
            if chunk.prompt_targets:
                known = chunk.prompt_targets
                prompts.append(PromptRows(item.sequence, chunk.start + 1, next_row, known))
            next_row += chunk.num_logits
            if chunk.samples:
                slots.append(chunk.slot)
                positions.append(chunk.start + len(chunk.token_ids))
                rows.append(next_row - 1)
        return _StepInFlight(
            ticket,
            _with(scheduled.decode_slots, slots),
            _with(scheduled.positions, positions),
            wants_logprobs,
            _with(np.arange(num_rows), rows) if prompts else None,
            scheduled.chunks,
            prompts,
        )

    def _collect(self) -> bool:
        """Wait for the oldest step, hand on its tokens, and drop the sequences that end.

        Returns:
            Whether the step was made.
        """
        step = self._in_flight[0]
        outputs = self._runner.collect(step.ticket)
        now_s = self._counters.end_phase("wait")
        if outputs is None:
            self._drop_rest_of_loop(step)
            return False
        slots, positions, rows = step.slots, step.positions, step.rows
        token_ids = outputs["token_ids"] if rows is None else outputs["token_ids"][rows]
        running = self.scheduler.slots
        if rows is None and step.wants_logprobs:
            rows = np.arange(len(slots))
        if self.scheduler.has_leaving:
            wanted = (~running.ended.take(slots)).nonzero()[0]
            slots, positions, token_ids = slots[wanted], positions[wanted], token_ids[wanted]
            rows = None if rows is None else rows[wanted]
        is_last = self._runner.mirror.ends(slots, token_ids, positions)
        if len(token_ids) and token_ids[token_ids.argmin()] < 0:
            is_last |= self._fail(slots, token_ids)
        # An interrupt from here on is made good: who has taken a token does not take it again.
        self._give(
            StepTokens(
                slots=slots,
                token_ids=token_ids,
                positions=positions,
                is_last=is_last,
                time_s=now_s,
                begun=self._begun,
                rows=rows,
                logprobs=outputs if step.wants_logprobs else None,
                prompts=step.prompts,
            )
        )
        self._begun = []
        running.token_ids[slots, positions] = token_ids
        running.num_tokens[slots] = positions + 1
        running.num_written[slots] = positions
        for chunk in step.chunks:
            self._count_chunk(chunk)
        self._in_flight.popleft()
        self.scheduler.collect()
        if np.count_nonzero(is_last):
            for slot in slots[is_last].tolist():
                self.scheduler.finish(self._sequence(slot))
            if self.scheduler.waiting:
                self.make_room()
        self._counters.steps += 1
        self._counters.generated_tokens += len(slots)
        self._counters.end_phase("collect")
        return True

    def _drop_rest_of_loop(self, step: _StepInFlight) -> None:
        """A loop ended before ``step``: its sequences stand where that would have found them.

        Steps that were submitted behind it, of the same sequences, have found them there: their
        tokens stand so many places earlier than was thought.
        """
        loop = step.ticket.loop
        dropped = [other for other in self._in_flight if other.ticket.loop == loop]
        behind = []
        for other in self._in_flight:
            if other.ticket.loop != loop:
                earlier = len(dropped) * np.isin(other.slots, step.slots)
                behind.append(other._replace(positions=other.positions - earlier))
        self._in_flight = deque(behind)
        self._stand_at(step.slots, step.positions - 1)
        for other in behind:
            self._stand_at(other.slots, other.positions)
        self.scheduler.collect(len(dropped))

    def _stand_at(self, slots: Array, num_computed: Array) -> None:
        """So many tokens of each sequence that still runs are computed, but none at its limit."""
        running = self.scheduler.slots
        goes_on = ~running.ended.take(slots)
        slots = slots[goes_on]
        limits = running.end_position.take(slots) - 1
        running.num_computed[slots] = np.minimum(num_computed[goes_on], limits)

    def _count_chunk(self, chunk: ScheduledChunk) -> None:
        """A chunk is in the cache: make its full blocks known as prefixes."""
        sequence, stop = chunk.sequence, chunk.start + chunk.num_tokens
        slots = self.scheduler.slots
        slots.num_written[sequence.slot] = stop
        if not sequence.failed:
            self.scheduler.blocks.register(sequence.slot, slots.token_ids[sequence.slot], stop)
        if sequence.wants_prompt_logprobs:
            known = min(stop, len(sequence.prompt_token_ids) - 1)
            sequence.num_prompt_logprobs = max(sequence.num_prompt_logprobs, known)
        self._counters.prompt_tokens += chunk.num_tokens

    def _fail(self, slots: Array, token_ids: Array) -> Array:
        """Mark the sequences whose logits were no numbers, which the device has ended: bool [n]."""
        assert token_ids.min() > DEAD, "the row of a sequence that runs was dead"
        failed: Array = token_ids < 0
        for slot in slots[failed].tolist():
            self._sequence(slot).failed = True
        return failed

    def _sequence(self, slot: int) -> TokenSequence:
        sequence = self.scheduler.slots.sequences[slot]
        assert sequence is not None, f"slot {slot} is empty"
        return sequence


def _with(array: Array, values: Sequence[int]) -> Array:
    """The array with these behind it: int64 [n + values]."""
    longer = np.empty(len(array) + len(values), np.int64)
    longer[: len(array)] = array
    longer[len(array) :] = values
    return longer
