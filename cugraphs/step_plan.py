"""What steps a model is run in: every program, planned, and the one arena for them.

The model arrives as an argument; this module knows neither Llama nor a device.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Protocol

from cugraphs.arena import Arena
from cugraphs.bucketed_step import plan_buckets
from cugraphs.compiler import plan_arena, plan_program
from cugraphs.executable import PlannedProgram
from cugraphs.kv_cache import KVCacheShape
from cugraphs.ladder import Ladder
from cugraphs.program import Program
from cugraphs.sequence_state import SequenceBuffers, SequenceState
from cugraphs.step_state import (
    StepInputs,
    StepOutputs,
    apply_changes,
    begin_decode,
    begin_mixed,
    copy_blocks,
    end_step,
    record_loop_control,
)
from cugraphs.token_ring import RingBuffers, declare_ring
from cugraphs.trace import Tracer

PROMPT_LOGITS_ROWS = 64  # rows of a step that may serve prompt_logprobs, beside the sampled ones


class Model(Protocol):
    """What the runner asks of a model."""

    def step(
        self, t: Tracer, inputs: StepInputs, cache: KVCacheShape, state: SequenceBuffers
    ) -> StepOutputs:
        """Record one forward pass."""


class StepPlan:
    """Every program of a model, planned, and the one arena for them. Needs no device."""

    def __init__(
        self,
        model: Model,
        cache: KVCacheShape,
        *,
        vocab_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        ladder: Ladder | None = None,
        output_logits: bool = False,
    ) -> None:
        """Trace, fuse and assign a decode program per fusion class, and the mixed program.

        Args:
            model: records the step.
            cache: sizes of the paged cache.
            vocab_size: of the model.
            max_num_seqs: slots of the sequence state, and the top rung of the ladder.
            max_num_batched_tokens: rows of the largest mixed step.
            ladder: row counts of decode steps, up to max_num_seqs; None is the default profile.
            output_logits: make the logits an output too.
        """
        self.model = model
        self.cache = cache
        self.output_logits = output_logits
        self.ladder = ladder or Ladder(max_num_seqs)
        self.state = SequenceState(max_num_seqs, vocab_size, cache.max_blocks)
        self.ring_rows = max_num_seqs + PROMPT_LOGITS_ROWS
        self.vocab_size = vocab_size
        self.max_num_batched_tokens = max_num_batched_tokens

        self.decode = plan_buckets("decode", self.record_decode, self.ladder)
        self.mixed: PlannedProgram = plan_program("mixed", self.record_mixed)
        self.changes: PlannedProgram = plan_program("changes", self._record_changes)
        self.copies: PlannedProgram = plan_program("copies", partial(copy_blocks, cache=cache))

    def record_decode(self, t: Tracer, rows: int) -> None:
        """Record a decode step of at most so many rows."""
        state, ring = self.state.declare(t), declare_ring(t, self.ring_rows)
        inputs = begin_decode(t, state, ring, rows, self.cache.block_size)
        self._record(t, inputs, state, ring)

    def record_mixed(self, t: Tracer) -> None:
        """Record a step over chunks of several sequences."""
        state, ring = self.state.declare(t), declare_ring(t, self.ring_rows)
        inputs = begin_mixed(
            t,
            state,
            ring,
            max_tokens=self.max_num_batched_tokens,
            max_seqs=self.state.num_slots,
            max_logits=self.ring_rows,
            block_size=self.cache.block_size,
        )
        self._record(t, inputs, state, ring)

    def loop_control(self, rows: int, begins: bool, condition: int) -> Program:
        """What decides whether there is another step of a loop: before the first, or after one."""

        def record(t: Tracer) -> None:
            state, ring = self.state.declare(t), declare_ring(t, self.ring_rows)
            record_loop_control(
                t,
                state,
                ring,
                rows=rows,
                block_size=self.cache.block_size,
                begins=begins,
                condition=condition,
            )

        return plan_program(f"loop_control_{rows}", record).program

    def _record(
        self, t: Tracer, inputs: StepInputs, state: SequenceBuffers, ring: RingBuffers
    ) -> None:
        outputs = self.model.step(t, inputs, self.cache, state)
        for field in dataclasses.fields(outputs):
            if field.name != "logits" or self.output_logits:
                t.output(getattr(outputs, field.name), field.name)
        end_step(t, state, ring, inputs, outputs.token_ids)

    def _record_changes(self, t: Tracer) -> None:
        apply_changes(t, self.state.declare(t), declare_ring(t, self.ring_rows))

    @property
    def programs(self) -> list[PlannedProgram]:
        """All of them, the decode programs first."""
        return [*self.decode.values(), self.mixed, self.changes, self.copies]

    def arena(self, *, workspace: bool = False) -> Arena:
        """The layout of the arena for all programs; nothing is allocated yet.

        Args:
            workspace: with the scratch memory that launches on a GPU need.
        """
        return plan_arena(self.programs, workspace=workspace)
