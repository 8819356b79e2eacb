"""Which keys of a config.json change the computation of a Llama, and in a way not supported here.

Knows names and the values that mean "as in plain Llama"; reads no size (`llama_config` does).
"""

from __future__ import annotations

from collections.abc import Mapping

from cugraphs.models.config_checks import same, shown

# Keys of relatives of Llama that change the computation, and the values with which they do not.
# null never does.
_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    # weights that are not plain matrices
    "quantization_config": (),
    "compression_config": (),
    # rotary embedding
    "rope_interleaved": (False,),
    "rope_interleave": (False,),
    "partial_rotary_factor": (1,),
    "rotary_pct": (1,),
    "rotary_dim": (),
    "rope_ratio": (1,),
    "rope_local_base_freq": (),
    "no_rope_layer_interval": (0,),
    "use_dynamic_ntk": (False,),
    "position_embedding_type": ("rope", "rotary"),
    "alibi": (False,),
    "use_alibi": (False,),
    # constants between the layers
    "attention_multiplier": (),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1,),
    "embedding_multiplier": (1,),
    "lm_head_multiplier": (1,),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "scale_emb": (1,),
    "scale_depth": (),
    "dim_model_base": (),
    "use_mup": (False,),
    "final_logit_softcapping": (),
    "attn_logit_softcapping": (),
    "clip_qkv": (),
    # attention
    "use_qk_norm": (False,),
    "qk_norm": (False,),
    "qk_layernorm": (False,),
    "attention_chunk_size": (),
    "attn_temperature_tuning": (False, 0),
    "use_logn_attn": (False,),
    "is_causal": (True,),
    "use_bidirectional_attention": (False,),
    "kv_lora_rank": (),
    "q_lora_rank": (),
    "num_kv_shared_layers": (0,),
    "use_cla": (False,),
    # layers and blocks
    "num_local_experts": (0,),
    "num_experts": (0,),
    "n_routed_experts": (0,),
    "parallel_attn": (False,),
    "use_parallel_residual": (False,),
    "block_configs": (),
    "per_layer_config": ({},),
    "pruned_heads": ({},),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    # biases under other names
    "bias": (False,),
    "use_bias": (False,),
    "qkv_bias": (False,),
    "attention_out_bias": (False,),
    "lm_head_bias": (False,),
}

# Keys that `LlamaConfig` and `RopeConfig` read, or the tokenizer and the generation defaults.
_READ_KEYS = {
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
    *("architectures", "model_type", "dtype", "torch_dtype", "rms_norm_eps", "hidden_act"),
    *("attention_bias", "mlp_bias", "tie_word_embeddings"),
    *("sliding_window", "use_sliding_window", "layer_types", "no_rope_layers"),
    *("rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),
}
# Keys of training and bookkeeping, and `pretraining_tp`, which only reorders sums.
_IRRELEVANT_KEYS = {
    *("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "initializer_range"),
    *("use_cache", "pretraining_tp", "transformers_version", "_name_or_path", "is_llama_config"),
    *("output_attentions", "output_hidden_states", "return_dict", "use_return_dict"),
    *("torchscript", "chunk_size_feed_forward", "problem_type", "id2label", "label2id"),
    *("tie_encoder_decoder", "is_decoder", "max_window_layers", "_attn_implementation"),
}


def refuse_unsupported_keys(config: Mapping[str, object], source: str) -> None:
    """Raise on the first key that asks for something other than plain Llama.

    Raises:
        ValueError: One line that names the key and the value with which it would pass.
    """
    for key, neutral in _UNSUPPORTED.items():
        value = config.get(key)
        if value is not None and not any(same(value, other) for other in neutral):
            wanted = " or ".join(["null", *(shown(other) for other in neutral)])
            raise _unsupported(source, key, value, wanted)
    for key in ("hidden_act", "hidden_activation"):
        value = config.get(key)
        if value is not None and value not in ("silu", "swish"):
            raise _unsupported(source, key, value, '"silu"')
    for key, one, wanted in (
        ("layer_types", "full_attention", 'a list of "full_attention"'),
        ("no_rope_layers", 1, "a list of 1 (rope in every layer)"),
    ):
        value = config.get(key)
        if value is None:
            continue
        odd = [v for v in value if not same(v, one)] if isinstance(value, list) else [value]
        if odd:
            raise _unsupported(source, key, odd[0], wanted)


def _unsupported(source: str, key: str, value: object, wanted: str) -> ValueError:
    """The error for a key that is known and not supported."""
    return ValueError(
        f"{source}: {key} is {shown(value)}, expected {wanted}: "
        "it changes the computation and is not supported"
    )


def unknown_keys(config: Mapping[str, object]) -> tuple[str, ...]:
    """Keys that nothing here reads, refuses or knows to be irrelevant, in the file's order."""
    known = _READ_KEYS | _IRRELEVANT_KEYS | _UNSUPPORTED.keys()
    return tuple(key for key in config if key not in known)
