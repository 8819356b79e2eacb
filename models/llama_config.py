"""What a Llama checkpoint's config.json says, checked field by field.

A key that changes the computation and is not supported is an error that names it. Keys that mean
nothing to inference are dropped; keys nobody here knows are kept by name in `ignored_keys`.
Knows no tensor, no file and no device; `source` only begins the error messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cugraphs.models.config_checks import (
    check_bool,
    check_choice,
    check_integer,
    check_number,
    check_object,
    shown,
)
from cugraphs.models.config_keys import refuse_unsupported_keys, unknown_keys
from cugraphs.models.hf_rope import rope_from_hf
from cugraphs.models.rope import MAX_POSITIONS, RopeConfig

# Architectures by their `model_type`.
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}
_DTYPES = ("bfloat16", "float16", "float32")

# Largest value of each size: some times the largest Llama, and small enough that a broken file
# cannot ask for an allocation of terabytes before its tensors are looked at.
_SIZES = {
    "vocab_size": 2**24,
    "hidden_size": 2**18,
    "intermediate_size": 2**20,
    "num_hidden_layers": 2**12,
    "num_attention_heads": 2**13,
    "num_key_value_heads": 2**13,
    "head_dim": 2**12,
    "max_position_embeddings": MAX_POSITIONS,
}
_REQUIRED_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
_MAX_PARAMETERS = 2**41  # five times Llama-3.1-405B
_RMS_NORM_EPS_RANGE = (1e-12, 1.0)

# What transformers' LlamaConfig and MistralConfig take for a key that is absent. Null is another
# matter: it stands for as many K/V heads as query heads, and for no window.
_WHERE_ABSENT: dict[str, dict[str, object]] = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096},
}
_MAX_POSITION_EMBEDDINGS = {"LlamaForCausalLM": 2048, "MistralForCausalLM": 131072}
_COPIED_KEYS = (
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps"),
    *("tie_word_embeddings", "attention_bias", "mlp_bias", "sliding_window"),
)


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes and constants of one Llama or Mistral model, with config.json's names.

    Args:
        vocab_size: Rows of the embedding.
        hidden_size: Width of the residual stream.
        intermediate_size: Width inside the MLP.
        num_hidden_layers: Layers.
        num_attention_heads: Query heads; a multiple of `num_key_value_heads`.
        num_key_value_heads: Heads of K and V.
        head_dim: Width of a head, even; need not be hidden_size / num_attention_heads.
        rms_norm_eps: Added to the mean square inside every norm.
        max_position_embeddings: Longest sequence the model was made for, in tokens.
        rope: Rotary embedding.
        tie_word_embeddings: The head is the embedding.
        attention_bias: The q, k, v and o projections have biases.
        mlp_bias: The gate, up and down projections have biases.
        dtype: What the checkpoint says its weights are: bfloat16, float16 or float32.
        architecture: LlamaForCausalLM or MistralForCausalLM.
        sliding_window: Tokens a query looks back, itself included; None is all.
        ignored_keys: Keys of the file that are not known here, in its order.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str = "float32"
    architecture: str = "LlamaForCausalLM"
    sliding_window: int | None = None
    ignored_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that no Llama has, and sizes that do not fit together."""
        for name, most in _SIZES.items():
            check_integer(f"LlamaConfig: {name}", getattr(self, name), most)
        for name in ("tie_word_embeddings", "attention_bias", "mlp_bias"):
            check_bool(f"LlamaConfig: {name}", getattr(self, name))
        check_number("LlamaConfig: rms_norm_eps", self.rms_norm_eps, *_RMS_NORM_EPS_RANGE)
        check_choice("LlamaConfig: dtype", self.dtype, _DTYPES)
        check_choice("LlamaConfig: architecture", self.architecture, tuple(_ARCHITECTURES.values()))
        if self.sliding_window is not None:
            check_integer("LlamaConfig: sliding_window", self.sliding_window, MAX_POSITIONS)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"LlamaConfig: num_attention_heads is {self.num_attention_heads}, expected a "
                f"multiple of num_key_value_heads, {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"LlamaConfig: head_dim is {self.head_dim}, expected an even number, as rotary "
                "embedding turns pairs"
            )
        if self.architecture == "MistralForCausalLM" and (self.attention_bias or self.mlp_bias):
            name = "attention_bias" if self.attention_bias else "mlp_bias"
            raise ValueError(f"LlamaConfig: {name} is true, expected false: Mistral has no biases")
        if self.num_parameters > _MAX_PARAMETERS:
            raise ValueError(
                f"LlamaConfig: num_hidden_layers x hidden_size is {self.num_hidden_layers} x "
                f"{self.hidden_size}, which makes {self.num_parameters:.3g} parameters, expected "
                f"at most {_MAX_PARAMETERS:.3g}"
            )

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all K heads together, and of all V heads together."""
        return self.num_key_value_heads * self.head_dim

    @property
    def num_embedding_parameters(self) -> int:
        """Parameters of the input embedding, which a tied head shares."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All parameters, a tied embedding counted once."""
        hidden, intermediate = self.hidden_size, self.intermediate_size
        attention = 2 * hidden * (self.q_size + self.kv_size)
        if self.attention_bias:
            attention += self.q_size + 2 * self.kv_size + hidden
        mlp = 3 * hidden * intermediate
        if self.mlp_bias:
            mlp += 2 * intermediate + hidden
        layer = attention + mlp + 2 * hidden
        embeddings = (1 if self.tie_word_embeddings else 2) * self.num_embedding_parameters
        return self.num_hidden_layers * layer + embeddings + hidden

    @property
    def longest_max_model_len(self) -> int:
        """Largest `max_model_len` that `check_max_model_len` accepts, in tokens."""
        return min(limit for limit, _ in self._length_limits())

    def check_max_model_len(self, max_model_len: int) -> None:
        """Raise unless sequences of `max_model_len` tokens are computed as the model was made.

        Raises:
            ValueError: It is longer than max_position_embeddings, than a sliding window, or than
                the context up to which `dynamic` rope leaves its frequencies alone.
        """
        check_integer("LlamaConfig: max_model_len", max_model_len, MAX_POSITIONS)
        for most, reason in self._length_limits():
            if max_model_len > most:
                raise ValueError(
                    f"LlamaConfig: max_model_len is {max_model_len}, expected at most {most}: "
                    f"{reason}; pass max_model_len={self.longest_max_model_len} or less"
                )

    def _length_limits(self) -> list[tuple[int, str]]:
        """Each bound of a sequence's length in tokens, with its reason."""
        limits = [
            (
                self.max_position_embeddings,
                f"max_position_embeddings is {self.max_position_embeddings}",
            )
        ]
        if self.sliding_window is not None:
            reason = (
                f"sliding_window is {self.sliding_window}, and attention over a window shorter "
                "than the sequence is not supported"
            )
            limits.append((self.sliding_window, reason))
        original = self.rope.original_max_position_embeddings
        if self.rope.rope_type == "dynamic" and original is not None:
            reason = (
                f"rope_type is dynamic and the original context {original}, beyond which its "
                "frequencies would change with the length, which is not supported"
            )
            limits.append((original, reason))
        return limits

    @classmethod
    def from_hf(cls, config: Mapping[str, object], source: str = "config.json") -> LlamaConfig:
        """The model that a config.json of transformers 4 or 5 describes.

        Absent keys and null take the defaults of transformers' LlamaConfig and MistralConfig,
        except the sizes that define the model, which must be there.

        Args:
            config: The parsed file.
            source: What error messages begin with.

        Raises:
            ValueError: One line that names the key: it is missing, malformed, out of range, or
                asks for something that is not supported.
        """
        config = check_object(f"{source}: the top level", config)
        architecture = _architecture(config, source)
        refuse_unsupported_keys(config, source)
        sizes = {name: _required_size(config, name, source) for name in _REQUIRED_SIZES}
        num_heads = sizes["num_attention_heads"]
        values: dict[str, Any] = {"num_key_value_heads": num_heads, "rms_norm_eps": 1e-6, **sizes}
        for name, value in _WHERE_ABSENT[architecture].items():
            if name not in config:
                values[name] = value
        values.update({k: v for k in _COPIED_KEYS if (v := config.get(k)) is not None})
        if "head_dim" not in values:
            values["head_dim"] = _derived_head_dim(sizes["hidden_size"], num_heads, source)
        window = config.get("use_sliding_window")
        if window is not None and not check_bool(f"{source}: use_sliding_window", window):
            values["sliding_window"] = None
        name = "max_position_embeddings"
        longest = values.setdefault(name, _MAX_POSITION_EMBEDDINGS[architecture])
        check_integer(f"{source}: {name}", longest, MAX_POSITIONS)
        rope = rope_from_hf(config, longest, source)
        dtype = _declared_dtype(config, source)
        try:
            return cls(
                **values,
                rope=rope,
                dtype=dtype,
                architecture=architecture,
                ignored_keys=unknown_keys(config),
            )
        except ValueError as error:
            message = str(error).removeprefix("LlamaConfig: ")
            raise ValueError(f"{source}: {message}") from None


def _architecture(config: Mapping[str, object], source: str) -> str:
    """The first of `architectures`; where there is none, the one `model_type` stands for."""
    supported = " or ".join(_ARCHITECTURES.values())
    model_type = config.get("model_type")
    architectures = config.get("architectures")
    if architectures in (None, []):
        if isinstance(model_type, str) and model_type in _ARCHITECTURES:
            return _ARCHITECTURES[model_type]
        found = "missing" if model_type is None else f"missing and model_type {shown(model_type)}"
        raise ValueError(f"{source}: architectures is {found}, expected {supported}")
    if not isinstance(architectures, list):
        raise ValueError(
            f"{source}: architectures is {shown(architectures)}, expected a list with {supported}"
        )
    first = architectures[0]
    for name, architecture in _ARCHITECTURES.items():
        if first == architecture:
            if model_type is not None and model_type != name:
                raise ValueError(
                    f"{source}: model_type is {shown(model_type)}, "
                    f'expected "{name}" beside {architecture}'
                )
            return architecture
    raise ValueError(f"{source}: architectures is {shown(first)}, expected {supported}")


def _required_size(config: Mapping[str, object], name: str, source: str) -> int:
    """A size that has no default, because it makes the model what it is."""
    if name not in config:
        raise ValueError(f"{source}: {name} is missing, expected a positive integer")
    return check_integer(f"{source}: {name}", config[name], _SIZES[name])


def _derived_head_dim(hidden_size: int, num_attention_heads: int, source: str) -> int:
    """hidden_size / num_attention_heads, which must be whole."""
    if hidden_size % num_attention_heads:
        raise ValueError(
            f"{source}: hidden_size is {hidden_size}, expected a multiple of "
            f"num_attention_heads, {num_attention_heads}, where head_dim is not given"
        )
    return hidden_size // num_attention_heads


def _declared_dtype(config: Mapping[str, object], source: str) -> str:
    """`dtype` (transformers 5) or `torch_dtype` (4), without "torch."; float32 where absent."""
    for name in ("dtype", "torch_dtype"):
        value = config.get(name)
        if value is not None:
            bare = value.removeprefix("torch.") if isinstance(value, str) else value
            return check_choice(f"{source}: {name}", bare, _DTYPES)
    return "float32"
