"""A step's ends: what the host sends for it, how rows begin from the sequence state, how they end.

A decode step has one row per sequence and needs only their slots. A mixed step has the tokens of
several sequences one after the other. Rows beyond the batch are dead rows, named -1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from cugraphs.kernel import Array, Dim
from cugraphs.kernels import (
    ADVANCE,
    APPLY_CHANGES,
    COPY_BLOCKS,
    DECODE_ROWS,
    LOOP_CONTROL,
    MIXED_ROWS,
)
from cugraphs.kv_cache import KVCacheShape
from cugraphs.program import Buffer
from cugraphs.sequence_state import SequenceBuffers
from cugraphs.token_ring import RingBuffers, as_int32
from cugraphs.trace import Tracer

MAX_CHANGES = 2048  # changed words of the state that a step can apply, 8 bytes each
MAX_COPIES = 64  # blocks of the cache that are copied at once


@dataclass(frozen=True)
class StepInputs:
    """What the model's step reads of its rows.

    A decode step samples from each row. A mixed step samples from the rows in ``logits_indices``.

    Args:
        token_ids: int32 [rows]; 0 in dead rows.
        positions: int32 [rows]; where the token stands in its sequence.
        slot_mapping: int32 [rows]; block * block_size + offset, where K and V go; -1 in dead rows.
        slot_ids: int32 [seqs]; each sequence's row of the block tables; -1 in dead ones. In a
            decode step ``seqs`` is ``rows``.
        seq_lens: int32 [seqs]; tokens in the cache, this step's included; 0 in dead ones.
        row_ids: int32 [sampled]; the sequence's slot; -1 where no token is sampled.
        sample_positions: int32 [sampled]; where the sampled token will stand in its sequence.
        target_ids: int32 [sampled]; the token whose log-probability is wanted; -1 is the sampled.
        num_logprobs: int32 [sampled]; likeliest tokens wanted beside it; -1 wants none at all.
        query_start_loc: int32 [seqs + 1], only in a mixed step: sequence s owns rows
            ``query_start_loc[s]`` to ``query_start_loc[s + 1]``.
        logits_indices: int32 [sampled], only in a mixed step: the rows that get logits.
    """

    token_ids: Buffer
    positions: Buffer
    slot_mapping: Buffer
    slot_ids: Buffer
    seq_lens: Buffer
    row_ids: Buffer
    sample_positions: Buffer
    target_ids: Buffer
    num_logprobs: Buffer
    query_start_loc: Buffer | None = None
    logits_indices: Buffer | None = None


@dataclass(frozen=True)
class StepOutputs:
    """What a step computes for each sampled row.

    Args:
        logits: [sampled, vocab_size], in the model's dtype, as the head gives them.
        token_ids: int32 [sampled]; -1 where the logits hold NaN or +inf, or nothing finite.
        target_logprobs: float32 [sampled]; of the target token.
        target_ranks: int32 [sampled]; 1 is the likeliest; 0 where nothing is wanted.
        top_ids: int32 [sampled, max_logprobs]; the likeliest tokens, -1 beyond those wanted.
        top_logprobs: float32 [sampled, max_logprobs]; theirs.
    """

    logits: Buffer
    token_ids: Buffer
    target_logprobs: Buffer
    target_ranks: Buffer
    top_ids: Buffer
    top_logprobs: Buffer


class DecodeRows(NamedTuple):
    """Sequences that compute their newest token, which the device's state holds.

    Args:
        slots: int64 [n]; none occurs twice.
        sample_positions: int64 [n]; where the sampled tokens will stand.
        num_logprobs: int32 [n]; likeliest tokens to report beside those; -1 reports none at all.
    """

    slots: Array
    sample_positions: Array
    num_logprobs: Array


class Chunk(NamedTuple):
    """Consecutive tokens of one sequence that run in one step.

    Args:
        token_ids: the tokens, the first at position ``start``.
        start: tokens of the sequence that are in the cache already.
        block_table: the sequence's blocks, enough for the chunk; left out where the slot's table
            was written before.
        slot: of the sequence in the state; no other sequence of the step has it.
        samples: whether the last row samples the sequence's next token.
        num_logprobs: likeliest tokens to report beside the sampled one; -1 reports none at all.
        prompt_targets: for each of the first rows, the known next token whose log-probability is
            wanted (prompt_logprobs).
        num_prompt_logprobs: likeliest tokens to report beside those; -1 reports none at all.
    """

    token_ids: Sequence[int] | Array
    start: int
    block_table: Sequence[int] = ()
    slot: int = 0
    samples: bool = True
    num_logprobs: int = -1
    prompt_targets: Sequence[int] = ()
    num_prompt_logprobs: int = -1

    @property
    def num_logits(self) -> int:
        """Rows of the chunk that get logits: those of ``prompt_targets``, then the sampled one."""
        return len(self.prompt_targets) + self.samples

    @property
    def is_decode(self) -> bool:
        """Whether one row of a decode step can run it, once the state holds its token."""
        return len(self.token_ids) == 1 and self.samples and not self.prompt_targets


def begin_decode(
    t: Tracer, state: SequenceBuffers, ring: RingBuffers, max_rows: int, block_size: int
) -> StepInputs:
    """Record the beginning of a decode step over the axis ``rows``."""
    rows = t.dim("rows", max_rows)
    launch = apply_changes(t, state, ring)
    (row_ids,) = _declare(t, rows, "row_ids")
    moving = (state.last_token, state.num_computed, state.done)
    found = t.call_tuple(
        DECODE_ROWS,
        ring.step,
        row_ids,
        *moving,
        state.block_tables,
        state.num_logprobs,
        launch,
        block_size=block_size,
    )
    token_ids, positions, slot_mapping, seq_lens, live_ids, *sampled = found
    return StepInputs(token_ids, positions, slot_mapping, live_ids, seq_lens, live_ids, *sampled)


def begin_mixed(
    t: Tracer,
    state: SequenceBuffers,
    ring: RingBuffers,
    *,
    max_tokens: int,
    max_seqs: int,
    max_logits: int,
    block_size: int,
) -> StepInputs:
    """Record the beginning of a mixed step over the axes ``tokens``, ``seqs`` and ``logits``."""
    tokens, seqs = t.dim("tokens", max_tokens), t.dim("seqs", max_seqs)
    logits = t.dim("logits", max_logits)
    launch = apply_changes(t, state, ring)
    # The longest inputs last: what is copied ends with the last token.
    (query_start_loc,) = _declare(t, seqs + 1, "query_start_loc")
    (slot_ids,) = _declare(t, seqs, "slot_ids")
    row_ids, sample_positions, target_ids, num_logprobs, logits_indices = _declare(
        t, logits, "row_ids", "sample_positions", "target_ids", "row_logprobs", "logits_indices"
    )
    (new_token_ids,) = _declare(t, tokens, "new_token_ids")
    token_ids, positions, slot_mapping, seq_lens, live_ids = t.call_tuple(
        MIXED_ROWS,
        ring.step,
        new_token_ids,
        slot_ids,
        query_start_loc,
        row_ids,
        state.last_token,
        state.num_computed,
        state.done,
        state.block_tables,
        launch,
        block_size=block_size,
    )
    return StepInputs(
        token_ids,
        positions,
        slot_mapping,
        slot_ids,
        seq_lens,
        live_ids,
        sample_positions,
        target_ids,
        num_logprobs,
        query_start_loc,
        logits_indices,
    )


def apply_changes(t: Tracer, state: SequenceBuffers, ring: RingBuffers) -> Buffer:
    """Record that the host's changes are applied to the state, once for all steps of a launch.

    Returns:
        int32 [2]; the number of the first step that was launched, and how many were.
    """
    launch = t.input("launch", (2,), "int32")
    changes = t.input("changes", (MAX_CHANGES, 2), "int32")
    t.call_tuple(APPLY_CHANGES, state.state_words, changes, launch, ring.step)
    return launch


def copy_blocks(t: Tracer, cache: KVCacheShape) -> None:
    """Record that blocks are copied in every layer's K and V; a negative source is no copy."""
    pairs = t.input("pairs", (MAX_COPIES, 2), "int32")
    for layer in range(cache.num_layers):
        t.call_tuple(COPY_BLOCKS, *cache.declare(t, layer), pairs)


def end_step(
    t: Tracer,
    state: SequenceBuffers,
    ring: RingBuffers,
    inputs: StepInputs,
    token_ids: Buffer,
) -> None:
    """Record that the sampled tokens are appended to their sequences and told to the host."""
    moving = (state.last_token, state.num_computed, state.done, ring.token_ring)
    sampled = (token_ids, inputs.row_ids, inputs.sample_positions, ring.step)
    rules = (state.stop_ids, state.min_position, state.end_position)
    t.call_tuple(ADVANCE, *moving, *sampled, *rules)


def record_loop_control(
    t: Tracer,
    state: SequenceBuffers,
    ring: RingBuffers,
    *,
    rows: int,
    block_size: int,
    begins: bool,
    condition: int,
) -> None:
    """Record what decides whether there is another decode step of a loop.

    Before the first one it also applies the host's changes, since that one may not come.

    Args:
        t: records it.
        state: of the sequences.
        ring: of the steps.
        rows: of the step.
        block_size: tokens of a block.
        begins: it is before the first step, not after a step.
        condition: the handle of the loop's condition in a CUDA graph; 0 outside of one.
    """
    launch = apply_changes(t, state, ring) if begins else t.input("launch", (2,), "int32")
    row_ids = t.input("row_ids", (rows,), "int32")
    where = (state.num_computed, state.done, state.block_tables)
    now = (launch, ring.step, ring.stop_at)
    attrs = {"block_size": block_size, "begins": begins, "condition": condition}
    t.call_tuple(LOOP_CONTROL, ring.loop_ends, row_ids, *where, *now, **attrs)


def fill_launch(inputs: Mapping[str, Array], first_step: int, num_steps: int = 1) -> None:
    """Number the steps of a launch.

    Args:
        inputs: of a step.
        first_step: the number of its first step, from :meth:`TokenRing.begin`.
        num_steps: how many are launched together.
    """
    launch = inputs["launch"]
    launch[0], launch[1] = as_int32(first_step), num_steps


def fill_decode(inputs: Mapping[str, Array], slots: Array | Sequence[int]) -> None:
    """Name the rows' slots in the first rows; all others are dead."""
    inputs["row_ids"][: len(slots)] = slots
    inputs["row_ids"][len(slots) :] = -1


def fill_mixed(
    inputs: Mapping[str, Array], chunks: Sequence[Chunk], decode: DecodeRows | None = None
) -> None:
    """Write decode rows, and the chunks one after the other behind them.

    What the inputs have room for beyond is dead. The token of a decode row is the newest that the
    state holds, -1 here.
    """
    for name, dead in _DEAD.items():
        inputs[name].fill(dead)
    rows = 0 if decode is None else len(decode.slots)
    starts, slots, tokens = (inputs[n] for n in ("query_start_loc", "slot_ids", "new_token_ids"))
    if decode is not None:
        starts[:rows] = inputs["logits_indices"][:rows] = _first_rows(rows)
        slots[:rows] = inputs["row_ids"][:rows] = decode.slots
        tokens[:rows] = -1
        inputs["sample_positions"][:rows] = decode.sample_positions
        inputs["row_logprobs"][:rows] = decode.num_logprobs
    begin = logits = rows
    for seq, chunk in enumerate(chunks, start=rows):
        starts[seq], slots[seq] = begin, chunk.slot
        end = begin + len(chunk.token_ids)
        tokens[begin:end] = chunk.token_ids
        if chunk.prompt_targets:
            _fill_targets(inputs, chunk, begin, logits)
        if chunk.samples:
            last = logits + len(chunk.prompt_targets)
            inputs["logits_indices"][last] = end - 1
            inputs["row_ids"][last] = chunk.slot
            inputs["sample_positions"][last] = chunk.start + len(chunk.token_ids)
            inputs["row_logprobs"][last] = chunk.num_logprobs
        begin, logits = end, logits + chunk.num_logits
    starts[rows + len(chunks) :] = begin
    tokens[begin:] = 0


@lru_cache(16)  # the same rows decode for many steps
def _first_rows(count: int) -> Array:
    return np.arange(count, dtype=np.int32)


def _fill_targets(inputs: Mapping[str, Array], chunk: Chunk, begin: int, logits: int) -> None:
    """Write a chunk's rows of prompt tokens, from the token ``begin`` and the row ``logits`` on."""
    targets = len(chunk.prompt_targets)
    known = slice(logits, logits + targets)
    inputs["logits_indices"][known] = range(begin, begin + targets)
    inputs["target_ids"][known] = chunk.prompt_targets
    inputs["row_logprobs"][known] = chunk.num_prompt_logprobs


_DEAD = {  # what rows hold that nobody owns, and prompt tokens where nothing is sampled
    "slot_ids": -1,
    "logits_indices": -1,
    "row_ids": -1,
    "sample_positions": 0,
    "target_ids": -1,
    "row_logprobs": -1,
}


def _declare(t: Tracer, axis: Dim, *names: str) -> list[Buffer]:
    """Declare int32 inputs along one axis."""
    return [t.input(name, (axis,), "int32") for name in names]
