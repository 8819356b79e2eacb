"""Turns scheduled chunks into steps: plans and binds the programs, fills inputs, reads tokens.

The model arrives as an argument; this module does not know Llama.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, cast, get_args

import numpy as np

from cugraphs.arena import Arena
from cugraphs.bucketed_step import AXIS, BucketedStep, ProgramMemory, StepCounts, plan_buckets
from cugraphs.compiler import plan_arena, plan_program
from cugraphs.device import CaptureError, CpuDevice, Device
from cugraphs.executable import PlannedProgram, pieces_of
from cugraphs.kernel import Array
from cugraphs.kv_cache import KVCacheShape
from cugraphs.ladder import Ladder, token_ladder
from cugraphs.memory_map import MemoryMap, MemoryPart, map_memory
from cugraphs.mixed_sizes import FEW_TOKENS, round_rows, round_tokens
from cugraphs.plan_target import HostCosts, expected_graphs
from cugraphs.program import Program
from cugraphs.sampling_params import SamplingParams
from cugraphs.sequence_state import WORDS, SequenceBuffers, SequenceState
from cugraphs.start_times import span
from cugraphs.state_mirror import StateMirror, token_counts
from cugraphs.step_state import (
    MAX_CHANGES,
    MAX_COPIES,
    Chunk,
    DecodeRows,
    StepInputs,
    StepOutputs,
    apply_changes,
    begin_decode,
    begin_mixed,
    copy_blocks,
    end_step,
    fill_decode,
    fill_launch,
    fill_mixed,
    record_loop_control,
)
from cugraphs.token_ring import RingBuffers, TokenRing, declare_ring
from cugraphs.trace import Tracer

GraphMode = Literal["none", "piecewise", "full", "full_and_piecewise"]

_log = logging.getLogger("cugraphs")

# Tokens of a step up to which pieces are captured. Measured on an H200, one prompt, eager against
# pieces: Llama 3.2 1B 1.51 to 1.33 ms at 8 tokens, 2.09 to 1.99 at 128; Llama 3.1 8B 5.08 to 4.87
# and 6.18 to 6.08. From 200 tokens on the padding of the 8B costs more than its launches.
MAX_PIECE_TOKENS = 128
NO_SLOTS: Array = np.zeros(0, np.int64)
PROMPT_LOGITS_ROWS = 64  # rows of a step that may serve prompt_logprobs, beside the sampled ones


def check_graph_mode(mode: str) -> GraphMode:
    """The mode itself.

    Raises:
        ValueError: there is none of that name.
    """
    if mode not in get_args(GraphMode):
        raise ValueError(
            f"LLM: graph_mode is {mode!r}, expected one of {', '.join(get_args(GraphMode))}"
        )
    return cast(GraphMode, mode)


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


class Ticket(NamedTuple):
    """A step that was submitted.

    Args:
        steps: (number, rows) of each part that it runs in, one but for batches above the ladder.
        loop: the first step of its loop, which may end before it; None where there is no loop.
        outputs: the device's arrays that are to be read beside the tokens, of each part.
    """

    steps: Sequence[tuple[int, int]]
    loop: int | None = None
    outputs: Sequence[Mapping[str, Array]] = ()


class ModelRunner:
    """Runs steps of one model on one device."""

    def __init__(
        self,
        plan: StepPlan,
        weights: Mapping[str, Array],
        device: Device | None = None,
        *,
        mode: GraphMode = "none",
        memory_bytes: int | None = None,
        poison: bool = False,
        debug: bool = False,
        loops: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Allocate the arena and the sequence state, capture, and give what is left to the cache.

        Args:
            plan: the planned programs.
            weights: an array of the device for every weight, by name.
            device: runs the programs; None is the CPU.
            mode: what is captured; a device without graphs runs everything eagerly.
            memory_bytes: of the device's memory, what everybody on it may use in the end; the KV
                cache gets what is left of it. None: all blocks of the plan.
            poison: fill temporaries with NaN bytes after their last use (tests, debugging).
            debug: check before every step that no array was replaced.
            loops: decode steps that are submitted together end early when none has a live row, or
                :meth:`stop_loops` says so.
            progress: called with each rung that is captured.

        Raises:
            MemoryError: it does not fit, or what is left holds no sequence of the model's length.
        """
        self.plan = plan
        self.device: Device = device or CpuDevice()
        self.mode = mode
        with span("KV addresses, state"):
            self._kv_pool = self.device.kv_pool(plan.cache)
            self.ring = TokenRing(self.device, plan.ring_rows)
            self.state = {
                **self._kv_pool.arrays,
                **plan.state.allocate(self.device.zero_bytes),
                **self.ring.arrays,
            }
            self.mirror = StateMirror(plan.state)
            # The first of the steps whose numbers follow each other without a gap, if the newest
            # that was submitted is one of them.
            self._numbered_from: int | None = None
        self.device.write(self.state[WORDS], self.mirror.take_all())
        with span("arena"):
            memory = ProgramMemory(
                plan.programs, self.device, weights, self.state, poison=poison, debug=debug
            )
            self.arena = memory.arena
        self.device.load_kernels(self._to_be_bound())
        self.decode = BucketedStep(plan.ladder, plan.decode, memory)
        self._mixed = memory.executable(plan.mixed)
        self._changes = memory.executable(plan.changes)
        self._copies = memory.executable(plan.copies)
        self._token_rungs: Ladder | None = None
        self._piece_nodes = 0
        start = time.perf_counter()
        free = self.device.free_bytes
        if mode in ("full", "full_and_piecewise"):
            with span("graphs of decode steps"):
                self.decode.capture(self._fill_dead_rows, progress)
        self.has_loops = loops
        if loops:
            self.decode.add_loops(plan.loop_control)
        if mode in ("piecewise", "full_and_piecewise") and self.device.has_graphs:
            with span("graphs of pieces"):
                self._capture_pieces()
        self.capture_seconds = time.perf_counter() - start
        self.graph_bytes = max(free - self.device.free_bytes, 0)
        self.num_kv_blocks = plan.cache.num_blocks
        if memory_bytes is not None:
            self.num_kv_blocks = self._affordable_blocks(memory_bytes)
        with span("KV cache"):
            self._kv_pool.back(self.num_kv_blocks)

    @property
    def counts(self) -> StepCounts:
        """Captures, replays and eager steps so far."""
        return self.decode.counts

    @property
    def kv_bytes(self) -> int:
        """Memory of the KV cache."""
        return self._kv_pool.bytes_of(self.num_kv_blocks)

    @property
    def expected_graph_bytes(self) -> int:
        """What the driver was to keep for the graphs, by the nodes that are captured."""
        loops = self.decode.loops  # each holds its rung's nodes once more
        full = sum(r.num_nodes * (1 + (r.rows in loops)) for r in self.decode.capture_report)
        nodes = full + self._piece_nodes
        return expected_graphs(1, nodes, HostCosts()).nbytes or 0

    def memory_map(self) -> MemoryMap:
        """Where the device's memory went, what graphs cost beside what was expected."""
        note = (
            f"that the driver keeps for {self.counts.captures} graphs; "
            f"{self.expected_graph_bytes:,} were expected"
        )
        cache = dataclasses.replace(self.plan.cache, num_blocks=self.num_kv_blocks)
        known = map_memory(
            self.plan.programs,
            cache,
            self.arena,
            graphs=MemoryPart("graphs", self.graph_bytes, note) if self.counts.captures else None,
            total_bytes=self.device.total_bytes,
        )
        return known.with_rest(self.device.free_bytes)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Queue copies of blocks of the cache, K and V of every layer.

        Args:
            pairs: (source, target); no target is a source, or another pair's target.
        """
        for begin in range(0, len(pairs), MAX_COPIES):
            part = pairs[begin : begin + MAX_COPIES]
            inputs = self._copies.inputs({})
            inputs["pairs"][:] = -1
            inputs["pairs"][: len(part)] = part
            self._copies.run({})

    def submit(
        self,
        decode_slots: Array,
        positions: Array,
        chunks: Sequence[Chunk] = (),
        *,
        num_steps: int = 1,
        wants_logprobs: bool = False,
    ) -> list[Ticket]:
        """Queue steps, and return before they have run.

        Without chunks they are decode steps, at the smallest rung that holds them; else it is one
        mixed step. All that differs from row to row is what the slots' state says.

        Args:
            decode_slots: int64 [n]; sequences that compute their newest token and sample another.
            positions: int64 [n]; where the (first) sampled tokens will stand.
            chunks: of prompts, behind those.
            num_steps: how many, one after the other; for more than ``max_rows`` rows, 1.
            wants_logprobs: keep log-probabilities for :meth:`collect`, which must then come before
                anything else is submitted.

        Returns:
            A ticket for each step, to be collected in that order.
        """
        reads = wants_logprobs or self.plan.output_logits
        for chunk in chunks:
            self.mirror.begin_chunk(chunk)
        self._send_what_a_step_cannot()
        if chunks:
            num_logprobs = self.mirror.fields["num_logprobs"].take(decode_slots)
            rows = DecodeRows(decode_slots, positions, num_logprobs)
            tickets = [self._queue_mixed(chunks, rows, reads=reads)]
        elif len(decode_slots) <= self.decode.ladder.top:
            tickets = self._queue_decode(decode_slots, num_steps, reads=reads)
        else:
            tickets = [self._queue_in_parts(decode_slots, reads=reads)]
        return tickets

    def collect(self, ticket: Ticket) -> Mapping[str, Array] | None:
        """Wait for a step.

        Returns:
            Host arrays by name: a row for each decode row, then for each token of a chunk that gets
            logits, chunk after chunk; ``token_ids`` is ``DEAD`` where nothing was sampled. None if
            the step was not made, because its loop had ended before.
        """
        parts = []
        for step, rows in ticket.steps:
            token_ids = self.ring.wait(step, rows, loop=ticket.loop)
            if token_ids is None:
                return None
            parts.append(token_ids)
        found = {"token_ids": parts[0] if len(parts) == 1 else np.concatenate(parts)}
        outputs = [self._read(part) for part in ticket.outputs]
        for name in outputs[0] if outputs else ():
            found.setdefault(name, np.concatenate([part[name] for part in outputs]))
        return found

    def stop_loops(self) -> None:
        """Let every loop that was submitted end after the step that it is in; waits for nothing."""
        self.ring.stop()

    def abandon(self) -> None:
        """Wait for all that was submitted, wanted or not, and empty all slots.

        Raises:
            RuntimeError: the device failed.
        """
        self.ring.stop()
        self.device.wait()
        self._numbered_from = None
        self.mirror.start_over()
        self.device.write(self.state[WORDS], self.mirror.take_all())

    def run(self, chunks: Sequence[Chunk]) -> Mapping[str, Array]:
        """Run one step over chunks that bring all that their slots are to hold of them.

        Decode chunks alone are a decode step; anything else is a mixed step. For steps by hand: the
        engine uses :meth:`submit` and :meth:`collect`.

        Returns:
            As :meth:`collect`, everything.
        """
        if not all(chunk.is_decode for chunk in chunks):
            return self.run_mixed(chunks)
        for chunk in chunks:
            self.mirror.place(chunk)
        slots = np.array([chunk.slot for chunk in chunks], np.int64)
        positions = np.array([chunk.start + 1 for chunk in chunks], np.int64)
        return self._run(slots, positions, ())

    def run_mixed(self, chunks: Sequence[Chunk]) -> Mapping[str, Array]:
        """As :meth:`run`, always a mixed step."""
        for chunk in chunks:
            self.mirror.place(chunk)
        return self._run(NO_SLOTS, NO_SLOTS, chunks)

    def write_slot(
        self,
        slot: int,
        params: SamplingParams,
        *,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int] | Array,
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

    def _run(self, slots: Array, positions: Array, chunks: Sequence[Chunk]) -> Mapping[str, Array]:
        (ticket,) = self.submit(slots, positions, chunks, wants_logprobs=True)
        outputs = self.collect(ticket)
        assert outputs is not None, "only a loop ends early"
        return outputs

    def _send_what_a_step_cannot(self) -> None:
        """Send changes of the state until a step can bring the rest."""
        while self.mirror.num_changes > MAX_CHANGES:
            inputs = self._changes.inputs({})
            self.mirror.take(inputs["changes"])
            fill_launch(inputs, self.ring.next_step)  # which is still to come: they are applied
            self._changes.run({})

    def _queue_decode(self, slots: Array, num_steps: int, *, reads: bool) -> list[Ticket]:
        """Queue decode steps of rows that a rung holds, as a loop where those are wanted."""
        rows, first = len(slots), self.ring.begin(num_steps)
        loop, until = None, None
        if num_steps > 1 and self.has_loops:
            loop, until = first, partial(self.ring.has_ended, first)
        inputs = self.decode.inputs(rows)
        changes = self.mirror.take(inputs["changes"])
        # Steps that follow steps are numbered by the device. So without changes the number of an
        # earlier launch will do, and inputs that are the same as before need not be sent.
        if changes or loop is not None or self._numbered_from is None:
            self._numbered_from = first
        fill_launch(inputs, self._numbered_from, num_steps)
        if loop is not None:  # it may end earlier
            self._numbered_from = None
        fill_decode(inputs, slots)
        outputs = self.decode.run(rows, num_steps=num_steps, until=until)
        kept = [self.decode.cut(outputs, rows)] if reads else ()
        return [Ticket([(first + i, rows)], loop, kept) for i in range(num_steps)]

    def _queue_in_parts(self, slots: Array, *, reads: bool) -> Ticket:
        """Queue one decode step of more rows than a rung holds; read each part before the next."""
        steps: list[tuple[int, int]] = []
        outputs: list[Mapping[str, Array]] = []
        begin = 0
        for rows in self.decode.split(len(slots)):
            (part,) = self._queue_decode(slots[begin : begin + rows], 1, reads=reads)
            steps += part.steps
            if reads:
                outputs.append({name: a.copy() for name, a in self._read(part.outputs[0]).items()})
            begin += rows
        return Ticket(steps, None, outputs)

    def _read(self, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """Host arrays of a step's outputs, which may have been read already."""
        if all(isinstance(array, np.ndarray) for array in arrays.values()):
            return arrays
        return {name: self.device.read(array) for name, array in arrays.items()}

    def _queue_mixed(self, chunks: Sequence[Chunk], decode: DecodeRows, *, reads: bool) -> Ticket:
        rows, first = len(decode.slots), self.ring.begin()
        tokens = logits = rows
        for chunk in chunks:
            tokens += len(chunk.token_ids)
            logits += chunk.num_logits
        sizes = self._mixed_sizes(tokens, rows + len(chunks), logits)
        captured = self._token_rungs is not None and tokens <= self._token_rungs.top
        if captured:
            assert self._token_rungs is not None
            sizes["tokens"] = self._token_rungs.rung_for(tokens)
        self.counts.padding_rows += sizes["tokens"] - tokens
        inputs = self._mixed.inputs(sizes)
        self.mirror.take(inputs["changes"])
        fill_launch(inputs, first)
        fill_mixed(inputs, chunks, decode)
        if not captured:
            self.counts.eager_steps["a step with prompt tokens"] += 1
        outputs = self._mixed.run(sizes)
        kept = [{name: array[:logits] for name, array in outputs.items()}] if reads else ()
        return Ticket([(first, logits)], None, kept)

    def _mixed_sizes(self, tokens: int, seqs: int, logits: int) -> dict[str, int]:
        """Sizes that serve so many: on a GPU a little larger, so that bindings come again."""
        if self.device.shares_host_memory:  # binding costs little there, and padding much
            return {"tokens": tokens, "seqs": seqs, "logits": logits}
        return {
            "tokens": round_tokens(tokens, self.plan.max_num_batched_tokens),
            "seqs": round_rows(seqs, self.plan.state.num_slots),
            "logits": round_rows(logits, self.plan.ring_rows),
        }

    def _to_be_bound(self) -> list[tuple[Program, Mapping[str, int]]]:
        """The programs, at the sizes that a start binds and at those of long prompts."""
        plan, mixed = self.plan, self.plan.mixed.program
        found: list[tuple[Program, Mapping[str, int]]] = [
            (plan.decode[plan.ladder.class_for(rung)].program, {AXIS: rung})
            for rung in plan.ladder.rungs
        ]
        rungs = _piece_ladder(plan).rungs if "piecewise" in self.mode else ()
        few = [tokens for tokens in FEW_TOKENS if tokens <= plan.max_num_batched_tokens]
        found += [(mixed, {"tokens": tokens, "seqs": 1, "logits": 1}) for tokens in (*rungs, *few)]
        for exponent in range(plan.state.num_slots.bit_length()):
            rows, tokens = 1 << exponent, plan.max_num_batched_tokens
            found.append((mixed, {"tokens": tokens, "seqs": rows, "logits": rows}))
        return [*found, (plan.changes.program, {}), (plan.copies.program, {})]

    def _fill_dead_rows(self, inputs: Mapping[str, Array]) -> None:
        """A decode step of rows without a sequence, that changes nothing."""
        inputs["changes"][:, 0] = -1
        fill_launch(inputs, self.ring.begin())
        fill_decode(inputs, ())

    def _capture_pieces(self) -> None:
        """Capture the runs of ops between attention at every token rung, the largest first.

        And the whole step of one prompt that ends in it: attention's launches too follow from
        sizes alone, and a graph leaves no gaps between kernels.
        """
        rungs = _piece_ladder(self.plan)
        program = self.plan.mixed.program
        for tokens in reversed(rungs.rungs):
            sizes = {"tokens": tokens, "seqs": 1, "logits": 1}
            inputs = self._mixed.inputs(sizes)
            inputs["changes"][:, 0] = -1
            fill_launch(inputs, self.ring.begin())
            fill_mixed(inputs, ())
            self._mixed.run(sizes)
            try:
                graphs = self._mixed.capture_pieces("tokens", sizes)
                whole = self._mixed.capture(sizes)
            except CaptureError as error:
                _log.warning("pieces of %d tokens: %s; such steps run eagerly", tokens, error)
                return
            self.counts.captures += len(graphs) + 1
            self._piece_nodes += sum(end - begin for begin, end in pieces_of(program, "tokens"))
            self._piece_nodes += whole.num_nodes
        self._token_rungs = rungs

    def _affordable_blocks(self, memory_bytes: int) -> int:
        """Blocks of the cache that fit beside all that is in memory now.

        Raises:
            MemoryError: fewer than one sequence needs.
        """
        cache = self.plan.cache
        used = self.device.total_bytes - self.device.free_bytes
        blocks = min(self._kv_pool.blocks_in(memory_bytes - used), cache.num_blocks)
        if blocks < cache.max_blocks + 1:
            raise MemoryError(
                f"{self.device.name}: {max(memory_bytes - used, 0):,} bytes are left for the KV "
                f"cache, expected {self._kv_pool.bytes_of(cache.max_blocks + 1):,} for one "
                f"sequence of {cache.max_model_len} tokens ({used:,} of {memory_bytes:,} bytes are "
                "in use); lower max_model_len, max_num_seqs or max_num_batched_tokens, or raise "
                "gpu_memory_utilization"
            )
        return blocks


def _piece_ladder(plan: StepPlan) -> Ladder:
    """The token counts of mixed steps whose pieces are captured."""
    return token_ladder(plan.state.num_slots, plan.max_num_batched_tokens, most=MAX_PIECE_TOKENS)
