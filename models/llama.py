"""The Llama step, linear, in execution order."""

from __future__ import annotations

from cugraphs.kernels import (
    ADD,
    ATTENTION_PARTS,
    EMBEDDING,
    LINEAR,
    LOGPROBS,
    PAGED_DECODE_ATTENTION,
    PAGED_PREFILL_ATTENTION,
    RMS_NORM,
    ROPE_APPEND,
    SAMPLE,
    SILU_AND_MUL,
)
from cugraphs.kernels.attention_parts import PART_WORDS
from cugraphs.kv_cache import KVCacheShape
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.weights import EMBEDDING_WEIGHT, HEAD_WEIGHT, ROPE_COS_SIN, weight_table
from cugraphs.program import Buffer
from cugraphs.sampling_params import MAX_LOGPROBS
from cugraphs.sequence_state import SequenceBuffers
from cugraphs.step_state import StepInputs, StepOutputs
from cugraphs.trace import Tracer


class Llama:
    """Records the steps of one Llama; holds no arrays."""

    def __init__(self, config: LlamaConfig, dtype: str, *, batch_invariant: bool = False) -> None:
        """A model that computes in ``dtype``.

        Args:
            config: sizes, RoPE and flags.
            dtype: of weights and activations; "float64" makes the step an oracle.
            batch_invariant: kernels compute every row as if it were alone, bit for bit.
        """
        self.config = config
        self.dtype = dtype
        self.batch_invariant = batch_invariant
        self.weights = weight_table(config)

    def step(
        self, t: Tracer, inputs: StepInputs, cache: KVCacheShape, state: SequenceBuffers
    ) -> StepOutputs:
        """Record one forward pass over the rows of ``inputs``.

        Without ``query_start_loc`` every row is the newest token of its own sequence (decode).
        With it the rows are chunks of sequences, one after the other (prefill, or both mixed).
        """
        c = self.config
        rope = t.weight(ROPE_COS_SIN, (cache.max_model_len, c.head_dim), "float32")
        hidden = t.call(EMBEDDING, inputs.token_ids, self._weight(t, EMBEDDING_WEIGHT))
        parts = self._parts(t, inputs)
        for i in range(c.num_hidden_layers):
            layer = f"model.layers.{i}"
            kv = cache.declare(t, i)
            x = self._norm(t, hidden, f"{layer}.input_layernorm")
            x = self._linear(t, x, f"{layer}.self_attn.qkv_proj")
            where = (rope, inputs.positions, inputs.slot_mapping)
            q = t.call(ROPE_APPEND, *kv, x, *where, q_size=c.q_size)
            x = self._attention(t, q, kv, inputs, state, parts)
            if i == c.num_hidden_layers - 1 and inputs.logits_indices is not None:
                # Of the other tokens only K and V were still wanted, and those are in the cache.
                hidden = t.call(EMBEDDING, inputs.logits_indices, hidden)
                x = t.call(EMBEDDING, inputs.logits_indices, x)
            x = self._linear(t, x, f"{layer}.self_attn.o_proj")
            hidden = t.call(ADD, hidden, x)
            x = self._norm(t, hidden, f"{layer}.post_attention_layernorm")
            x = self._linear(t, x, f"{layer}.mlp.gate_up_proj")
            x = t.call(SILU_AND_MUL, x)
            x = self._linear(t, x, f"{layer}.mlp.down_proj")
            hidden = t.call(ADD, hidden, x)
        x = self._norm(t, hidden, "model.norm")
        head = self._weight(t, EMBEDDING_WEIGHT if c.tie_word_embeddings else HEAD_WEIGHT)
        logits = t.call(LINEAR, x, head, batch_invariant=self.batch_invariant)
        return self._sample(t, logits, inputs, state)

    def _weight(self, t: Tracer, name: str) -> Buffer:
        return t.weight(name, self.weights[name].shape, self.dtype)

    def _norm(self, t: Tracer, x: Buffer, name: str) -> Buffer:
        return t.call(RMS_NORM, x, self._weight(t, f"{name}.weight"), eps=self.config.rms_norm_eps)

    def _linear(self, t: Tracer, x: Buffer, name: str) -> Buffer:
        names = [f"{name}.weight", f"{name}.bias"]
        operands = [self._weight(t, known) for known in names if known in self.weights]
        return t.call(LINEAR, x, *operands, batch_invariant=self.batch_invariant)

    def _parts(self, t: Tracer, inputs: StepInputs) -> tuple[Buffer, ...]:
        """What decode attention's blocks take, for all layers alike."""
        if inputs.query_start_loc is not None:
            return ()
        heads = {
            "heads": self.config.num_attention_heads,
            "kv_heads": self.config.num_key_value_heads,
        }
        attrs = {**heads, "part_words": PART_WORDS, "batch_invariant": self.batch_invariant}
        return t.call_tuple(ATTENTION_PARTS, inputs.slot_ids, inputs.seq_lens, **attrs)

    def _attention(
        self,
        t: Tracer,
        q: Buffer,
        kv: tuple[Buffer, Buffer],
        inputs: StepInputs,
        state: SequenceBuffers,
        parts: tuple[Buffer, ...],
    ) -> Buffer:
        attrs = {"scale": self.config.head_dim**-0.5, "batch_invariant": self.batch_invariant}
        tables = (state.block_tables, inputs.slot_ids, inputs.seq_lens)
        if inputs.query_start_loc is None:
            cut, arrivals = parts
            return t.call(PAGED_DECODE_ATTENTION, arrivals, q, *kv, *tables, cut, **attrs)
        return t.call(PAGED_PREFILL_ATTENTION, q, *kv, *tables, inputs.query_start_loc, **attrs)

    def _sample(
        self, t: Tracer, logits: Buffer, inputs: StepInputs, s: SequenceBuffers
    ) -> StepOutputs:
        rows = (inputs.row_ids, inputs.sample_positions)
        penalties = (s.repetition_penalty, s.presence_penalty, s.frequency_penalty)
        bias_and_stops = (s.bias_ids, s.bias_values, s.stop_ids, s.min_position)
        filters = (s.temperature, s.top_k, s.top_p, s.min_p)
        draw = (s.seeds, s.sample_index, s.count_tokens)
        asked = (*penalties, *bias_and_stops, *filters, *draw)
        token_ids = t.call(SAMPLE, s.token_counts, logits, *rows, *asked)
        wanted = (inputs.target_ids, inputs.num_logprobs)
        logprobs = t.call_tuple(LOGPROBS, logits, token_ids, *wanted, max_logprobs=MAX_LOGPROBS)
        return StepOutputs(logits, token_ids, *logprobs)
