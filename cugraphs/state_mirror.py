"""The host's copy of the sequence state, and the changes that make the device's equal to it.

Whoever writes here writes the copy; what differs from before is sent with the next step. A step
moves ``last_token``, ``num_computed`` and ``done`` on by itself. The copy knows nothing of that: of
these three it sends whatever is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np

from cugraphs.kernel import Array
from cugraphs.kernels.adjust_logits import PROMPT_BIT
from cugraphs.sampling_params import SamplingParams
from cugraphs.sequence_state import SequenceState
from cugraphs.step_state import Chunk

_MOVED_BY_STEPS = ("last_token", "num_computed", "done")
_NO_LIMIT = np.iinfo(np.int64).max
_NOTHING = {"bias_ids": -1, "bias_values": 0, "stop_ids": -1}  # entries of lists


class _SlotWords(NamedTuple):
    """What a new sequence sets in the fields of one word a slot; and the two words of its seed."""

    done: int
    end_position: int
    num_logprobs: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    sample_index: int
    count_tokens: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    min_position: int
    seed_low: int
    seed_high: int


class StateMirror:
    """What the device's state will be once all changes are applied."""

    def __init__(self, state: SequenceState) -> None:
        """Every slot asks for nothing; the device must be told :meth:`take_all`."""
        self._state = state
        self._words = np.zeros(state.words.shape, np.int32)
        self.fields = state.views(self._words)
        self._widest_stop_ids = 0  # entries of stop_ids that any sequence has used
        *names, _, _ = _SlotWords._fields
        slots, seeds = np.arange(state.num_slots), state.first_word("seeds")
        width = self.fields["block_tables"].shape[1]
        self._tables = state.first_word("block_tables") + slots * width  # where each one begins
        # Of each slot: where the words are that a new sequence sets; and how they are packed.
        starts = [state.first_word(name) + slots for name in names]
        starts += [seeds + 2 * slots, seeds + 2 * slots + 1]
        self._slot_words = np.stack(starts, axis=1)
        codes = [self.fields[name].dtype.char for name in names]
        self._pack = Struct("=" + "".join(codes) + "II").pack
        self.start_over()

    def start_over(self) -> None:
        """Every slot is empty; the device must be told :meth:`take_all`."""
        self._words[:] = 0
        for name in ("stop_ids", "bias_ids", "num_logprobs"):
            self.fields[name][:] = -1
        # Where the last token of each may stand: end_position is 0 where there is no limit.
        self._last_positions = np.full(self._state.num_slots, _NO_LIMIT)
        self._changed: list[Array] = []  # the places of words, int64; one may come several times
        # How many entries of each list hold something, by slot. Most use few of many.
        self._lengths = {name: [0] * self._state.num_slots for name in _NOTHING}

    @property
    def num_changes(self) -> int:
        """Words that the device does not know yet, each as often as it was written."""
        return sum(map(len, self._changed))

    def set(self, name: str, slot: int, values: float | Array) -> None:
        """Write one slot's entry of a field; an array may be the beginning of a list."""
        field, first = self.fields[name], self._state.first_word(name)
        if name in _MOVED_BY_STEPS:  # the device's is not what it was here
            field[slot] = values
            self._changed.append(np.array([first + slot]))
            return
        first += slot * field[slot].size
        row = np.array(values, field.dtype).reshape(-1)
        self._write(np.arange(first, first + len(row)), row.view(np.int32))

    def set_blocks(self, slots: Array, indices: Array, blocks: Array) -> None:
        """Write new entries of the block tables, int64 [n] each."""
        words = self._tables.take(slots) + indices
        self._words[words] = blocks
        self._changed.append(words)

    def take(self, changes: Array) -> int:
        """Move as many changes as fit into ``changes``, int32 [n, 2]: (word, value), or -1.

        Returns:
            How many these were.
        """
        if not self._changed:
            changes[:] = -1
            return 0
        waiting = np.concatenate(self._changed)
        taken, left = waiting[: len(changes)], waiting[len(changes) :]
        self._changed = [left] if len(left) else []
        changes[: len(taken), 0] = taken
        changes[: len(taken), 1] = self._words[taken]
        changes[len(taken) :] = -1
        return len(taken)

    def take_all(self) -> Array:
        """All words, int32 [words], after which there are no changes."""
        self._changed = []
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
        values = _SlotWords(
            done=0,
            end_position=end_position,
            num_logprobs=-1 if params.logprobs is None else params.logprobs,
            temperature=0.0 if params.is_greedy else params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            sample_index=sample_index,
            count_tokens=penalised,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            min_position=prompt_length + params.min_tokens if params.min_tokens else 0,
            seed_low=seed & 0xFFFFFFFF,
            seed_high=seed >> 32,
        )
        words = self._slot_words[slot]
        self._write(words, np.frombuffer(self._pack(*values), np.int32))
        self._changed.append(words[:1])  # "done", which the steps move
        self._last_positions[slot] = end_position - 1 if end_position else _NO_LIMIT
        bias = params.logit_bias or {}
        self._set_list("bias_ids", slot, list(bias.keys()))
        self._set_list("bias_values", slot, list(bias.values()))
        self._set_list("stop_ids", slot, stop_token_ids)
        self._widest_stop_ids = max(self._widest_stop_ids, len(stop_token_ids))

    def write_table(self, slot: int, blocks: Sequence[int] | Array) -> None:
        """Set a slot's whole block table."""
        table = self.fields["block_tables"][slot]
        first_zero = int(table.argmin())
        held = len(table) if table[first_zero] else first_zero
        row = np.zeros(max(len(blocks), held), np.int32)
        row[: len(blocks)] = blocks
        changed = (table[: len(row)] != row).nonzero()[0]
        table[: len(row)] = row
        self._changed.append(changed + self._tables[slot])

    def begin_chunk(self, chunk: Chunk) -> None:
        """Make the chunk's slot stand where the chunk begins."""
        self.set("num_computed", chunk.slot, chunk.start)

    def place(self, chunk: Chunk) -> None:
        """As :meth:`begin_chunk`, for a chunk that brings all that its slot is to hold of it."""
        self.set("num_computed", chunk.slot, chunk.start)
        self.set("done", chunk.slot, 0)
        self.set("num_logprobs", chunk.slot, chunk.num_logprobs)
        self.write_table(chunk.slot, chunk.block_table)
        if chunk.is_decode:
            self.set("last_token", chunk.slot, chunk.token_ids[0])

    def ends(self, slots: Array, token_ids: Array, positions: Array) -> Array:
        """Which sequences the device has marked as done, by the rule of its kernel ``advance``.

        Args:
            slots: int64 [n]; of the sequences, none of them done before.
            token_ids: int32 [n]; sampled.
            positions: int64 [n]; where those tokens stand.

        Returns:
            bool [n].
        """
        ends: Array = positions >= self._last_positions.take(slots)
        for index in range(self._widest_stop_ids):
            stops = self.fields["stop_ids"][:, index].take(slots) == token_ids
            if np.count_nonzero(stops):
                ends |= stops & (positions >= self.fields["min_position"].take(slots))
        return ends

    def _set_list(self, name: str, slot: int, values: Sequence[float] | Array) -> None:
        """Write the beginning of a list, and nothing behind it."""
        lengths = self._lengths[name]
        count = max(len(values), lengths[slot])
        if not count:
            return
        lengths[slot], field = len(values), self.fields[name]
        row = np.full(count, _NOTHING[name], field.dtype)
        row[: len(values)] = values
        first = self._state.first_word(name) + slot * field.shape[1]
        self._write(np.arange(first, first + count), row.view(np.int32))

    def _write(self, words: Array, values: Array) -> None:
        """Write words, int64 [n], and note which of them differ from before."""
        changed = words[self._words[words] != values]
        self._words[words] = values
        if len(changed):
            self._changed.append(changed)


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
