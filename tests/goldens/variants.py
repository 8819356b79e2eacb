"""The golden checkpoints as data: which config.json each has, and how its tensors are stored.

Knows neither torch nor transformers; `make_goldens.py` turns it into files. Configurations are
written by hand, in the keys of the transformers generation they stand for.
"""

from dataclasses import dataclass
from typing import Any

VOCAB_SIZE = 81  # odd, so that no row of logits is aligned
HIDDEN_SIZE = 32
INTERMEDIATE_SIZE = 40
NUM_LAYERS = 2
MAX_POSITION_EMBEDDINGS = 64
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Variant:
    """One checkpoint folder: `config` as stored, and how its tensors are stored.

    Attributes:
        config: Contents of config.json.
        weights_of: Another variant whose model.safetensors this one links to, or None for its own.
        embed_scale: Standard deviation of the embedding rows.
        stored: Which of the two tied names are in the file; both for an untied model.
        shards: Number of safetensors files; above 1 with an index.
        generation_config: Contents of generation_config.json, or None for no such file.
        extra_eos: Add the sixth greedy token of prompt 1 to generation_config's eos_token_id.
        inv_freq_buffers: Store `rotary_emb.inv_freq` too, as the first Llama conversions did.
    """

    config: dict[str, Any]
    weights_of: str | None = None
    embed_scale: float = 0.6
    stored: tuple[str, ...] = (EMBED, HEAD)
    shards: int = 1
    generation_config: dict[str, Any] | None = None
    extra_eos: bool = False
    inv_freq_buffers: bool = False


def llama_v4(
    dtype: str = "bfloat16", heads: int = 4, kv_heads: int = 2, **changes: Any
) -> dict[str, Any]:
    """Return a config.json as transformers 4 writes it for Llama; a change to None stores null."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": HIDDEN_SIZE,
        "initializer_range": 0.02,
        "intermediate_size": INTERMEDIATE_SIZE,
        "max_position_embeddings": MAX_POSITION_EMBEDDINGS,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": NUM_LAYERS,
        "num_key_value_heads": kv_heads,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "transformers_version": "4.43.0",
        "use_cache": True,
        "vocab_size": VOCAB_SIZE,
    }
    return config | changes


def llama_v5(rope_parameters: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a config.json as transformers 5 writes it for Llama."""
    config = llama_v4(heads=2, kv_heads=1) | {"head_dim": 16, "pad_token_id": None}
    for key in ("rope_scaling", "rope_theta", "torch_dtype"):
        del config[key]
    config |= {
        "dtype": "bfloat16",
        "rope_parameters": rope_parameters,
        "transformers_version": "5.0.0",
    }
    return config | changes


def rope_v4(scaling: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a version-4 config with head_dim 16 (eight frequencies), theta 500 and this scaling.

    Wavelengths in tokens are then 6.3, 13.7, 29.7, 64.6, 140, ...: with an original length of 32
    and llama3's factors 1 and 4 the first is kept, the next two are blended, the rest are slowed.
    """
    return llama_v4(heads=2, kv_heads=1, rope_theta=500.0, rope_scaling=scaling, **changes)


def mistral_v4(**changes: Any) -> dict[str, Any]:
    """Return a config.json as transformers 4 writes it for Mistral."""
    config = llama_v4(head_dim=None, **changes)
    for key in ("attention_bias", "mlp_bias", "pretraining_tp", "rope_scaling"):
        del config[key]
    return config | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}


LLAMA3 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 32,
    "rope_type": "llama3",
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32, "rope_type": "yarn"}
YARN_EXPLICIT = YARN | {"attention_factor": 1.3, "beta_fast": 2.0, "beta_slow": 0.25}
YARN_MSCALE = YARN | {"mscale": 1.0, "mscale_all_dim": 0.4, "truncate": False}
# As the first conversions wrote it: no key for kv heads, RoPE, biases, tying or the length.
LLAMA1 = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": HIDDEN_SIZE,
    "initializer_range": 0.02,
    "intermediate_size": INTERMEDIATE_SIZE,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": NUM_LAYERS,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float16",
    "transformers_version": "4.28.0",
    "use_cache": True,
    "vocab_size": VOCAB_SIZE,
}

VARIANTS: dict[str, Variant] = {
    "mha": Variant(llama_v4(kv_heads=4)),
    "gqa": Variant(llama_v4("float32")),
    "mqa": Variant(llama_v4(kv_heads=1)),
    "head_dim": Variant(llama_v4(head_dim=12)),
    "head_dim_odd": Variant(llama_v4(heads=3, kv_heads=1, head_dim=10)),
    "untied": Variant(
        llama_v4(kv_heads=4),
        weights_of="mha",
        generation_config={"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "tied_embed_only": Variant(llama_v4(tie_word_embeddings=True), stored=(EMBED,)),
    "tied_head_only": Variant(llama_v4(tie_word_embeddings=True), stored=(HEAD,)),
    "tied_both": Variant(llama_v4(tie_word_embeddings=True)),
    "small_embeddings": Variant(llama_v4(), embed_scale=2e-3),
    "attention_bias": Variant(llama_v4(attention_bias=True)),
    "mlp_bias": Variant(llama_v4(mlp_bias=True)),
    "both_biases": Variant(llama_v4(attention_bias=True, mlp_bias=True)),
    "sharded": Variant(llama_v4(), shards=3),
    "f16": Variant(llama_v4("float16")),
    "bf16": Variant(llama_v4("bfloat16")),
    "mistral": Variant(mistral_v4(rope_theta=1e6, sliding_window=None), weights_of="bf16"),
    "mistral_window": Variant(
        mistral_v4(rope_theta=1e6, sliding_window=MAX_POSITION_EMBEDDINGS), weights_of="bf16"
    ),
    "llama1_minimal": Variant(LLAMA1, inv_freq_buffers=True),
    "eos_list": Variant(
        llama_v4("float32"),
        weights_of="gqa",
        generation_config={
            "bos_token_id": 1,
            "do_sample": True,
            "eos_token_id": [2],
            "temperature": 0.6,
            "top_p": 0.9,
            "transformers_version": "4.43.0",
        },
        extra_eos=True,
    ),
    "rope_default_v5": Variant(llama_v5({"rope_theta": 500.0, "rope_type": "default"})),
    "rope_llama3": Variant(
        rope_v4(LLAMA3, max_position_embeddings=256), weights_of="rope_default_v5"
    ),
    "rope_llama3_v5": Variant(
        llama_v5(LLAMA3 | {"rope_theta": 500.0}, max_position_embeddings=256),
        weights_of="rope_default_v5",
    ),
    "rope_linear": Variant(
        rope_v4({"factor": 2.5, "rope_type": "linear"}), weights_of="rope_default_v5"
    ),
    "rope_type_key": Variant(
        rope_v4({"factor": 4.0, "type": "linear"}), weights_of="rope_default_v5"
    ),
    "rope_yarn": Variant(rope_v4(YARN, max_position_embeddings=128), weights_of="rope_default_v5"),
    "rope_yarn_explicit": Variant(
        rope_v4(YARN_EXPLICIT, max_position_embeddings=128), weights_of="rope_default_v5"
    ),
    "rope_yarn_mscale": Variant(
        llama_v5(YARN_MSCALE | {"rope_theta": 500.0}, max_position_embeddings=128),
        weights_of="rope_default_v5",
    ),
    "rope_dynamic": Variant(
        rope_v4({"factor": 4.0, "rope_type": "dynamic"}), weights_of="rope_default_v5"
    ),
}


def rope_config(
    head_dim: int, theta: float, max_position_embeddings: int, scaling: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the config.json keys that decide the RoPE frequencies."""
    return {
        "head_dim": head_dim,
        "max_position_embeddings": max_position_embeddings,
        "rope_scaling": scaling,
        "rope_theta": theta,
    }


LLAMA3_1 = LLAMA3 | {"original_max_position_embeddings": 8192}
YARN_DEEP = {"factor": 40.0, "original_max_position_embeddings": 4096, "rope_type": "yarn"}
# Real configurations for `rope_frequencies`, in the keys of transformers 4.
ROPE_CONFIGS: dict[str, dict[str, Any]] = {
    "llama_2_7b": rope_config(128, 10000.0, 4096),
    "llama_3_8b": rope_config(128, 500000.0, 8192),
    "llama_3_1_8b": rope_config(128, 500000.0, 131072, LLAMA3_1),
    "llama_3_2_1b": rope_config(64, 500000.0, 131072, LLAMA3_1 | {"factor": 32.0}),
    "linear_4": rope_config(128, 10000.0, 16384, {"factor": 4.0, "type": "linear"}),
    "dynamic_2": rope_config(128, 10000.0, 4096, {"factor": 2.0, "type": "dynamic"}),
    "yarn_4": rope_config(128, 10000.0, 32768, YARN | {"original_max_position_embeddings": 8192}),
    "yarn_16": rope_config(  # Yarn-Llama-2-7b-64k
        128,
        10000.0,
        65536,
        {
            "factor": 16.0,
            "finetuned": True,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
    ),
    "yarn_explicit": rope_config(
        64,
        10000.0,
        163840,
        YARN_DEEP | {"attention_factor": 1.1, "beta_fast": 16.0, "beta_slow": 2.0},
    ),
    "yarn_mscale": rope_config(
        64, 10000.0, 163840, YARN_DEEP | {"mscale": 1.0, "mscale_all_dim": 0.707, "truncate": False}
    ),
}

# Pairs on one set of weights whose logits are equal to the bit; all others differ visibly.
EQUAL_VARIANTS = {
    frozenset(pair)
    for pair in (
        ("mha", "untied"),
        ("gqa", "eos_list"),
        ("mistral", "mistral_window"),
        ("rope_llama3", "rope_llama3_v5"),
        ("rope_default_v5", "rope_dynamic"),
    )
}
