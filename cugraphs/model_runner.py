"""Turns scheduled chunks into steps: plans and binds the programs, fills inputs, reads tokens.

The model arrives as an argument; this module does not know Llama.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from cugraphs.arena import Arena, allocate_arrays
from cugraphs.compiler import plan_arena, plan_program
from cugraphs.device import CpuDevice, Device
from cugraphs.executable import Executable, PlannedProgram
from cugraphs.kernel import Array
from cugraphs.kv_cache import KVCacheShape
from cugraphs.ladder import Ladder
from cugraphs.sampling_params import SamplingParams
from cugraphs.sampling_state import SamplingBuffers, SamplingState, write_slot
from cugraphs.step_state import (
    Chunk,
    StepInputs,
    StepOutputs,
    declare_decode_inputs,
    declare_mixed_inputs,
    fill_decode,
    fill_mixed,
)
from cugraphs.trace import Tracer

PROMPT_LOGITS_ROWS = 64  # rows of a step that may serve prompt_logprobs, beside the sampled ones


class Model(Protocol):
    """What the runner asks of a model."""

    def step(
        self, t: Tracer, inputs: StepInputs, cache: KVCacheShape, sampling: SamplingBuffers
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
            max_num_seqs: slots of the sampling state, and the top rung of the ladder.
            max_num_batched_tokens: rows of the largest mixed step.
            output_logits: make the logits an output too.
        """
        self.cache = cache
        self.ladder = Ladder(max_num_seqs)
        self.sampling = SamplingState(max_num_seqs, vocab_size)
        self.max_num_batched_tokens = max_num_batched_tokens

        def record(t: Tracer, inputs: StepInputs) -> None:
            outputs = model.step(t, inputs, cache, self.sampling.declare(t))
            for field in dataclasses.fields(outputs):
                if field.name != "logits" or output_logits:
                    t.output(getattr(outputs, field.name), field.name)

        def decode(t: Tracer, rows: int) -> None:
            record(t, declare_decode_inputs(t, rows, cache.max_blocks))

        def mixed(t: Tracer) -> None:
            max_logits = max_num_seqs + PROMPT_LOGITS_ROWS
            sizes = (max_num_batched_tokens, max_num_seqs, max_logits, cache.max_blocks)
            record(t, declare_mixed_inputs(t, *sizes))

        self.decode: dict[int, PlannedProgram] = {
            rows: plan_program(f"decode_{rows}", partial(decode, rows=rows))
            for rows in self.ladder.classes
        }
        self.mixed: PlannedProgram = plan_program("mixed", mixed)

    @property
    def programs(self) -> list[PlannedProgram]:
        """All of them, the decode programs first."""
        return [*self.decode.values(), self.mixed]

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
        """Allocate the arena, the KV pool and the sampling state, and bind every program.

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
        sampling = allocate_arrays(plan.sampling.types, self.device.zero_bytes)
        self.state = {**allocate_arrays(plan.cache.types, self.device.zero_bytes), **sampling}
        # What the host writes a slot into: the state itself where the device shares the memory.
        self._sampling_twin = (
            sampling
            if self.device.shares_host_memory
            else allocate_arrays(plan.sampling.types, CpuDevice().zero_bytes)
        )

        def executable(planned: PlannedProgram) -> Executable:
            return Executable(planned, self.arena, self.device, weights, self.state, poison=poison)

        self._decode = {rows: executable(planned) for rows, planned in plan.decode.items()}
        self._mixed = executable(plan.mixed)
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
        decode = all(chunk.is_decode for chunk in chunks)
        outputs = self._run_decode(chunks) if decode else self._run_mixed(chunks)
        wanted = any(c.num_logprobs >= 0 or c.num_prompt_logprobs >= 0 for c in chunks)
        return {
            name: self.device.read(array)
            for name, array in outputs.items()
            if wanted or name in ("token_ids", "logits")
        }

    def write_slot(self, slot: int, params: SamplingParams, **request: Any) -> None:  # noqa: ANN401
        """Set the sampling state of one sequence; arguments as of ``sampling_state.write_slot``."""
        twin = self._sampling_twin
        write_slot(twin, slot, params, **request)
        if not self.device.shares_host_memory:
            for name, array in twin.items():
                if name != "token_counts" or twin["count_tokens"][slot]:
                    self.device.write(self.state[name][slot : slot + 1], array[slot : slot + 1])

    def _run_decode(self, chunks: Sequence[Chunk]) -> Mapping[str, Array]:
        rung = self.plan.ladder.rung_for(len(chunks))
        executable = self._decode[self.plan.ladder.class_for(rung)]
        sizes = {"rows": rung}
        fill_decode(executable.bind(sizes).inputs, chunks, self.plan.cache.block_size)
        outputs = executable.run(sizes)
        self.replays[rung] += 1
        self.num_padding_rows += rung - len(chunks)
        return {name: array[: len(chunks)] for name, array in outputs.items()}

    def _run_mixed(self, chunks: Sequence[Chunk]) -> Mapping[str, Array]:
        sizes = {
            "tokens": sum(len(chunk.token_ids) for chunk in chunks),
            "seqs": len(chunks),
            "logits": sum(chunk.num_logits for chunk in chunks),
        }
        fill_mixed(self._mixed.bind(sizes).inputs, chunks, self.plan.cache.block_size)
        self.num_mixed_steps += 1
        return self._mixed.run(sizes)
