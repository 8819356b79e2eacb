"""The fixed-address inputs of a step: their declaration, and how a batch is written into them.

Rows beyond the batch are dead rows, reset at every step: token 0, position 0, slot -1, length 0,
block 0, row id -1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cugraphs.kernel import Array, Dim
from cugraphs.program import Buffer
from cugraphs.trace import Tracer


@dataclass(frozen=True)
class StepInputs:
    """The INPUT buffers of one program.

    A decode step has one row per sequence, and samples from each. A mixed step has the tokens of
    several sequences one after the other, and samples from the rows in ``logits_indices``.

    Args:
        token_ids: int32 [rows]; 0 in dead rows.
        positions: int32 [rows]; where the token stands in its sequence.
        slot_mapping: int32 [rows]; block * block_size + offset, where K and V go; -1 in dead rows.
        block_tables: int32 [seqs, max_blocks]; in a decode step ``seqs`` is ``rows``.
        seq_lens: int32 [seqs]; tokens in the cache, this step's included; 0 in dead rows.
        row_ids: int32 [sampled]; the sequence's slot in the sampling state; -1 where no token is
            sampled.
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
    block_tables: Buffer
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


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of one sequence that run in one step.

    Args:
        token_ids: the tokens, the first at position ``start``.
        start: tokens of the sequence that are in the cache already.
        block_table: the sequence's blocks, enough for the chunk.
        slot: of the sequence in the sampling state.
        samples: whether the last row samples the sequence's next token.
        num_logprobs: likeliest tokens to report beside the sampled one; -1 reports none at all.
        prompt_targets: for each of the first rows, the known next token whose log-probability is
            wanted (prompt_logprobs).
        num_prompt_logprobs: likeliest tokens to report beside those; -1 reports none at all.
    """

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
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
        """Whether one row of a decode step can run it."""
        return len(self.token_ids) == 1 and self.samples and not self.prompt_targets


def declare_decode_inputs(tracer: Tracer, max_rows: int, max_blocks: int) -> StepInputs:
    """Declare the inputs of a decode step over the axis ``rows``."""
    rows = tracer.dim("rows", max_rows)
    return StepInputs(
        **_declare(tracer, rows, "token_ids", "positions", "slot_mapping"),
        block_tables=tracer.input("block_tables", (rows, max_blocks), "int32"),
        **_declare(tracer, rows, "seq_lens"),
        **_declare(tracer, rows, "row_ids", "sample_positions", "target_ids", "num_logprobs"),
    )


def declare_mixed_inputs(
    tracer: Tracer, max_tokens: int, max_seqs: int, max_logits: int, max_blocks: int
) -> StepInputs:
    """Declare the inputs of a mixed step over the axes ``tokens``, ``seqs`` and ``logits``."""
    tokens = tracer.dim("tokens", max_tokens)
    seqs = tracer.dim("seqs", max_seqs)
    logits = tracer.dim("logits", max_logits)
    return StepInputs(
        **_declare(tracer, tokens, "token_ids", "positions", "slot_mapping"),
        block_tables=tracer.input("block_tables", (seqs, max_blocks), "int32"),
        **_declare(tracer, seqs, "seq_lens"),
        **_declare(tracer, seqs + 1, "query_start_loc"),
        **_declare(tracer, logits, "row_ids", "sample_positions", "target_ids", "num_logprobs"),
        **_declare(tracer, logits, "logits_indices"),
    )


def fill_decode(inputs: Mapping[str, Array], chunks: Sequence[Chunk], block_size: int) -> None:
    """Write decode chunks into the first rows, and reset all others to dead rows."""
    live = len(chunks)
    for name, dead in _DEAD_ROW.items():
        inputs[name][live:] = dead
    positions = np.array([chunk.start for chunk in chunks], np.int32)
    inputs["token_ids"][:live] = [chunk.token_ids[0] for chunk in chunks]
    inputs["positions"][:live] = positions
    inputs["seq_lens"][:live] = positions + 1
    inputs["row_ids"][:live] = [chunk.slot for chunk in chunks]
    inputs["sample_positions"][:live] = positions + 1
    inputs["target_ids"][:live] = -1
    inputs["num_logprobs"][:live] = [chunk.num_logprobs for chunk in chunks]
    tables = inputs["block_tables"]
    for row, chunk in enumerate(chunks):
        _fill_table(tables[row], chunk.block_table)
    blocks = tables[np.arange(live), positions // block_size]
    inputs["slot_mapping"][:live] = blocks * block_size + positions % block_size


def fill_mixed(inputs: Mapping[str, Array], chunks: Sequence[Chunk], block_size: int) -> None:
    """Write the chunks one after the other; the inputs are bound to exactly their sizes."""
    inputs["query_start_loc"][0] = 0
    begin, logits_begin = 0, 0
    for seq, chunk in enumerate(chunks):
        count = len(chunk.token_ids)
        rows = slice(begin, begin + count)
        positions = np.arange(chunk.start, chunk.start + count, dtype=np.int32)
        table = inputs["block_tables"][seq]
        _fill_table(table, chunk.block_table)
        inputs["token_ids"][rows] = chunk.token_ids
        inputs["positions"][rows] = positions
        inputs["slot_mapping"][rows] = (
            table[positions // block_size] * block_size + positions % block_size
        )
        inputs["seq_lens"][seq] = chunk.start + count
        inputs["query_start_loc"][seq + 1] = begin + count

        targets = len(chunk.prompt_targets)
        known = slice(logits_begin, logits_begin + targets)
        inputs["logits_indices"][known] = range(begin, begin + targets)
        inputs["row_ids"][known] = -1
        inputs["sample_positions"][known] = 0
        inputs["target_ids"][known] = chunk.prompt_targets
        inputs["num_logprobs"][known] = chunk.num_prompt_logprobs
        if chunk.samples:
            last = logits_begin + targets
            inputs["logits_indices"][last] = begin + count - 1
            inputs["row_ids"][last] = chunk.slot
            inputs["sample_positions"][last] = chunk.start + count
            inputs["target_ids"][last] = -1
            inputs["num_logprobs"][last] = chunk.num_logprobs
        begin += count
        logits_begin += chunk.num_logits


_DEAD_ROW = {
    "token_ids": 0,
    "positions": 0,
    "slot_mapping": -1,
    "block_tables": 0,
    "seq_lens": 0,
    "row_ids": -1,
    "sample_positions": 0,
    "target_ids": -1,
    "num_logprobs": -1,
}


def _declare(tracer: Tracer, axis: Dim, *names: str) -> dict[str, Buffer]:
    """Declare int32 inputs along one axis."""
    return {name: tracer.input(name, (axis,), "int32") for name in names}


def _fill_table(table: Array, block_table: Sequence[int]) -> None:
    table[: len(block_table)] = block_table
    table[len(block_table) :] = 0
