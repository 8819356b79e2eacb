"""Makes the golden checkpoints and numbers of this folder with Hugging Face transformers.

A development-only script: the project and its tests need neither torch nor transformers.

    python3.11 -m venv /tmp/hf
    /tmp/hf/bin/pip install torch==2.13.0 transformers==5.24.0 safetensors numpy
    /tmp/hf/bin/python tests/goldens/make_goldens.py            # rewrites this folder
    /tmp/hf/bin/python tests/goldens/make_goldens.py --out DIR  # writes elsewhere, to compare

Each variant of `variants.py` becomes a folder as a user would have it, with random weights in
safetensors. transformers reads that folder, in float32 with eager attention, and what it computes
goes to `golden.npz`. The script knows nothing of cugraphs.
"""

import argparse
import json
import platform
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import safetensors
import torch
import transformers
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, MistralForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from variants import (
    EMBED,
    EQUAL_VARIANTS,
    HEAD,
    HIDDEN_SIZE,
    INTERMEDIATE_SIZE,
    NUM_LAYERS,
    ROPE_CONFIGS,
    VARIANTS,
    VOCAB_SIZE,
    Variant,
)

PROMPT_LENGTHS = (1, 7, 21)  # they and their continuations cross multiples of 16
NEW_TOKENS = 16
MIN_TOP2_GAP = 2e-3  # no greedy step may hang on the last bits of a float32 sum
MIN_DISTINCT_TOKENS = 4  # of the 16 greedy ones: a stuck loop would prove little
MAX_DRAWS = 400


def draw_weights(variant: Variant, seed: int) -> dict[str, torch.Tensor]:
    """Return random tensors under their checkpoint names, rounded to the stored dtype.

    Matrices have entries of about 1.4/sqrt(fan_in), so that attention is neither flat nor one-hot,
    each layer changes the residual stream, and logits spread over several units. Norm weights are
    around 1; no tensor is constant.
    """
    config = variant.config
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    head_dim = config.get("head_dim") or HIDDEN_SIZE // heads
    dtype = getattr(torch, config.get("torch_dtype") or config["dtype"])
    rng = np.random.default_rng(seed)

    def normal(shape: tuple[int, ...], scale: float, mean: float = 0.0) -> torch.Tensor:
        values = mean + scale * rng.standard_normal(shape)
        return torch.from_numpy(values.astype(np.float32)).to(dtype)

    def linear(
        name: str, rows: int, columns: int, bias: bool
    ) -> Iterator[tuple[str, torch.Tensor]]:
        yield f"{name}.weight", normal((rows, columns), 1.4 / columns**0.5)
        if bias:
            yield f"{name}.bias", normal((rows,), 0.5)

    weights = {EMBED: normal((VOCAB_SIZE, HIDDEN_SIZE), variant.embed_scale)}
    weights["model.norm.weight"] = normal((HIDDEN_SIZE,), 0.2, mean=1.0)
    weights[HEAD] = (
        weights[EMBED]
        if config.get("tie_word_embeddings")
        else normal((VOCAB_SIZE, HIDDEN_SIZE), 0.4)
    )
    attention_bias, mlp_bias = config.get("attention_bias", False), config.get("mlp_bias", False)
    for index in range(NUM_LAYERS):
        layer = f"model.layers.{index}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{layer}.{norm}.weight"] = normal((HIDDEN_SIZE,), 0.2, mean=1.0)
        for name, rows, columns, bias in (
            ("self_attn.q_proj", heads * head_dim, HIDDEN_SIZE, attention_bias),
            ("self_attn.k_proj", kv_heads * head_dim, HIDDEN_SIZE, attention_bias),
            ("self_attn.v_proj", kv_heads * head_dim, HIDDEN_SIZE, attention_bias),
            ("self_attn.o_proj", HIDDEN_SIZE, heads * head_dim, attention_bias),
            ("mlp.gate_proj", INTERMEDIATE_SIZE, HIDDEN_SIZE, mlp_bias),
            ("mlp.up_proj", INTERMEDIATE_SIZE, HIDDEN_SIZE, mlp_bias),
            ("mlp.down_proj", HIDDEN_SIZE, INTERMEDIATE_SIZE, mlp_bias),
        ):
            weights.update(linear(f"{layer}.{name}", rows, columns, bias))
        if variant.inv_freq_buffers:
            exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
            weights[f"{layer}.self_attn.rotary_emb.inv_freq"] = (10000.0**-exponents).to(dtype)
    return weights


def write_json(path: Path, content: object) -> None:
    """Write `content` as indented JSON with a final newline."""
    path.write_text(json.dumps(content, indent=2) + "\n")


def write_safetensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write one safetensors file that others may read (the library makes it private)."""
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)


def write_checkpoint(folder: Path, variant: Variant, weights: dict[str, torch.Tensor]) -> None:
    """Write config.json and the weights: one file, or shards cut in name order."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", variant.config)
    if variant.weights_of is not None:
        (folder / "model.safetensors").symlink_to(f"../{variant.weights_of}/model.safetensors")
        return
    names = [n for n in sorted(weights) if n not in (EMBED, HEAD) or n in variant.stored]
    stored = {name: weights[name].clone() for name in names}
    if variant.shards == 1:
        write_safetensors(folder / "model.safetensors", stored)
        return
    weight_map: dict[str, str] = {}
    for shard, part in enumerate(np.array_split(np.array(names), variant.shards), start=1):
        file = f"model-{shard:05}-of-{variant.shards:05}.safetensors"
        write_safetensors(folder / file, {name: stored[name] for name in part})
        weight_map |= dict.fromkeys(map(str, part), file)
    total_size = sum(tensor.nbytes for tensor in stored.values())
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    write_json(folder / "model.safetensors.index.json", index)


def load(folder: Path, variant: Variant, weights: dict[str, torch.Tensor]) -> torch.nn.Module:
    """Return transformers' model; check that it took all weights and the RoPE as written."""
    is_mistral = variant.config["model_type"] == "mistral"
    model, info = (MistralForCausalLM if is_mistral else LlamaForCausalLM).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["mismatched_keys"] and not info["missing_keys"], (folder, info)
    assert all("inv_freq" in key for key in info["unexpected_keys"]), (folder, info)
    loaded = model.state_dict()
    for name, tensor in weights.items():
        if "inv_freq" not in name:
            assert torch.equal(loaded[name], tensor.float()), f"{folder}: {name} was not loaded"

    rope = variant.config.get("rope_parameters") or variant.config.get("rope_scaling") or {}
    theta = rope.get("rope_theta", variant.config.get("rope_theta", 10000.0))
    rotary = model.model.rotary_emb
    head_dim = model.config.head_dim
    default = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    is_default = np.allclose(rotary.inv_freq.numpy(), default, rtol=1e-5)
    scaled = rope.get("rope_type", rope.get("type", "default")) not in ("default", "dynamic")
    assert is_default != scaled, f"{folder}: RoPE was not applied as written"
    assert (rotary.attention_scaling != 1.0) == ("yarn" in rope.values()), folder
    return model.eval()


def greedy(model: torch.nn.Module, prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return prompt + greedy int32 [tokens], logits float32 [tokens, vocab], smallest top-2 gap."""
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    with torch.inference_mode():
        for _ in range(NEW_TOKENS):
            next_id = model(ids, use_cache=False).logits[:, -1:].argmax(-1)
            ids = torch.cat([ids, next_id], dim=1)
        logits = model(ids, use_cache=False).logits[0]
    steps = logits[len(prompt) - 1 : -1]
    assert torch.equal(steps.argmax(-1), ids[0, len(prompt) :]), (
        "greedy tokens hang on the length of the pass"
    )
    top2 = steps.topk(2).values
    gap = float((top2[:, 0] - top2[:, 1]).min())
    return ids[0].numpy().astype(np.int32), logits.numpy(), gap


def make_group(out: Path, owner: str, prompts: list[np.ndarray]) -> None:
    """Write every variant that has `owner`'s weights; draw until each greedy step is clear."""
    # The owner first: the others link to its weights.
    members = [owner, *(name for name, v in VARIANTS.items() if v.weights_of == owner)]
    first_seed = 1000 * zlib.crc32(owner.encode())
    for draw in range(MAX_DRAWS):
        weights = draw_weights(VARIANTS[owner], first_seed + draw)
        goldens: dict[str, dict[str, np.ndarray]] = {}
        for name in members:
            write_checkpoint(out / name, VARIANTS[name], weights)
            model = load(out / name, VARIANTS[name], weights)
            golden: dict[str, np.ndarray] = {}
            clear = True
            for i, prompt in enumerate(prompts):
                tokens, logits, gap = greedy(model, prompt)
                clear &= gap > MIN_TOP2_GAP
                clear &= len(set(tokens[len(prompt) :].tolist())) >= MIN_DISTINCT_TOKENS
                golden |= {f"prompt_{i}": prompt, f"greedy_{i}": tokens, f"logits_{i}": logits}
            if not clear:
                break
            goldens[name] = golden
        if len(goldens) == len(members):
            break
    else:
        raise RuntimeError(f"make_goldens: no clear draw for {owner} in {MAX_DRAWS}")
    check_differences(goldens)
    for name, golden in goldens.items():
        np.savez_compressed(out / name / "golden.npz", **golden)
        generation_config = VARIANTS[name].generation_config
        if generation_config is not None:
            if VARIANTS[name].extra_eos:
                sixth = int(golden["greedy_1"][PROMPT_LENGTHS[1] + 5])
                eos = [*generation_config["eos_token_id"], sixth]
                generation_config = generation_config | {"eos_token_id": eos}
            write_json(out / name / "generation_config.json", generation_config)
        spread = golden["logits_2"].std()
        print(f"{name}: draw {draw}, standard deviation of logits {spread:.2f}", flush=True)


def check_differences(goldens: dict[str, dict[str, np.ndarray]]) -> None:
    """Assert that variants of one set of weights differ on the last prompt where they should."""
    names = sorted(goldens)
    prompt_length = PROMPT_LENGTHS[-1]
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            difference = (
                goldens[a]["logits_2"][:prompt_length] - goldens[b]["logits_2"][:prompt_length]
            )
            if frozenset((a, b)) in EQUAL_VARIANTS:
                assert np.abs(difference).max() == 0.0, (a, b)
            else:
                assert np.abs(difference).max() > 0.1, (a, b, np.abs(difference).max())


def make_rope_frequencies(out: Path) -> None:
    """Write rope_frequencies.json (configs) and .npz (`<name>/inv_freq`, `…/attention_scaling`)."""
    arrays: dict[str, np.ndarray] = {}
    for name, keys in ROPE_CONFIGS.items():
        keys = json.loads(json.dumps(keys))  # transformers writes into the dictionaries it is given
        config = LlamaConfig(hidden_size=4096, num_attention_heads=4096 // keys["head_dim"], **keys)
        rope_type = config.rope_parameters["rope_type"]
        if rope_type == "default":
            inv_freq, scaling = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
        else:
            inv_freq, scaling = ROPE_INIT_FUNCTIONS[rope_type](config)
        arrays[f"{name}/inv_freq"] = inv_freq.numpy().astype(np.float32)
        arrays[f"{name}/attention_scaling"] = np.float64(scaling)
    np.savez_compressed(out / "rope_frequencies.npz", **arrays)
    write_json(out / "rope_frequencies.json", ROPE_CONFIGS)


def main() -> None:
    """Write everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent, help="folder to write to"
    )
    out = parser.parse_args().out
    torch.set_num_threads(1)
    # transformers 5 refuses a number of heads that does not divide hidden_size, even with an
    # explicit head_dim; its model computes it all the same, and such checkpoints exist.
    LlamaConfig.__class_validators__ = [
        v for v in LlamaConfig.__class_validators__ if v.__name__ != "validate_architecture"
    ]

    rng = np.random.default_rng(20250101)
    prompts = [rng.integers(3, VOCAB_SIZE, length).astype(np.int32) for length in PROMPT_LENGTHS]
    for name, variant in VARIANTS.items():
        if variant.weights_of is None:
            make_group(out, name, prompts)
    make_rope_frequencies(out)
    versions = {
        "numpy": np.__version__,
        "python": platform.python_version(),
        "safetensors": safetensors.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    write_json(out / "VERSIONS.json", versions)


if __name__ == "__main__":
    main()
