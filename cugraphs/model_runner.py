"""Turns scheduled chunks into steps: plans and binds the programs, fills inputs, reads tokens.

The model arrives as an argument; this module does not know Llama.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from cugraphs.arena import Arena, allocate_arrays
from cugraphs.compiler import plan_arena, plan_program
from cugraphs.device import CpuDevice, Device
from cugraphs.executable import INPUTS, Executable, PlannedProgram
from cugraphs.kernel import Array, ArrayType
from cugraphs.kv_cache import KVCacheShape
from cugraphs.ladder import Ladder
from cugraphs.sampling_params import SamplingParams
from cugraphs.sequence_state import SequenceBuffers, SequenceState
from cugraphs.state_mirror import StateMirror, token_counts
from cugraphs.step_state import (
    MAX_CHANGES,
    Chunk,
    StepInputs,
    StepOutputs,
    apply_changes,
    begin_decode,
    begin_mixed,
    end_step,
    fill_decode,
    fill_mixed,
)
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
        output_logits: bool = False,
    ) -> None:
        """Trace, fuse and assign a decode program per fusion class, and the mixed program.

        Args:
            model: records the step.
            cache: sizes of the paged cache.
            vocab_size: of the model.
            max_num_seqs: slots of the sequence state, and the top rung of the ladder.
            max_num_batched_tokens: rows of the largest mixed step.
            output_logits: make the logits an output too.
        """
        self.model = model
        self.cache = cache
        self.output_logits = output_logits
        self.ladder = Ladder(max_num_seqs)
        self.state = SequenceState(max_num_seqs, vocab_size, cache.max_blocks)
        self.vocab_size = vocab_size
        self.max_num_batched_tokens = max_num_batched_tokens

        self.decode: dict[int, PlannedProgram] = {
            rows: plan_program(f"decode_{rows}", partial(self.record_decode, max_rows=rows))
            for rows in self.ladder.classes
        }
        self.mixed: PlannedProgram = plan_program("mixed", self.record_mixed)
        self.changes: PlannedProgram = plan_program("changes", self._record_changes)

    def record_decode(self, t: Tracer, max_rows: int) -> None:
        """Record a decode step of at most so many rows."""
        state = self.state.declare(t)
        self._record(t, begin_decode(t, state, max_rows, self.cache.block_size), state)

    def record_mixed(self, t: Tracer) -> None:
        """Record a step over chunks of several sequences."""
        state = self.state.declare(t)
        inputs = begin_mixed(
            t,
            state,
            max_tokens=self.max_num_batched_tokens,
            max_seqs=self.state.num_slots,
            max_logits=self.state.num_slots + PROMPT_LOGITS_ROWS,
            block_size=self.cache.block_size,
        )
        self._record(t, inputs, state)

    def _record(self, t: Tracer, inputs: StepInputs, state: SequenceBuffers) -> None:
        outputs = self.model.step(t, inputs, self.cache, state)
        for field in dataclasses.fields(outputs):
            if field.name != "logits" or self.output_logits:
                t.output(getattr(outputs, field.name), field.name)
        end_step(t, state, inputs, outputs.token_ids)

    def _record_changes(self, t: Tracer) -> None:
        apply_changes(t, self.state.declare(t))

    @property
    def programs(self) -> list[PlannedProgram]:
        """All of them, the decode programs first."""
        return [*self.decode.values(), self.mixed, self.changes]

    def arena(self, *, workspace: bool = False) -> Arena:
        """The layout of the arena for all programs; nothing is allocated yet.

        Args:
            workspace: with the scratch memory that launches on a GPU need.
        """
        return plan_arena(self.programs, workspace=workspace)


class ModelRunner:
    """Runs steps of one model on one device."""

    def __init__(
        self,
        plan: StepPlan,
        weights: Mapping[str, Array],
        device: Device | None = None,
        *,
        poison: bool = False,
    ) -> None:
        """Allocate the arena, the KV pool and the sequence state, and bind every program.

        Args:
            plan: the planned programs.
            weights: an array of the device for every weight, by name.
            device: runs the programs; None is the CPU.
            poison: fill temporaries with NaN bytes after their last use (tests, debugging).
        """
        self.plan = plan
        self.device: Device = device or CpuDevice()
        self.arena = plan.arena(workspace=self.device.uses_workspace)
        self.arena.allocate(self.device.allocate_bytes)
        self.state = {
            **allocate_arrays(plan.cache.types, self.device.zero_bytes),
            **plan.state.allocate(self.device.zero_bytes),
        }
        self.mirror = StateMirror(plan.state)
        input_bytes = self.arena.regions[INPUTS].nbytes
        staging = self.device.stage(self.arena.view(INPUTS, ArrayType((input_bytes,), "uint8")))

        def executable(planned: PlannedProgram) -> Executable:
            return Executable(
                planned, self.arena, self.device, staging, weights, self.state, poison=poison
            )

        self._decode = {rows: executable(planned) for rows, planned in plan.decode.items()}
        self._mixed = executable(plan.mixed)
        self._changes = executable(plan.changes)
        self.replays: dict[int, int] = {rung: 0 for rung in plan.ladder.rungs}
        self.num_mixed_steps = 0
        self.num_padding_rows = 0

    def run(self, chunks: Sequence[Chunk]) -> Mapping[str, Array]:
        """Run one step over ``chunks``.

        Decode chunks alone are a decode step at the smallest rung that holds them; anything else
        is a mixed step of exactly its size.

        Returns:
            Host arrays by name, with the rows of each chunk that get logits, chunk after chunk.
            The next step overwrites them. Log-probabilities are there only if a chunk wants some.
        """
        if all(chunk.is_decode for chunk in chunks):
            return self._collect(chunks, self._run_decode(chunks))
        return self.run_mixed(chunks)

    def run_mixed(self, chunks: Sequence[Chunk]) -> Mapping[str, Array]:
        """As :meth:`run`, always a mixed step."""
        return self._collect(chunks, self._run_mixed(chunks))

    def _collect(
        self, chunks: Sequence[Chunk], outputs: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        """Read what is wanted of a step's outputs, and move the mirror on by its tokens."""
        wanted = any(c.num_logprobs >= 0 or c.num_prompt_logprobs >= 0 for c in chunks)
        found = {
            name: self.device.read(array)
            for name, array in outputs.items()
            if wanted or name in ("token_ids", "logits")
        }
        self._advance_mirror(chunks, found["token_ids"])
        return found

    def write_slot(
        self,
        slot: int,
        params: SamplingParams,
        *,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
        **request: Any,  # noqa: ANN401
    ) -> None:
        """Set the state of one new sequence, but its blocks.

        Args:
            slot: of the sequence.
            params: its sampling parameters.
            prompt_token_ids: of the request.
            output_token_ids: already generated (after a preemption).
            request: what else ``StateMirror.write_slot`` takes.
        """
        self.mirror.write_slot(slot, params, prompt_length=len(prompt_token_ids), **request)
        if self.mirror.fields["count_tokens"][slot]:
            counts = token_counts(self.plan.vocab_size, prompt_token_ids, output_token_ids)
            self.device.write(self.state["token_counts"][slot], counts)

    def _place(self, chunks: Sequence[Chunk]) -> None:
        """Make the state stand where the chunks begin, but for the changes that a step can send."""
        self.mirror.place(chunks)
        while self.mirror.num_changes > MAX_CHANGES:
            self.mirror.take(self._changes.inputs({})["changes"])
            self._changes.run({})

    def _run_decode(self, chunks: Sequence[Chunk]) -> Mapping[str, Array]:
        self._place(chunks)
        rung = self.plan.ladder.rung_for(len(chunks))
        executable = self._decode[self.plan.ladder.class_for(rung)]
        sizes = {"rows": rung}
        inputs = executable.inputs(sizes)
        self.mirror.take(inputs["changes"])
        fill_decode(inputs, chunks)
        outputs = executable.run(sizes)
        self.replays[rung] += 1
        self.num_padding_rows += rung - len(chunks)
        return {name: array[: len(chunks)] for name, array in outputs.items()}

    def _run_mixed(self, chunks: Sequence[Chunk]) -> Mapping[str, Array]:
        self._place(chunks)
        sizes = {
            "tokens": sum(len(chunk.token_ids) for chunk in chunks),
            "seqs": len(chunks),
            "logits": sum(chunk.num_logits for chunk in chunks),
        }
        inputs = self._mixed.inputs(sizes)
        self.mirror.take(inputs["changes"])
        fill_mixed(inputs, chunks)
        self.num_mixed_steps += 1
        return self._mixed.run(sizes)

    def _advance_mirror(self, chunks: Sequence[Chunk], token_ids: Array) -> None:
        """Move the mirror on by what each chunk that samples has sampled."""
        row_ids = np.full(len(token_ids), -1, np.int32)
        positions = np.zeros(len(token_ids), np.int32)
        last = -1
        for chunk in chunks:
            last += chunk.num_logits
            if chunk.samples:
                row_ids[last] = chunk.slot
                positions[last] = chunk.start + len(chunk.token_ids)
        self.mirror.advance(token_ids, row_ids, positions)
