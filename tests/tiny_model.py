"""A whole model folder made by hand: random weights, a byte-level BPE tokenizer, a chat template.

What it says is noise, and always the same noise: the weights come from a fixed seed.
"""

import json
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

BOS, EOS, END_OF_TURN, USER, ASSISTANT = range(5)
SPECIAL_TOKENS = ["<|bos|>", "<|eos|>", "<|end|>", "<|user|>", "<|assistant|>"]
MAX_MODEL_LEN = 256
TEXT = """The quick brown fox jumps over the lazy dog, and then over the other dog.
Once upon a time there was a little girl who had a cat and a dog and a hat. é 😀
"""
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('no such role') }}"
    "{% endif %}"
    "{{ '<|' ~ message.role ~ '|>' ~ message.content ~ '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_MODEL_LEN,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
PADDING_IDS = 3  # rows of the embedding beyond the tokenizer's last token


def write_tiny_model(
    folder: Path,
    *,
    generation_config: dict[str, object] | None = None,
    config: dict[str, object] | None = None,
    weights: dict[str, np.ndarray] | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
) -> Path:
    """Write the model into a new folder, with these keys and weights in place of its own."""
    folder.mkdir(parents=True)
    backend = _tokenizer()
    backend.save(str(folder / "tokenizer.json"))
    tokenizer_config = {"bos_token": SPECIAL_TOKENS[BOS], "eos_token": SPECIAL_TOKENS[EOS]}
    if chat_template is not None:
        tokenizer_config["chat_template"] = chat_template
    merged = {**CONFIG, "vocab_size": backend.get_vocab_size() + PADDING_IDS, **(config or {})}
    files = {"tokenizer_config.json": tokenizer_config, "config.json": merged}
    files["generation_config.json"] = {
        "eos_token_id": [EOS, END_OF_TURN],
        **(generation_config or {}),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    save_file({**_weights(merged), **(weights or {})}, folder / "model.safetensors")
    return folder


def _tokenizer() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    printable = "".join(map(chr, range(32, 127)))
    trainer = trainers.BpeTrainer(
        vocab_size=160, special_tokens=SPECIAL_TOKENS, show_progress=False
    )
    backend.train_from_iterator([TEXT, printable], trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", BOS)]
    )
    return backend


def _weights(config: dict[str, object]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    hidden, inner, vocab = (
        config["hidden_size"],
        config["intermediate_size"],
        config["vocab_size"],
    )
    head_dim = hidden // config["num_attention_heads"]
    kv = config["num_key_value_heads"] * head_dim

    def matrix(rows: int, columns: int, scale: float = 1.5) -> np.ndarray:
        return (rng.normal(size=(rows, columns)) * scale / columns**0.5).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(vocab, hidden, scale=hidden**0.5)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, shape in (
            ("self_attn.q_proj", (hidden, hidden)),
            ("self_attn.k_proj", (kv, hidden)),
            ("self_attn.v_proj", (kv, hidden)),
            ("self_attn.o_proj", (hidden, hidden)),
            ("mlp.gate_proj", (inner, hidden)),
            ("mlp.up_proj", (inner, hidden)),
            ("mlp.down_proj", (hidden, inner)),
        ):
            weights[f"{layer}{name}.weight"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{layer}{name}.weight"] = np.ones(hidden, np.float32)
    weights["model.norm.weight"] = np.ones(hidden, np.float32)
    weights["lm_head.weight"] = matrix(vocab, hidden, scale=2.5)
    return weights
