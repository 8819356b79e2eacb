"""What the sampling kernels know of each running sequence: STATE arrays indexed by its slot.

The host writes a slot when a sequence is admitted; the kernels read it through ``row_ids``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cugraphs.kernel import Array, ArrayType
from cugraphs.kernels.adjust_logits import PROMPT_BIT
from cugraphs.program import Buffer
from cugraphs.sampling_params import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, SamplingParams
from cugraphs.trace import Tracer

MAX_EOS_TOKEN_IDS = 16


@dataclass(frozen=True)
class SamplingBuffers:
    """The STATE buffers of one program; their meaning is in the kernels that read them."""

    token_counts: Buffer
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


class SamplingState:
    """The sampling state of ``max_num_seqs`` slots: its arrays' types, by buffer name."""

    def __init__(self, max_num_seqs: int, vocab_size: int) -> None:
        """Describe the state."""
        slots = (max_num_seqs,)
        bias = (max_num_seqs, MAX_LOGIT_BIAS)
        self.types: dict[str, ArrayType] = {
            "token_counts": ArrayType((max_num_seqs, vocab_size), "int32"),
            "temperature": ArrayType(slots, "float32"),
            "top_k": ArrayType(slots, "int32"),
            "top_p": ArrayType(slots, "float32"),
            "min_p": ArrayType(slots, "float32"),
            "seeds": ArrayType((max_num_seqs, 2), "uint32"),
            "sample_index": ArrayType(slots, "int32"),
            "count_tokens": ArrayType(slots, "int32"),
            "repetition_penalty": ArrayType(slots, "float32"),
            "presence_penalty": ArrayType(slots, "float32"),
            "frequency_penalty": ArrayType(slots, "float32"),
            "bias_ids": ArrayType(bias, "int32"),
            "bias_values": ArrayType(bias, "float32"),
            "stop_ids": ArrayType((max_num_seqs, MAX_STOP_TOKEN_IDS + MAX_EOS_TOKEN_IDS), "int32"),
            "min_position": ArrayType(slots, "int32"),
        }

    def declare(self, tracer: Tracer) -> SamplingBuffers:
        """Declare the state in a trace."""
        return SamplingBuffers(
            **{name: tracer.state(name, t.shape, t.dtype) for name, t in self.types.items()}
        )


def write_slot(
    state: Mapping[str, Array],
    slot: int,
    params: SamplingParams,
    *,
    seed: int,
    sample_index: int,
    stop_token_ids: Sequence[int],
    prompt_token_ids: Sequence[int],
    output_token_ids: Sequence[int],
) -> None:
    """Set everything that the kernels know of one sequence.

    Args:
        state: the arrays, by name.
        slot: of the sequence.
        params: its sampling parameters.
        seed: 64 bits, the key of its random numbers.
        sample_index: which of the request's ``n`` samples it is.
        stop_token_ids: what may not be sampled before ``min_tokens`` tokens are generated.
        prompt_token_ids: of the request.
        output_token_ids: already generated (after a preemption).
    """
    scalars = {
        "temperature": 0.0 if params.is_greedy else params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "sample_index": sample_index,
        "repetition_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "min_position": len(prompt_token_ids) + params.min_tokens if params.min_tokens else 0,
    }
    for name, value in scalars.items():
        state[name][slot] = value
    state["seeds"][slot] = (seed & 0xFFFFFFFF, seed >> 32)
    bias = params.logit_bias or {}
    state["bias_ids"][slot] = -1
    state["bias_ids"][slot, : len(bias)] = list(bias.keys())
    state["bias_values"][slot, : len(bias)] = list(bias.values())
    state["stop_ids"][slot] = -1
    state["stop_ids"][slot, : len(stop_token_ids)] = list(stop_token_ids)
    penalties = (params.presence_penalty, params.frequency_penalty, params.repetition_penalty - 1)
    state["count_tokens"][slot] = any(penalties)
    if any(penalties):
        counts = state["token_counts"][slot]
        counts[:] = 0
        np.add.at(counts, np.array(output_token_ids, np.intp), 1)
        counts[np.array(prompt_token_ids, np.intp)] |= PROMPT_BIT
