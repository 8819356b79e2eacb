"""The fixed-address inputs of a step: their declaration, and how a batch is written into them.

Row counts: a decode step has one row per sequence, padded to a rung with dead rows (token 0,
position 0, slot -1, length 0, block 0). A mixed step has the tokens of several sequences one after
the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cugraphs.kernel import Array
from cugraphs.program import Buffer
from cugraphs.trace import Tracer


@dataclass(frozen=True)
class StepInputs:
    """The INPUT buffers of one program.

    Args:
        token_ids: int32 [rows]; 0 in dead rows.
        positions: int32 [rows]; where the token stands in its sequence.
        slot_mapping: int32 [rows]; block * block_size + offset, where K and V go; -1 in dead rows.
        block_tables: int32 [seqs, max_blocks]; in a decode step ``seqs`` is ``rows``.
        seq_lens: int32 [seqs]; tokens in the cache, this step's included; 0 in dead rows.
        query_start_loc: int32 [seqs + 1], only in a mixed step: sequence s owns rows
            ``query_start_loc[s]`` to ``query_start_loc[s + 1]``.
        logits_indices: int32 [logits], only in a mixed step: the rows to sample from.
    """

    token_ids: Buffer
    positions: Buffer
    slot_mapping: Buffer
    block_tables: Buffer
    seq_lens: Buffer
    query_start_loc: Buffer | None = None
    logits_indices: Buffer | None = None


@dataclass(frozen=True)
class Chunk:
    """``token_ids`` of one sequence to run in a step, the first at position ``start``."""

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    sample: bool  # whether the chunk reaches the sequence's end, so that its next token is wanted


def declare_decode_inputs(tracer: Tracer, max_rows: int, max_blocks: int) -> StepInputs:
    """Declare the inputs of a decode step over the axis ``rows``."""
    rows = tracer.dim("rows", max_rows)
    return StepInputs(
        token_ids=tracer.input("token_ids", (rows,), "int32"),
        positions=tracer.input("positions", (rows,), "int32"),
        slot_mapping=tracer.input("slot_mapping", (rows,), "int32"),
        block_tables=tracer.input("block_tables", (rows, max_blocks), "int32"),
        seq_lens=tracer.input("seq_lens", (rows,), "int32"),
    )


def declare_mixed_inputs(
    tracer: Tracer, max_tokens: int, max_seqs: int, max_logits: int, max_blocks: int
) -> StepInputs:
    """Declare the inputs of a mixed step over the axes ``tokens``, ``seqs`` and ``logits``."""
    tokens = tracer.dim("tokens", max_tokens)
    seqs = tracer.dim("seqs", max_seqs)
    logits = tracer.dim("logits", max_logits)
    return StepInputs(
        token_ids=tracer.input("token_ids", (tokens,), "int32"),
        positions=tracer.input("positions", (tokens,), "int32"),
        slot_mapping=tracer.input("slot_mapping", (tokens,), "int32"),
        block_tables=tracer.input("block_tables", (seqs, max_blocks), "int32"),
        seq_lens=tracer.input("seq_lens", (seqs,), "int32"),
        query_start_loc=tracer.input("query_start_loc", (seqs + 1,), "int32"),
        logits_indices=tracer.input("logits_indices", (logits,), "int32"),
    )


def fill_decode(inputs: Mapping[str, Array], chunks: Sequence[Chunk], block_size: int) -> None:
    """Write one-token chunks into the first rows, and reset all others to dead rows."""
    live = len(chunks)
    inputs["token_ids"][live:] = 0
    inputs["positions"][live:] = 0
    inputs["slot_mapping"][live:] = -1
    inputs["block_tables"][live:] = 0
    inputs["seq_lens"][live:] = 0
    if live:
        positions = np.array([chunk.start for chunk in chunks], np.int32)
        inputs["token_ids"][:live] = [chunk.token_ids[0] for chunk in chunks]
        inputs["positions"][:live] = positions
        inputs["seq_lens"][:live] = positions + 1
        for row, chunk in enumerate(chunks):
            _fill_table(inputs["block_tables"][row], chunk.block_table)
        blocks = inputs["block_tables"][np.arange(live), positions // block_size]
        inputs["slot_mapping"][:live] = blocks * block_size + positions % block_size


def fill_mixed(inputs: Mapping[str, Array], chunks: Sequence[Chunk], block_size: int) -> None:
    """Write the chunks one after the other; the inputs are bound to exactly their sizes."""
    inputs["query_start_loc"][0] = 0
    begin, sampled = 0, 0
    for seq, chunk in enumerate(chunks):
        count = len(chunk.token_ids)
        end = begin + count
        positions = np.arange(chunk.start, chunk.start + count, dtype=np.int32)
        table = inputs["block_tables"][seq]
        _fill_table(table, chunk.block_table)
        inputs["token_ids"][begin:end] = chunk.token_ids
        inputs["positions"][begin:end] = positions
        slots = table[positions // block_size] * block_size + positions % block_size
        inputs["slot_mapping"][begin:end] = slots
        inputs["seq_lens"][seq] = chunk.start + count
        inputs["query_start_loc"][seq + 1] = end
        if chunk.sample:
            inputs["logits_indices"][sampled] = end - 1
            sampled += 1
        begin = end


def _fill_table(table: Array, block_table: Sequence[int]) -> None:
    table[: len(block_table)] = block_table
    table[len(block_table) :] = 0
