"""The host's copy of the sequence state, and the changes that make the device's equal to it.

Whoever writes here writes the copy; what differs from before is sent with the next step. A step
moves ``last_token``, ``num_computed`` and ``done`` on by itself. The copy follows ``num_computed``
as steps are submitted; of the other two it knows nothing, and sends them whenever they are written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cugraphs.kernel import Array
from cugraphs.kernels.adjust_logits import PROMPT_BIT
from cugraphs.sampling_params import SamplingParams
from cugraphs.sequence_state import SequenceState
from cugraphs.step_state import Chunk

_MOVED_BY_STEPS = ("last_token", "num_computed", "done")
_NOTHING = {"bias_ids": -1, "bias_values": 0, "stop_ids": -1, "block_tables": 0}  # list entries


class StateMirror:
    """What the device's state will be once all changes are applied."""

    def __init__(self, state: SequenceState) -> None:
        """Every slot asks for nothing; the device must be told :meth:`take_all`."""
        self._state = state
        self._words = np.zeros(state.words.shape, np.int32)
        self.fields = state.views(self._words)
        self._widest_stop_ids = 0  # entries of stop_ids that any sequence has used
        self.start_over()

    def start_over(self) -> None:
        """Every slot is empty; the device must be told :meth:`take_all`."""
        self._words[:] = 0
        for name in ("stop_ids", "bias_ids", "num_logprobs"):
            self.fields[name][:] = -1
        self._changed: set[int] = set()
        # How many entries of each list hold something, by slot. Most use few of many.
        self._lengths = {name: np.zeros(self._state.num_slots, np.int32) for name in _NOTHING}

    @property
    def num_changes(self) -> int:
        """Words that the device does not know yet."""
        return len(self._changed)

    def set(self, name: str, slot: int, values: float | Array) -> None:
        """Write one slot's entry of a field; an array may be the beginning of a list."""
        row = self.fields[name][slot : slot + 1].reshape(-1)
        first = self._state.first_word(name) + slot * len(row)
        if isinstance(values, np.ndarray):
            row = row[: len(values)]
        before = row.view(np.int32).copy()
        row[...] = values
        if name in _MOVED_BY_STEPS:  # the device's is not what it was here
            self._changed.add(first)
            return
        changed = np.flatnonzero(row.view(np.int32) != before)
        if len(changed):
            self._changed.update((changed + first).tolist())

    def set_blocks(self, slots: Array, indices: Array, blocks: Array) -> None:
        """Write entries of the block tables, int32 [n] each."""
        table = self.fields["block_tables"]
        table[slots, indices] = blocks
        self._lengths["block_tables"][slots] = indices + 1  # which rise for one slot
        words = slots * table.shape[1] + indices + self._state.first_word("block_tables")
        self._changed.update(words.tolist())

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

    def take_all(self) -> Array:
        """All words, int32 [words], after which there are no changes."""
        self._changed = set()
        return self._words

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
            self._set_word(name, slot, value)
        self.set("seeds", slot, np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32))
        bias = params.logit_bias or {}
        self._set_list("bias_ids", slot, list(bias.keys()))
        self._set_list("bias_values", slot, list(bias.values()))
        self._set_list("stop_ids", slot, stop_token_ids)
        self._widest_stop_ids = max(self._widest_stop_ids, len(stop_token_ids))

    def write_table(self, slot: int, blocks: Sequence[int] | Array) -> None:
        """Set a slot's whole block table."""
        self._set_list("block_tables", slot, blocks)

    def begin_chunk(self, chunk: Chunk) -> None:
        """Make the chunk's slot stand where the chunk begins."""
        if self.fields["num_computed"][chunk.slot] != chunk.start:
            self.set("num_computed", chunk.slot, chunk.start)

    def place(self, chunk: Chunk) -> None:
        """As :meth:`begin_chunk`, for a chunk that brings all that its slot is to hold of it."""
        self.set("num_computed", chunk.slot, chunk.start)
        self.set("done", chunk.slot, 0)
        self.set("num_logprobs", chunk.slot, chunk.num_logprobs)
        self.write_table(chunk.slot, chunk.block_table)
        if chunk.is_decode:
            self.set("last_token", chunk.slot, chunk.token_ids[0])

    def advance(self, slots: Array, positions: Array, num_steps: int) -> None:
        """Follow what submitted steps do to the sequences that decode in them.

        Args:
            slots: int64 [n].
            positions: int64 [n]; where the first of their sampled tokens will stand.
            num_steps: one after the other; a sequence stops at its limit.
        """
        ahead = positions
        if num_steps > 1:
            limits = self.fields["end_position"].take(slots)
            ahead = np.minimum(positions + (num_steps - 1), limits - 1)
        self.fields["num_computed"][slots] = ahead

    def advance_chunk(self, chunk: Chunk) -> None:
        """Follow what a submitted step does to a sequence whose chunk samples."""
        self.fields["num_computed"][chunk.slot] = chunk.start + len(chunk.token_ids)

    def ends(self, slots: Array, token_ids: Array, positions: Array) -> Array:
        """Which sequences the device has marked as done, by the rule of its kernel ``advance``.

        Args:
            slots: int64 [n]; of the sequences, none of them done before.
            token_ids: int32 [n]; sampled.
            positions: int64 [n]; where those tokens stand.

        Returns:
            bool [n].
        """
        limits = self.fields["end_position"].take(slots)
        ends: Array = (positions + 1 >= limits) & (limits > 0)
        stops = np.zeros(len(slots), np.bool_)
        for index in range(self._widest_stop_ids):
            stops |= self.fields["stop_ids"][:, index].take(slots) == token_ids
        if stops.any():
            ends |= stops & (positions >= self.fields["min_position"].take(slots))
        return ends

    def _set_word(self, name: str, slot: int, value: float) -> None:
        """As :meth:`set`, for a field of one word a slot, which takes most of a new sequence."""
        field = self.fields[name]
        before = field[slot]
        field[slot] = value
        if field[slot] != before or name in _MOVED_BY_STEPS:
            self._changed.add(self._state.first_word(name) + slot)

    def _set_list(self, name: str, slot: int, values: Sequence[float] | Array) -> None:
        """Write the beginning of a list, and nothing behind it."""
        lengths = self._lengths[name]
        count = max(len(values), int(lengths[slot]))
        lengths[slot] = len(values)
        if count:
            row = np.full(count, _NOTHING[name], self.fields[name].dtype)
            row[: len(values)] = values
            self.set(name, slot, row)


def token_counts(
    vocab_size: int, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int] | Array
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
