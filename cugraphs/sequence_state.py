"""What a step knows of each running sequence: STATE arrays indexed by its slot.

Every field is 32 bits wide and all of them lie in one allocation, so the host can send any change
as (word, value). The step itself moves `last_token`, `num_computed` and `done` on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from cugraphs.arena import Arena
from cugraphs.kernel import Array, ArrayType
from cugraphs.program import Buffer
from cugraphs.sampling_params import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS
from cugraphs.trace import Tracer

MAX_EOS_TOKEN_IDS = 16
WORDS = "state_words"  # all fields but token_counts, as int32


@dataclass(frozen=True)
class SequenceBuffers:
    """The STATE buffers of one program. Sampling fields: see the kernels that read them.

    Args:
        state_words: int32 [words]; all the others but ``token_counts``, for ``apply_changes``.
        token_counts: int32 [slots, vocab_size].
        last_token: int32 [slots]; the newest token, which is not in the cache yet.
        num_computed: int32 [slots]; tokens in the cache.
        done: int32 [slots]; 1 once the sequence has ended: its row is dead.
        end_position: int32 [slots]; the longest length of the sequence; 0 is no limit.
        block_tables: int32 [slots, max_blocks]; 0 after the last block.
        num_logprobs: int32 [slots]; likeliest tokens wanted beside the sampled one; -1 wants none.
    """

    state_words: Buffer
    token_counts: Buffer
    last_token: Buffer
    num_computed: Buffer
    done: Buffer
    end_position: Buffer
    block_tables: Buffer
    num_logprobs: Buffer
    temperature: Buffer
    top_k: Buffer
    top_p: Buffer
    min_p: Buffer
    seeds: Buffer
    sample_index: Buffer
    count_tokens: Buffer
    repetition_penalty: Buffer
    presence_penalty: Buffer
    frequency_penalty: Buffer
    bias_ids: Buffer
    bias_values: Buffer
    stop_ids: Buffer
    min_position: Buffer


class SequenceState:
    """Types and places of the state of ``max_num_seqs`` slots."""

    def __init__(self, max_num_seqs: int, vocab_size: int, max_blocks: int) -> None:
        """Lay out the state.

        Args:
            max_num_seqs: slots.
            vocab_size: of the model.
            max_blocks: width of a block table.
        """
        self.num_slots = max_num_seqs
        wide = {
            "block_tables": max_blocks,
            "seeds": 2,
            "bias_ids": MAX_LOGIT_BIAS,
            "bias_values": MAX_LOGIT_BIAS,
            "stop_ids": MAX_STOP_TOKEN_IDS + MAX_EOS_TOKEN_IDS,
        }
        floats = {
            "temperature",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "bias_values",
        }
        self.fields: dict[str, ArrayType] = {}
        self._layout = Arena()
        for field in fields(SequenceBuffers):
            if field.name in (WORDS, "token_counts"):
                continue
            shape = (max_num_seqs, *((wide[field.name],) if field.name in wide else ()))
            dtype = "float32" if field.name in floats else "int32"
            self.fields[field.name] = ArrayType(shape, "uint32" if field.name == "seeds" else dtype)
            self._layout.add(field.name, self.fields[field.name].nbytes)
        self.words = ArrayType((self._layout.nbytes // 4,), "int32")
        self.token_counts = ArrayType((max_num_seqs, vocab_size), "int32")

    @property
    def nbytes(self) -> int:
        """Bytes of the state."""
        return self.words.nbytes + self.token_counts.nbytes

    def first_word(self, name: str) -> int:
        """Where a field begins in ``state_words``."""
        return self._layout.regions[name].offset // 4

    def views(self, words: Array) -> dict[str, Array]:
        """The fields as arrays over ``words``, int32 [words]."""
        found = {}
        for name, type_ in self.fields.items():
            begin, size = self.first_word(name), type_.nbytes // 4
            found[name] = words[begin : begin + size].view(type_.dtype).reshape(type_.shape)
        return found

    def allocate(self, zero_bytes: Callable[[int], Array]) -> dict[str, Array]:
        """An array of the device for every STATE buffer, all zero."""
        words = zero_bytes(self.words.nbytes).view("int32")
        counts = zero_bytes(self.token_counts.nbytes).view("int32")
        arrays = {WORDS: words, "token_counts": counts.reshape(self.token_counts.shape)}
        return arrays | self.views(words)

    def declare(self, tracer: Tracer) -> SequenceBuffers:
        """Declare the state in a trace."""
        types = {WORDS: self.words, "token_counts": self.token_counts, **self.fields}
        return SequenceBuffers(
            **{name: tracer.state(name, t.shape, t.dtype) for name, t in types.items()}
        )
