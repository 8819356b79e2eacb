"""Turns scheduled chunks into steps: binds the programs, fills inputs, reads tokens.

The planned programs arrive as an argument; this module does not know Llama.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np

from cugraphs.bucketed_step import AXIS, BucketedStep, ProgramMemory, StepCounts
from cugraphs.counted import counted
from cugraphs.cpu_device import CpuDevice
from cugraphs.device import Device
from cugraphs.kernel import Array
from cugraphs.memory_map import MemoryMap, MemoryPart, map_memory
from cugraphs.mixed_step import MixedStep, sizes_of_a_start
from cugraphs.plan_target import HostCosts, expected_graphs
from cugraphs.program import Program
from cugraphs.sampling_params import SamplingParams
from cugraphs.sequence_state import WORDS
from cugraphs.start_times import span
from cugraphs.state_mirror import StateMirror, token_counts
from cugraphs.step_plan import StepPlan
from cugraphs.step_state import (
    MAX_CHANGES,
    MAX_COPIES,
    Chunk,
    DecodeRows,
    fill_decode,
    fill_launch,
    fill_mixed,
)
from cugraphs.token_ring import TokenRing

GraphMode = Literal["none", "piecewise", "full", "full_and_piecewise"]

NO_SLOTS: Array = np.zeros(0, np.int64)


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
        with span("arena"):
            memory = ProgramMemory(
                plan.programs, self.device, weights, self.state, poison=poison, debug=debug
            )
            self.arena = memory.arena
        self.device.load_kernels(self._to_be_bound())
        self.decode = BucketedStep(plan.ladder, plan.decode, memory)
        self.mixed = MixedStep(plan, self.device, memory, self.decode.counts)
        self._changes = memory.executable(plan.changes)
        self._copies = memory.executable(plan.copies)
        start = time.perf_counter()
        free = self.device.free_bytes
        if mode in ("full", "full_and_piecewise"):
            with span("graphs of decode steps"):
                self.decode.capture(self._fill_dead_rows, progress)
        self.has_loops = loops
        if loops:
            self.decode.add_loops(plan.loop_control)
        if mode in ("piecewise", "full_and_piecewise"):
            with span("graphs of pieces"):
                self.mixed.capture(self._fill_no_chunk)
        self.capture_seconds = time.perf_counter() - start
        self.graph_bytes = max(free - self.device.free_bytes, 0)
        self.num_kv_blocks = plan.cache.num_blocks
        if memory_bytes is not None:
            self.num_kv_blocks = self._affordable_blocks(memory_bytes)
        with span("KV cache"):
            self._kv_pool.back(self.num_kv_blocks)
        # Last, since it waits for weights that still load. Until here all rows were dead ones.
        self.device.write(self.state[WORDS], self.mirror.take_all())

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
        nodes = full + self.mixed.num_captured_nodes
        return expected_graphs(1, nodes, HostCosts()).nbytes or 0

    def memory_map(self) -> MemoryMap:
        """Where the device's memory went, what graphs cost beside what was expected."""
        note = (
            f"that the driver keeps for {counted(self.counts.captures, 'graph')}; "
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
        return known.with_rest(self.device.free_bytes, self.device.other_memory)

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
        sizes = self.mixed.sizes(tokens, rows + len(chunks), logits)
        inputs = self.mixed.executable.inputs(sizes)
        self.mirror.take(inputs["changes"])
        fill_launch(inputs, first)
        fill_mixed(inputs, chunks, decode)
        outputs = self.mixed.run(sizes, tokens)
        kept = [{name: array[:logits] for name, array in outputs.items()}] if reads else ()
        return Ticket([(first, logits)], None, kept)

    def _to_be_bound(self) -> list[tuple[Program, Mapping[str, int]]]:
        """The programs, at the sizes that a start binds and at those of long prompts."""
        plan = self.plan
        found: list[tuple[Program, Mapping[str, int]]] = [
            (plan.decode[plan.ladder.class_for(rung)].program, {AXIS: rung})
            for rung in plan.ladder.rungs
        ]
        sizes = sizes_of_a_start(plan, pieces="piecewise" in self.mode)
        found += [(plan.mixed.program, each) for each in sizes]
        return [*found, (plan.changes.program, {}), (plan.copies.program, {})]

    def _fill_dead_rows(self, inputs: Mapping[str, Array]) -> None:
        """A decode step of rows without a sequence, that changes nothing."""
        inputs["changes"][:, 0] = -1
        fill_launch(inputs, self.ring.begin())
        fill_decode(inputs, ())

    def _fill_no_chunk(self, inputs: Mapping[str, Array]) -> None:
        """A step with prompt tokens that has none, and changes nothing."""
        inputs["changes"][:, 0] = -1
        fill_launch(inputs, self.ring.begin())
        fill_mixed(inputs, ())

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
                f"sequence of {counted(cache.max_model_len, 'token')} ({used:,} of "
                f"{memory_bytes:,} bytes are in use); lower max_model_len, max_num_seqs or "
                "max_num_batched_tokens, or raise gpu_memory_utilization"
            )
        return blocks
