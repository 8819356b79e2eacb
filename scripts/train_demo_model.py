# mypy: disable-error-code="import-not-found,import-untyped"
"""Makes the folder `models/demo`: a tokenizer and a small Llama, trained on our own text.

    python scripts/train_demo_model.py --out models/demo --steps 8518 --compile

needs torch, tokenizers, safetensors, jinja2 and numpy, and no download. That command takes minutes
on a data-centre GPU; without a GPU leave out `--compile` and expect days (`--steps 50 --documents
2000 --rows 4` is a quick trial). The Llama is written out as functions over a dict whose keys are
the checkpoint's tensor names. This script knows training only: no KV cache, no sampling beyond the
greedy lines that it prints at the end.

The steps: write documents (stories and conversations), train a byte-level BPE tokenizer on some of
them, encode all in parallel, pack them into rows whose documents do not see each other, train with
AdamW and a cosine schedule, round to BF16, measure the loss of the rounded weights on held-out
documents, and write the folder.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import demo_chat
import demo_stories
import jinja2
import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

if TYPE_CHECKING:
    Tensor = Any
else:
    Tensor = torch.Tensor
Parameters = dict[str, Tensor]

BOS, EOS, END_OF_TURN = "<|begin_of_text|>", "<|end_of_text|>", "<|end_of_turn|>"
SPECIAL_TOKENS = (BOS, EOS, END_OF_TURN, "<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + '<|end_of_turn|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": SPECIAL_TOKENS.index(BOS),
    "eos_token_id": SPECIAL_TOKENS.index(EOS),
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.04,
    "intermediate_size": 256,
    "max_position_embeddings": 1024,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "num_key_value_heads": 4,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 4.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 512,
        "rope_type": "llama3",
    },
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 1536,
}
HIDDEN: int = CONFIG["hidden_size"]  # type: ignore[assignment]
LAYERS: int = CONFIG["num_hidden_layers"]  # type: ignore[assignment]
HEADS: int = CONFIG["num_attention_heads"]  # type: ignore[assignment]
KV_HEADS: int = CONFIG["num_key_value_heads"]  # type: ignore[assignment]
HEAD_DIM: int = CONFIG["head_dim"]  # type: ignore[assignment]
INTERMEDIATE: int = CONFIG["intermediate_size"]  # type: ignore[assignment]
VOCAB: int = CONFIG["vocab_size"]  # type: ignore[assignment]
CONTEXT: int = CONFIG["max_position_embeddings"]  # type: ignore[assignment]
EPS: float = CONFIG["rms_norm_eps"]  # type: ignore[assignment]

CHATS_IN_TEN = 3
# This share of documents sees the one before it in its row, so that text after EOS is known, too.
JOINED_FRACTION = 0.1
PROMPTS = (
    "Once upon a time",
    "<|user|>Tell me a story about a brave rabbit.<|end_of_turn|><|assistant|>",
    "<|user|>What do bears eat?<|end_of_turn|><|assistant|>",
)


# ---- text and tokens ----


def document_of_index(seed: int, index: int, template: jinja2.Template) -> str:
    """Return document `index`: a story, or (three in ten) a conversation in the chat template."""
    if index % 10 < CHATS_IN_TEN:
        messages = demo_chat.chat_of_index(seed, index)
        return template.render(messages=messages, bos_token="", add_generation_prompt=False)
    return demo_stories.story_of_index(seed, index).text


def chat_template() -> jinja2.Template:
    """Return the compiled chat template, with the whitespace settings that its readers use."""
    return jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(CHAT_TEMPLATE)


def train_tokenizer(seed: int, documents: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer of the first documents; it puts one BOS before a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    template = chat_template()
    marks = re.compile("|".join(re.escape(token) for token in SPECIAL_TOKENS))

    def plain_texts() -> Iterator[str]:
        for index in range(documents):
            yield from marks.split(document_of_index(seed, index, template))

    tokenizer.train_from_iterator(plain_texts(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B:1", special_tokens=[(BOS, SPECIAL_TOKENS.index(BOS))]
    )
    if tokenizer.get_vocab_size() != VOCAB:
        raise ValueError(
            f"tokenizer: vocabulary is {tokenizer.get_vocab_size()} tokens, expected {VOCAB}; "
            "raise --documents"
        )
    return tokenizer


def encode_range(job: tuple[str, int, int, int]) -> list[NDArray[np.uint16]]:
    """Return documents `first` to `first + count`, each as uint16 [tokens] from BOS to EOS."""
    tokenizer_json, seed, first, count = job
    tokenizer = Tokenizer.from_str(tokenizer_json)
    template = chat_template()
    texts = (document_of_index(seed, index, template) for index in range(first, first + count))
    encoded = (np.array(tokenizer.encode(text + EOS).ids, np.uint16) for text in texts)
    return [ids for ids in encoded if len(ids) <= CONTEXT]


def encode_documents(
    tokenizer: Tokenizer, seed: int, first: int, count: int
) -> list[NDArray[np.uint16]]:
    """Return `encode_range` of the whole range, in its order, made by all cores."""
    size = 500
    jobs = [
        (tokenizer.to_str(), seed, start, min(size, first + count - start))
        for start in range(first, first + count, size)
    ]
    documents: list[NDArray[np.uint16]] = []
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for done, part in enumerate(pool.imap(encode_range, jobs), 1):
            documents += part
            show(f"encode {done}/{len(jobs)}", last=done == len(jobs))
    return documents


def pack(
    documents: list[NDArray[np.uint16]], rng: np.random.Generator, joined_fraction: float
) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """Return rows uint16 [rows, CONTEXT + 1] of shuffled documents, and each token's group.

    Tokens of different groups do not see each other. A row begins with a document's BOS; the
    document that no longer fits is cut, and the next row begins with the one after it.
    """
    rows: list[NDArray[np.uint16]] = []
    groups: list[NDArray[np.uint8]] = []
    width = CONTEXT + 1
    row, group, used, number = np.zeros(width, np.uint16), np.zeros(width, np.uint8), 0, 0
    joined = rng.random(len(documents)) < joined_fraction
    for index in rng.permutation(len(documents)):
        ids = documents[index][: width - used]
        number += not joined[index]
        row[used : used + len(ids)] = ids
        group[used : used + len(ids)] = number
        used += len(ids)
        if used == width:
            rows.append(row)
            groups.append(group)
            row, group, used, number = np.zeros(width, np.uint16), np.zeros(width, np.uint8), 0, 0
    return np.stack(rows), np.stack(groups)


# ---- the model ----


def tensor_shapes() -> dict[str, tuple[int, ...]]:
    """Return every tensor of the checkpoint, by name."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes[at + "input_layernorm.weight"] = (HIDDEN,)
        shapes[at + "self_attn.q_proj.weight"] = (HEADS * HEAD_DIM, HIDDEN)
        shapes[at + "self_attn.k_proj.weight"] = (KV_HEADS * HEAD_DIM, HIDDEN)
        shapes[at + "self_attn.v_proj.weight"] = (KV_HEADS * HEAD_DIM, HIDDEN)
        shapes[at + "self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD_DIM)
        shapes[at + "post_attention_layernorm.weight"] = (HIDDEN,)
        shapes[at + "mlp.gate_proj.weight"] = (INTERMEDIATE, HIDDEN)
        shapes[at + "mlp.up_proj.weight"] = (INTERMEDIATE, HIDDEN)
        shapes[at + "mlp.down_proj.weight"] = (HIDDEN, INTERMEDIATE)
    return shapes | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}


def initial_parameters(seed: int, device: str) -> Parameters:
    """Return float32 parameters: ones for norms, normal for matrices, smaller before a residual."""
    generator = torch.Generator().manual_seed(seed)
    parameters: Parameters = {}
    for name, shape in tensor_shapes().items():
        if len(shape) == 1:
            tensor = torch.ones(shape)
        else:
            scale = float(CONFIG["initializer_range"])  # type: ignore[arg-type]
            if "o_proj" in name or "down_proj" in name:
                scale /= math.sqrt(2 * LAYERS)
            tensor = torch.randn(shape, generator=generator) * scale
        parameters[name] = tensor.to(device).requires_grad_()
    return parameters


def rope_tables(device: str) -> tuple[Tensor, Tensor]:
    """Return cos and sin, float32 [CONTEXT, HEAD_DIM], of the `llama3` frequencies.

    Source: the rule published with Llama 3.1. Wavelengths above `original / low_freq_factor` are
    stretched by `factor`, those below `original / high_freq_factor` are kept, and those between
    are blended.
    """
    rule: dict[str, float] = CONFIG["rope_scaling"]  # type: ignore[assignment]
    theta = float(CONFIG["rope_theta"])  # type: ignore[arg-type]
    low, high, original = (
        float(rule[key])
        for key in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    kept = 1.0 / theta ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM)
    turns = original * kept / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    frequencies = blend * kept + (1 - blend) * kept / rule["factor"]
    angles = torch.outer(torch.arange(CONTEXT, dtype=torch.float32), frequencies).repeat(1, 2)
    return angles.cos().to(device), angles.sin().to(device)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return `x / sqrt(mean(x^2) + eps) * weight`, in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x [rows, heads, tokens, HEAD_DIM] with its halves rotated by the position's angles."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def logits_of(
    parameters: Parameters, ids: Tensor, visible: Tensor, tables: tuple[Tensor, Tensor]
) -> Tensor:
    """Return logits [rows, tokens, VOCAB]; `visible` is bool [rows, 1, tokens, tokens]."""
    rows, tokens = ids.shape
    cos, sin = (table[:tokens] for table in tables)
    x = F.embedding(ids, parameters["model.embed_tokens.weight"])

    def heads(hidden: Tensor, name: str, count: int) -> Tensor:
        out = F.linear(hidden, parameters[name])
        return out.view(rows, tokens, count, HEAD_DIM).transpose(1, 2)

    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        hidden = rms_norm(x, parameters[at + "input_layernorm.weight"])
        q = rotate(heads(hidden, at + "self_attn.q_proj.weight", HEADS), cos, sin)
        k = rotate(heads(hidden, at + "self_attn.k_proj.weight", KV_HEADS), cos, sin)
        v = heads(hidden, at + "self_attn.v_proj.weight", KV_HEADS)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, attn_mask=visible)
        mixed = mixed.transpose(1, 2).reshape(rows, tokens, HEADS * HEAD_DIM)
        x = x + F.linear(mixed, parameters[at + "self_attn.o_proj.weight"])
        hidden = rms_norm(x, parameters[at + "post_attention_layernorm.weight"])
        gate = F.linear(hidden, parameters[at + "mlp.gate_proj.weight"])
        up = F.linear(hidden, parameters[at + "mlp.up_proj.weight"])
        x = x + F.linear(F.silu(gate) * up, parameters[at + "mlp.down_proj.weight"])
    return F.linear(rms_norm(x, parameters["model.norm.weight"]), parameters["lm_head.weight"])


def loss_of(
    parameters: Parameters, ids: Tensor, groups: Tensor, tables: tuple[Tensor, Tensor]
) -> Tensor:
    """Return the mean cross-entropy, nats per token, of ids and groups [rows, tokens + 1]."""
    groups = groups[:, :-1]
    tokens = groups.shape[1]
    causal = torch.ones(tokens, tokens, dtype=torch.bool, device=ids.device).tril()
    visible = (causal & (groups[:, :, None] == groups[:, None, :]))[:, None]
    logits = logits_of(parameters, ids[:, :-1], visible, tables)
    return F.cross_entropy(logits.float().reshape(-1, VOCAB), ids[:, 1:].reshape(-1))


def greedy_text(parameters: Parameters, tokenizer: Tokenizer, prompt: str, device: str) -> str:
    """Return the greedy continuation of the prompt, up to an end token or 400 tokens."""
    ids: list[int] = tokenizer.encode(prompt).ids
    tables = rope_tables(device)
    start = len(ids)
    ends = {SPECIAL_TOKENS.index(EOS), SPECIAL_TOKENS.index(END_OF_TURN)}
    while len(ids) < start + 400 and ids[-1] not in ends:
        visible = torch.ones(len(ids), len(ids), dtype=torch.bool, device=device).tril()[None, None]
        with torch.no_grad():
            logits = logits_of(parameters, torch.tensor([ids], device=device), visible, tables)
        ids.append(int(logits[0, -1].argmax()))
    return str(tokenizer.decode(ids[start:]))


# ---- training ----


def show(line: str, last: bool = False) -> None:
    """Print a progress line: over the one before on a terminal, one a line elsewhere if `last`."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="\n" if last else "", file=sys.stderr, flush=True)
    elif last:
        print(line, file=sys.stderr, flush=True)


def learning_rate_of(step: int, steps: int, peak: float) -> float:
    """Return a linear warm-up of at most 300 steps to the peak, then half a cosine down to zero."""
    warmup = min(300, max(1, steps // 10))
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def batches_of(
    documents: list[NDArray[np.uint16]], rows: int, seed: int, device: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ids int64 and groups uint8, [rows, CONTEXT + 1], packed anew for every pass."""
    rng = np.random.default_rng(seed)
    while True:
        ids, groups = pack(documents, rng, JOINED_FRACTION)
        if len(ids) < rows:
            raise ValueError(
                f"batches: text is {len(ids)} rows, expected {rows}; raise --documents"
            )
        for start in range(0, len(ids) - rows + 1, rows):
            yield (
                torch.from_numpy(ids[start : start + rows].astype(np.int64)).to(device),
                torch.from_numpy(groups[start : start + rows]).to(device),
            )


def train(
    documents: list[NDArray[np.uint16]], arguments: argparse.Namespace, device: str
) -> Parameters:
    """Return trained float32 parameters."""
    parameters = initial_parameters(arguments.seed, device)
    matrices = [tensor for tensor in parameters.values() if tensor.dim() == 2]
    norms = [tensor for tensor in parameters.values() if tensor.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
        fused=device == "cuda",
    )
    tables = rope_tables(device)
    loss_function = torch.compile(loss_of) if arguments.compile else loss_of
    batches = batches_of(documents, arguments.rows, arguments.seed, device)
    started = time.monotonic()
    mean_loss = torch.zeros((), device=device)
    step = 0
    while step < arguments.steps:
        if arguments.minutes and step in (100, 200):
            if step == 100:
                before = time.monotonic()
            else:
                left = arguments.minutes * 60 - (time.monotonic() - started)
                fitting = 200 + int(left / (time.monotonic() - before) * 100)
                arguments.steps = max(201, min(arguments.steps, fitting))
                show(f"{arguments.steps} steps fit", last=True)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_of(step, arguments.steps, arguments.learning_rate)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = loss_function(parameters, *next(batches), tables)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean_loss = loss.detach() if step == 0 else mean_loss.lerp(loss.detach(), 0.05)
        step += 1
        if step % (20 if sys.stderr.isatty() else 100) == 0 or step == arguments.steps:
            shown_loss = float(mean_loss)
            seconds = time.monotonic() - started
            rate = step * arguments.rows * CONTEXT / seconds
            show(
                f"step {step}/{arguments.steps}  loss {shown_loss:.4f}  {rate / 1e3:,.0f} thousand "
                f"tokens/s  {seconds:.0f} s, {seconds * (arguments.steps / step - 1):.0f} s left",
                last=step == arguments.steps or (step % 500 == 0 and not sys.stderr.isatty()),
            )
    return parameters


def held_out_loss(
    parameters: Parameters, documents: list[NDArray[np.uint16]], device: str
) -> float:
    """Return the mean loss in nats per token, in float32, of documents that were not trained on."""
    ids, groups = pack(documents, np.random.default_rng(0), 0.0)
    tables = rope_tables(device)
    total = 0.0
    for start in range(0, len(ids), 8):
        part = torch.from_numpy(ids[start : start + 8].astype(np.int64)).to(device)
        groups_part = torch.from_numpy(groups[start : start + 8]).to(device)
        with torch.no_grad():
            total += float(loss_of(parameters, part, groups_part, tables)) * len(part)
    return total / len(ids)


# ---- the folder ----


def write_folder(folder: Path, parameters: Parameters, tokenizer: Tokenizer) -> None:
    """Write the weights as BF16, the tokenizer, and the configurations."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: t.detach().to("cpu", torch.bfloat16) for name, t in parameters.items()}
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    ends = [SPECIAL_TOKENS.index(EOS), SPECIAL_TOKENS.index(END_OF_TURN)]
    files: dict[str, object] = {
        "config.json": CONFIG,
        "generation_config.json": {
            "bos_token_id": SPECIAL_TOKENS.index(BOS), "do_sample": False, "eos_token_id": ends,
        },
        "tokenizer_config.json": {
            "bos_token": BOS,
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "eos_token": EOS,
            "model_max_length": CONTEXT,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


README = """# The demo model of cugraphs

A Llama of {parameters:,} parameters that tells short stories and holds small conversations about
them. It ships with the package so that `cugraphs generate demo "Once upon a time"` works with no
download, and so that tests have a real checkpoint with what small public models lack: an untied
head, grouped-query attention ({heads} query heads, {kv_heads} key-value heads of {head_dim}), and
`llama3` RoPE scaling. It knows nothing but its stories, and is for nothing else.

| what | value |
|---|---|
| license | Apache-2.0, as the project |
| shape | {layers} layers, hidden {hidden}, intermediate {intermediate}, vocabulary {vocab} |
| context | {context} tokens, trained at that length |
| weights | BF16, {weights_bytes:,} bytes; the whole folder is {folder_mb:.1f} MB |
| validation loss | {loss:.4f} nats per token on {held_out:,} held-out documents, weights in BF16 |
| training | {tokens:,.0f} million tokens: {steps:,} steps of {rows} rows of {context} tokens |
| time | {minutes:.1f} minutes on {where} |

## How it was made

All text is written by two grammars of this project, `scripts/demo_stories.py` and
`scripts/demo_chat.py`; no text from elsewhere was used. `scripts/train_demo_model.py` writes
{documents:,} documents with them, trains the byte-level BPE tokenizer and the model, and writes
this folder. The `llama3` scaling was on during training, so inference with it is exact.

    {command}

Made with {versions}.
The documents depend on the seed alone; the weights depend on the machine's arithmetic, too.

## Notes

* The tokenizer adds one `{bos}`. Stories end with `{eos}`, turns of a
  conversation with `{end_of_turn}`. `config.json` names the first as EOS,
  `generation_config.json` both.
* `generation_config.json` is greedy: the same prompt gives the same story each time, which is
  what a first run and a test want. For a new story each time use a temperature of 0.7 to 1.
"""


def main() -> None:
    """Make the folder, as the module docstring says."""
    parser = argparse.ArgumentParser(
        description="Train the demo model on text of this project's grammars and write its folder."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write, as models/demo")
    parser.add_argument("--documents", type=int, default=400_000, help="documents to train on")
    parser.add_argument("--held-out", type=int, default=4_000, help="documents for the final loss")
    parser.add_argument("--steps", type=int, default=8_000, help="optimizer steps")
    parser.add_argument(
        "--minutes", type=float, help="lower --steps so that training alone takes about this long"
    )
    parser.add_argument("--rows", type=int, default=64, help=f"rows of {CONTEXT} tokens in a step")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="the schedule's peak")
    parser.add_argument("--seed", type=int, default=1, help="of documents, weights and order")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    arguments = parser.parse_args()
    device = arguments.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"

    tokenizer = train_tokenizer(arguments.seed, min(arguments.documents, 20_000))
    count = arguments.documents
    documents = encode_documents(tokenizer, arguments.seed, 0, count)
    held_out = encode_documents(tokenizer, arguments.seed, count, arguments.held_out)
    tokens = sum(map(len, documents))
    print(f"{len(documents):,} documents, {tokens:,} tokens, longest {max(map(len, documents))}")

    started = time.monotonic()
    parameters = train(documents, arguments, device)
    minutes = (time.monotonic() - started) / 60
    rounded = {name: t.detach().bfloat16().float() for name, t in parameters.items()}
    loss = held_out_loss(rounded, held_out, device)
    float32_loss = held_out_loss(parameters, held_out, device)
    print(f"held-out loss {loss:.4f} (BF16 weights), {float32_loss:.4f} (float32 weights)")

    write_folder(arguments.out, parameters, tokenizer)
    command = ["python", "scripts/train_demo_model.py", "--out", "models/demo"]
    for option in ("documents", "steps", "rows", "learning_rate", "seed"):
        if getattr(arguments, option) != parser.get_default(option):
            command += ["--" + option.replace("_", "-"), str(getattr(arguments, option))]
    command += ["--compile"] if arguments.compile else []
    where = f"one {torch.cuda.get_device_name()}" if device == "cuda" else "CPU"
    packages = ("torch", "tokenizers", "safetensors", "jinja2", "numpy")
    versions = [f"Python {platform.python_version()}"] + [f"{p} {version(p)}" for p in packages]
    text = README.format(
        parameters=sum(tensor.numel() for tensor in parameters.values()),
        heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, layers=LAYERS, hidden=HIDDEN,
        intermediate=INTERMEDIATE, vocab=VOCAB, context=CONTEXT, documents=count,
        weights_bytes=(arguments.out / "model.safetensors").stat().st_size,
        folder_mb=sum(path.stat().st_size for path in arguments.out.iterdir()) / 1e6,
        held_out=len(held_out), loss=loss, steps=arguments.steps, rows=arguments.rows, where=where,
        tokens=arguments.steps * arguments.rows * CONTEXT / 1e6, minutes=minutes,
        command=" ".join(command), versions=", ".join(versions),
        bos=BOS, eos=EOS, end_of_turn=END_OF_TURN,
    )  # fmt: skip
    (arguments.out / "README.md").write_text(text, encoding="utf-8")
    for prompt in PROMPTS:
        print(f"\n>>> {prompt}\n{greedy_text(rounded, tokenizer, prompt, device)}")


if __name__ == "__main__":
    main()
