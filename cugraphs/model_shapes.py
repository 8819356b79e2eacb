"""Published model shapes by name: what is planned, timed or benchmarked without a checkpoint.

Each is what that model's config.json says of the computation. Knows no class of a model.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


def _shape(
    sizes: tuple[int, int, int, int, int, int],
    *,
    max_position_embeddings: int,
    rope_theta: float,
    tie_word_embeddings: bool = False,
    rope_scaling: Mapping[str, Any] | None = None,
    architecture: str = "LlamaForCausalLM",
    dtype: str = "bfloat16",
) -> Mapping[str, Any]:
    """A config.json; ``sizes`` are vocabulary, hidden, intermediate, layers, heads, KV heads."""
    vocab_size, hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads = sizes
    return {
        "architectures": [architecture],
        "model_type": "mistral" if architecture.startswith("Mistral") else "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": hidden_size // num_heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": max_position_embeddings,
        "rope_theta": rope_theta,
        "rope_scaling": rope_scaling,
        "tie_word_embeddings": tie_word_embeddings,
        "sliding_window": None,
        "torch_dtype": dtype,
    }


def _llama_3(factor: float) -> Mapping[str, Any]:
    """Llama 3.1's and 3.2's scaling of rotary frequencies."""
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def _llama_3_1(sizes: tuple[int, int, int, int, int, int]) -> Mapping[str, Any]:
    return _shape(sizes, max_position_embeddings=131072, rope_theta=5e5, rope_scaling=_llama_3(8.0))


def _llama_3_2(sizes: tuple[int, int, int, int, int, int]) -> Mapping[str, Any]:
    return _shape(
        sizes,
        max_position_embeddings=131072,
        rope_theta=5e5,
        rope_scaling=_llama_3(32.0),
        tie_word_embeddings=True,
    )


def _smollm2(
    sizes: tuple[int, int, int, int, int, int], rope_theta: float = 1e5
) -> Mapping[str, Any]:
    return _shape(
        sizes, max_position_embeddings=8192, rope_theta=rope_theta, tie_word_embeddings=True
    )


MODEL_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama-3.1-8b": _llama_3_1((128256, 4096, 14336, 32, 32, 8)),
    "llama-3.1-70b": _llama_3_1((128256, 8192, 28672, 80, 64, 8)),
    "llama-3.1-405b": _llama_3_1((128256, 16384, 53248, 126, 128, 8)),
    "llama-3.2-1b": _llama_3_2((128256, 2048, 8192, 16, 32, 8)),
    "llama-3.2-3b": _llama_3_2((128256, 3072, 8192, 28, 24, 8)),
    "llama-2-7b": _shape(
        (32000, 4096, 11008, 32, 32, 32),
        max_position_embeddings=4096,
        rope_theta=1e4,
        dtype="float16",
    ),
    "llama-2-13b": _shape(
        (32000, 5120, 13824, 40, 40, 40),
        max_position_embeddings=4096,
        rope_theta=1e4,
        dtype="float16",
    ),
    "mistral-7b-v0.3": _shape(
        (32768, 4096, 14336, 32, 32, 8),
        max_position_embeddings=32768,
        rope_theta=1e6,
        architecture="MistralForCausalLM",
    ),
    "tinyllama-1.1b": _shape(
        (32000, 2048, 5632, 22, 32, 4), max_position_embeddings=2048, rope_theta=1e4
    ),
    "smollm2-135m": _smollm2((49152, 576, 1536, 30, 9, 3)),
    "smollm2-360m": _smollm2((49152, 960, 2560, 32, 15, 5)),
    "smollm2-1.7b": _smollm2((49152, 2048, 8192, 24, 32, 32), rope_theta=1.3e5),
}


def model_shape(name: str) -> dict[str, Any]:
    """The config.json of the model called ``name``, a copy of one's own.

    Raises:
        ValueError: no such name; the message lists those that exist.
    """
    if name not in MODEL_SHAPES:
        raise ValueError(f"shape: {name!r} is not known, expected one of {', '.join(MODEL_SHAPES)}")
    return copy.deepcopy(dict(MODEL_SHAPES[name]))
