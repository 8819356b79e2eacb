"""The host's copy of the sequence state, and the changes that make the device's equal to it.

Whoever writes here writes the copy; what differs from before is sent with the next step. After a
step the copy moves on as the device's state did, by the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cugraphs.kernel import Array
from cugraphs.kernels.adjust_logits import PROMPT_BIT
from cugraphs.kernels.advance import append_tokens
from cugraphs.sampling_params import SamplingParams
from cugraphs.sequence_state import SequenceState
from cugraphs.step_state import Chunk


class StateMirror:
    """What the device's state will be once all changes are applied."""

    def __init__(self, state: SequenceState) -> None:
        """Start as the device does, all zero, with changes that make every slot ask for nothing."""
        self._state = state
        self._words = np.zeros(state.words.shape, np.int32)
        self.fields = state.views(self._words)
        self._changed: set[int] = set()
        # The block table that each slot was given last, and how long it was then.
        self._tables: list[tuple[Sequence[int], int]] = [((), 0)] * state.num_slots
        for slot in range(state.num_slots):
            self.set("stop_ids", slot, -1)
            self.set("bias_ids", slot, -1)
            self.set("num_logprobs", slot, -1)

    @property
    def num_changes(self) -> int:
        """Words that the device does not know yet."""
        return len(self._changed)

    def set(self, name: str, slot: int, values: float | Array, begin: int = 0) -> None:
        """Write one slot's entry of a field, of a list from position ``begin`` on."""
        row = self.fields[name][slot : slot + 1].reshape(-1)
        part = row[begin : begin + values.size] if isinstance(values, np.ndarray) else row[begin:]
        before = part.view(np.int32).copy()
        part[...] = values
        changed = np.flatnonzero(part.view(np.int32) != before)
        if len(changed):
            first = self._state.first_word(name) + slot * len(row) + begin
            self._changed.update((changed + first).tolist())

    def take(self, changes: Array) -> None:
        """Move as many changes as fit into ``changes``, int32 [n, 2]: (word, value), or -1."""
        if len(self._changed) <= len(changes):
            taken = [*self._changed]
            self._changed = set()  # a set that was large is searched through at every pop
        else:
            taken = [self._changed.pop() for _ in range(len(changes))]
        changes[: len(taken), 0] = taken
        changes[: len(taken), 1] = self._words[taken]
        changes[len(taken) :, 0] = -1

    def write_slot(
        self,
        slot: int,
        params: SamplingParams,
        *,
        seed: int,
        sample_index: int,
        stop_token_ids: Sequence[int],
        prompt_length: int,
        end_position: int = 0,
    ) -> None:
        """Set everything that the kernels know of one new sequence, but its tokens and blocks.

        Args:
            slot: of the sequence.
            params: its sampling parameters.
            seed: 64 bits, the key of its random numbers.
            sample_index: which of the request's ``n`` samples it is.
            stop_token_ids: what ends it, and may not be sampled before ``min_tokens`` tokens.
            prompt_length: tokens of its prompt.
            end_position: tokens of prompt and answer at most; 0 is no limit.
        """
        penalties = (params.presence_penalty, params.frequency_penalty)
        penalised = any(penalties) or params.repetition_penalty != 1
        scalars: dict[str, float] = {
            "done": 0,
            "end_position": end_position,
            "num_logprobs": -1 if params.logprobs is None else params.logprobs,
            "temperature": 0.0 if params.is_greedy else params.temperature,
            "top_k": params.top_k,
            "top_p": params.top_p,
            "min_p": params.min_p,
            "sample_index": sample_index,
            "count_tokens": penalised,
            "repetition_penalty": params.repetition_penalty,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "min_position": prompt_length + params.min_tokens if params.min_tokens else 0,
        }
        for name, value in scalars.items():
            self.set(name, slot, value)
        self.set("seeds", slot, np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32))
        bias = params.logit_bias or {}
        self._set_list("bias_ids", slot, list(bias.keys()), -1)
        self._set_list("bias_values", slot, list(bias.values()), 0)
        self._set_list("stop_ids", slot, stop_token_ids, -1)

    def place(self, chunks: Sequence[Chunk]) -> None:
        """Make every chunk's slot stand where the chunk begins, with its blocks."""
        slots = np.array([chunk.slot for chunk in chunks], np.intp)
        starts = np.array([chunk.start for chunk in chunks], np.int32)
        for index in np.flatnonzero(self.fields["num_computed"][slots] != starts).tolist():
            self.set("num_computed", chunks[index].slot, chunks[index].start)
        for index in np.flatnonzero(self.fields["done"][slots]).tolist():
            self.set("done", chunks[index].slot, 0)
        wanted = np.array([chunk.num_logprobs for chunk in chunks], np.int32)
        for index in np.flatnonzero(self.fields["num_logprobs"][slots] != wanted).tolist():
            self.set("num_logprobs", chunks[index].slot, chunks[index].num_logprobs)
        newest = np.array([chunk.token_ids[-1] for chunk in chunks], np.int32)
        for index in np.flatnonzero(self.fields["last_token"][slots] != newest).tolist():
            if chunks[index].is_decode:
                self.set("last_token", chunks[index].slot, chunks[index].token_ids[0])
        for chunk in chunks:
            table, length = self._tables[chunk.slot]
            if table is not chunk.block_table or length > len(table):
                self._set_list("block_tables", chunk.slot, chunk.block_table, 0)
            elif length < len(table):  # a table is wide: only what was appended is looked at
                appended = np.array(table[length:], np.int32)
                self.set("block_tables", chunk.slot, appended, begin=length)
            self._tables[chunk.slot] = (chunk.block_table, len(chunk.block_table))

    def advance(self, token_ids: Array, row_ids: Array, sample_positions: Array) -> None:
        """Move on as the device did at the end of a step; arguments as of ``append_tokens``."""
        f = self.fields
        moved = (f["last_token"], f["num_computed"], f["done"])
        rules = (f["stop_ids"], f["min_position"], f["end_position"])
        append_tokens(*moved, token_ids, row_ids, sample_positions, *rules)

    def _set_list(self, name: str, slot: int, values: Sequence[float], rest: float) -> None:
        row = np.full(self.fields[name].shape[1], rest, self.fields[name].dtype)
        row[: len(values)] = values
        self.set(name, slot, row)


def token_counts(
    vocab_size: int, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]
) -> Array:
    """How often a sequence holds each token, as the penalties' kernels count: int32 [vocab_size].

    Args:
        vocab_size: of the model.
        prompt_token_ids: of the request; they set a bit.
        output_token_ids: already generated (after a preemption); they are counted.
    """
    counts = np.zeros(vocab_size, np.int32)
    np.add.at(counts, np.array(output_token_ids, np.intp), 1)
    counts[np.array(prompt_token_ids, np.intp)] |= PROMPT_BIT
    return counts
