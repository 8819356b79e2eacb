"""Checkpoint names to device weights: which tensors exist, how they are joined, and loading them.

q/k/v and gate/up are joined along their first axis, so that each pair of projections that share an
input is one matrix product. The copy to the device joins them: each has a place in the array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from cugraphs.arena import allocate_arrays
from cugraphs.device import Device
from cugraphs.kernel import DTYPES, Array, ArrayType
from cugraphs.models.llama_config import LlamaConfig
from cugraphs.models.rope import CHUNK_POSITIONS, RopeConfig, cos_sin_table
from cugraphs.weight_loading import CHUNK_BYTES, Part, Tensor, WeightLoading

EMBEDDING_WEIGHT = "model.embed_tokens.weight"
HEAD_WEIGHT = "lm_head.weight"
ROPE_COS_SIN = "rope_cos_sin"  # computed from the config, not stored in checkpoints
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_COMPARED_BYTES = 1 << 20  # small enough for a core's cache
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)  # buffers that old converters saved


@dataclass(frozen=True)
class Weight:
    """One WEIGHT buffer of the model.

    Args:
        shape: of the buffer.
        parts: the checkpoint tensors that fill it, joined along axis 0, as (name, rows).
    """

    shape: tuple[int, ...]
    parts: tuple[tuple[str, int], ...]


def weight_table(config: LlamaConfig) -> dict[str, Weight]:
    """Every weight of the model by buffer name, in execution order."""
    c = config
    table: dict[str, Weight] = {}

    def add(name: str, columns: int | None, *parts: tuple[str, int]) -> None:
        rows = sum(size for _, size in parts)
        table[name] = Weight((rows,) if columns is None else (rows, columns), parts)

    def linear(name: str, columns: int, bias: bool, *parts: tuple[str, int]) -> None:
        add(f"{name}.weight", columns, *((f"{part}.weight", rows) for part, rows in parts))
        if bias:
            add(f"{name}.bias", None, *((f"{part}.bias", rows) for part, rows in parts))

    add(EMBEDDING_WEIGHT, c.hidden_size, (EMBEDDING_WEIGHT, c.vocab_size))
    for i in range(c.num_hidden_layers):
        layer = f"model.layers.{i}"
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            add(f"{layer}.{norm}.weight", None, (f"{layer}.{norm}.weight", c.hidden_size))
        linear(
            f"{attention}.qkv_proj",
            c.hidden_size,
            c.attention_bias,
            (f"{attention}.q_proj", c.q_size),
            (f"{attention}.k_proj", c.kv_size),
            (f"{attention}.v_proj", c.kv_size),
        )
        o_proj = f"{attention}.o_proj"
        linear(o_proj, c.q_size, c.attention_bias, (o_proj, c.hidden_size))
        linear(
            f"{mlp}.gate_up_proj",
            c.hidden_size,
            c.mlp_bias,
            (f"{mlp}.gate_proj", c.intermediate_size),
            (f"{mlp}.up_proj", c.intermediate_size),
        )
        down_proj = f"{mlp}.down_proj"
        linear(down_proj, c.intermediate_size, c.mlp_bias, (down_proj, c.hidden_size))
    add("model.norm.weight", None, ("model.norm.weight", c.hidden_size))
    if not c.tie_word_embeddings:
        add(HEAD_WEIGHT, c.hidden_size, (HEAD_WEIGHT, c.vocab_size))
    return table


def checkpoint_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that a checkpoint of the model holds, by name."""
    return {
        part: (rows, *weight.shape[1:])
        for weight in weight_table(config).values()
        for part, rows in weight.parts
    }


def begin_loading(
    tensors: Mapping[str, Tensor],
    config: LlamaConfig,
    dtype: str,
    max_model_len: int,
    device: Device,
    *,
    source: str = "checkpoint",
    progress: Callable[[int], None] | None = None,
    readers: int | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> tuple[dict[str, Array], WeightLoading]:
    """Begin to fill every weight from the checkpoint, converted to ``dtype``, in one allocation.

    Args:
        tensors: of the checkpoint, by name.
        config: of the same model.
        dtype: of the weights in memory.
        max_model_len: positions of the RoPE table.
        device: holds the weights.
        source: names the checkpoint in errors.
        progress: called with the number of checkpoint bytes just read, by a thread of the loading.
        readers: threads that read; None is what fits the machine.
        chunk_bytes: of each of their two host buffers.

    Returns:
        An array of the device for every name of :func:`weight_table`, and the RoPE table (float32);
        and the loading that fills them, to be entered as a context: they hold their values once it
        is left.

    Raises:
        ValueError: a tensor is missing, left over, or has another shape or dtype than the config
            says; the message names it.
        MemoryError: the weights do not fit; the message gives their size.
    """
    table = weight_table(config)
    names = check_tensors(tensors, config, source)
    types = {name: ArrayType(weight.shape, dtype) for name, weight in table.items()}
    types[ROPE_COS_SIN] = ArrayType((max_model_len, config.head_dim), "float32")
    try:
        weights = allocate_arrays(types, device.allocate_bytes)
    except MemoryError as error:
        total_bytes = sum(type_.nbytes for type_ in types.values())
        raise MemoryError(
            f"{source}: the weights are {total_bytes:,} bytes in {dtype} with a RoPE table of "
            f"{types[ROPE_COS_SIN].nbytes:,} ({error}); use a smaller model or max_model_len, or a "
            "machine with more memory"
        ) from None
    rope = _RopeTable(config.rope, types[ROPE_COS_SIN].shape)
    parts = [Part(rope, weights[ROPE_COS_SIN], computed=True)]
    for name, weight in table.items():
        row = 0
        for part, rows in weight.parts:
            parts.append(Part(tensors[names[part]], weights[name][row : row + rows]))
            row += rows
    loading = WeightLoading(
        parts, device, progress=progress, readers=readers, chunk_bytes=chunk_bytes
    )
    return weights, loading


class _RopeTable:
    """The RoPE table as a tensor, computed as it is read."""

    dtype = "float32"

    def __init__(self, rope: RopeConfig, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._rope = rope

    def read(self, begin: int, buffer: Array) -> None:
        num_positions, head_dim = self.shape
        row_bytes = head_dim * DTYPES[self.dtype].itemsize
        first = begin // row_bytes // CHUNK_POSITIONS * CHUNK_POSITIONS
        end = min(-(-(begin + buffer.nbytes) // row_bytes), num_positions)
        rows = cos_sin_table(self._rope, head_dim, end - first, first=first)
        skip = begin - first * row_bytes
        buffer[:] = rows.reshape(-1).view(np.uint8)[skip : skip + buffer.nbytes]

    def check_unchanged(self) -> None:
        pass


def check_tensors(
    tensors: Mapping[str, Tensor], config: LlamaConfig, source: str
) -> dict[str, str]:
    """Hold a checkpoint against the config before anything is loaded.

    Returns:
        For each part of :func:`weight_table` the checkpoint tensor that fills it.

    Raises:
        ValueError: as :func:`begin_loading`.
    """
    table = weight_table(config)
    names = {part: part for weight in table.values() for part, _ in weight.parts}
    ignored = {name for name in tensors if name.endswith(_IGNORED_SUFFIXES)}
    if config.tie_word_embeddings and HEAD_WEIGHT in tensors:
        # A tied checkpoint may store either name, or both.
        if EMBEDDING_WEIGHT not in tensors:
            names[EMBEDDING_WEIGHT] = HEAD_WEIGHT
        elif not _same(tensors[EMBEDDING_WEIGHT], tensors[HEAD_WEIGHT]):
            raise ValueError(
                f"{source}: {HEAD_WEIGHT} differs from {EMBEDDING_WEIGHT}, expected equal tensors "
                "because config.json says tie_word_embeddings; set it to false to use both"
            )
        ignored.add(HEAD_WEIGHT)
    for weight in table.values():
        for part, rows in weight.parts:
            tensor = tensors.get(names[part])
            if tensor is None:
                raise ValueError(
                    f"{source}: tensor {part} is missing, expected shape "
                    f"{[rows, *weight.shape[1:]]} as config.json implies"
                )
            expected = (rows, *weight.shape[1:])
            if tensor.shape != expected:
                raise ValueError(
                    f"{source}: tensor {names[part]} has shape {list(tensor.shape)}, "
                    f"expected {list(expected)} as config.json implies"
                )
            if tensor.dtype not in _FLOATS:
                raise ValueError(
                    f"{source}: tensor {names[part]} is {tensor.dtype}, expected one of "
                    f"{', '.join(_FLOATS)}; quantized checkpoints are not supported"
                )
    left_over = sorted(set(tensors) - set(names.values()) - ignored)
    if left_over:
        more = f" and {len(left_over) - 1} more" if len(left_over) > 1 else ""
        raise ValueError(
            f"{source}: tensor {left_over[0]}{more} is not part of the model that config.json "
            "describes, expected no other tensors"
        )
    return names


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal bit for bit, read piece by piece."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    nbytes = math.prod(a.shape) * DTYPES[a.dtype].itemsize
    for begin in range(0, nbytes, _COMPARED_BYTES):
        piece_a, piece_b = np.empty((2, min(_COMPARED_BYTES, nbytes - begin)), np.uint8)
        a.read(begin, piece_a)
        b.read(begin, piece_b)
        if not np.array_equal(piece_a, piece_b):
            return False
    return True
