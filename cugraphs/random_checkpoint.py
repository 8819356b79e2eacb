"""A model folder of random weights, written quickly and the same each time, for benchmarks.

A few million normal numbers are drawn once and written over and over, out of step with rows, by
several threads. The tokenizer is a byte-level BPE with as many merges as the model has tokens for,
so that reading it costs what a real one costs. What such a model says is noise.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from cugraphs.checkpoint import CONFIG_NAME, INDEX_NAME, WEIGHTS_NAME
from cugraphs.json_file import read_json_object
from cugraphs.kernel import DTYPES, Array
from cugraphs.random_fill import normal_block

SHARD_BYTES = 5 << 30  # as Hugging Face's own checkpoints
_WRITERS = 8
_STORED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def write_random_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    dtype: str = "bfloat16",
    shard_bytes: int = SHARD_BYTES,
    std: float = 0.02,
) -> None:
    """Write config.json, the weights and a tokenizer into a folder, unless they are there already.

    Args:
        folder: made if it is missing.
        config: of the model.
        shapes: of its tensors, by name; those of one dimension are the scales of norms, around 1.
        dtype: of the tensors.
        shard_bytes: of a file of weights, at most, where one tensor is not larger.
        std: of the matrices.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    config = {**config, "torch_dtype": dtype}
    folder.mkdir(parents=True, exist_ok=True)
    shards = _shards(shapes, DTYPES[dtype].itemsize, shard_bytes)
    names = [
        f"model-{index + 1:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else WEIGHTS_NAME
        for index in range(len(shards))
    ]
    settings = folder / CONFIG_NAME  # written last: what is there then is whole
    if settings.is_file() and read_json_object(settings) == json.loads(json.dumps(config)):
        return
    settings.unlink(missing_ok=True)
    with ThreadPoolExecutor(_WRITERS) as pool:
        jobs = [
            pool.submit(_write_at, path, start, tensor_bytes, block)
            for name, shard in zip(names, shards, strict=True)
            for path in [folder / name]
            for start, tensor_bytes, block in _begin_shard(path, shard, dtype, std)
        ]
        for job in jobs:
            job.result()
    if len(shards) > 1:
        weight_map = {tensor: n for n, s in zip(names, shards, strict=True) for tensor in s}
        (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    _tokenizer(int(config["vocab_size"])).save(str(folder / "tokenizer.json"))
    settings.write_text(json.dumps(config))


def _shards(
    shapes: Mapping[str, tuple[int, ...]], itemsize: int, shard_bytes: int
) -> list[dict[str, tuple[int, ...]]]:
    """The tensors of each file, in their order."""
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    room = shard_bytes
    for name, shape in shapes.items():
        nbytes = math.prod(shape) * itemsize
        if nbytes > room and shards[-1]:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = shape
        room -= nbytes
    return shards


def _begin_shard(
    path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str, std: float
) -> Iterator[tuple[int, int, Array]]:
    """Write a file's header; yields what remains: where, how much, and of which bytes."""
    matrix = normal_block(0.0, std, dtype).view("uint8")
    norm = normal_block(1.0, std, dtype).view("uint8")
    entries: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * DTYPES[dtype].itemsize
        entries[name] = {
            "dtype": _STORED[dtype],
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)  # data begin at a multiple of 8, as safetensors writes them
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
    for name, shape in shapes.items():
        first, last = entries[name]["data_offsets"]
        block = matrix if len(shape) > 1 else norm
        for start in range(first, last, block.nbytes):
            yield 8 + len(header) + start, min(block.nbytes, last - start), block


def _write_at(path: Path, start: int, nbytes: int, block: Array) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        view = block.data[:nbytes]
        while view:
            count = os.pwrite(descriptor, view, start)
            start, view = start + count, view[count:]
    finally:
        os.close(descriptor)


def _tokenizer(vocab_size: int) -> tokenizers.Tokenizer:
    """A byte-level BPE of so many tokens: every byte, then pairs of tokens as far as they go."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate(letters)}
    merges: list[tuple[str, str]] = []
    beginnings = letters
    while len(vocab) < vocab_size:
        merged = []
        for first, second in ((a, b) for a in beginnings for b in letters):
            if len(vocab) == vocab_size:
                break
            merges.append((first, second))
            merged.append(first + second)
            vocab[merged[-1]] = len(vocab)
        beginnings = merged
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend
