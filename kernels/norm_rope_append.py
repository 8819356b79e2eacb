"""RMSNorm, linear, rotary embedding and append to the cache, for few rows.

``rope_append(rms_norm(x, gain) @ weight.T + bias)``. Rounding: the normalised rows and the product
are rounded as RMS_NORM and LINEAR store them, so the results are those of RMS_NORM, LINEAR and
ROPE_APPEND, one after the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import DTYPES, Access, Array, Axes, Case, Cost, Kernel, Launch, Operand

from .case_arrays import int32, normal
from .linear import LINEAR
from .rms_norm import RMS_NORM
from .rope_append import CACHE_AXES, ROPE_APPEND
from .rope_append import check as check_heads
from .stream_linear import (
    MAX_NORM_ROWS,
    STREAM_DTYPES,
    check_streams,
    normalised_bytes,
    stream_shape,
)


def reference(
    k_cache: Array,
    v_cache: Array,
    x: Array,
    positions: Array,
    slot_mapping: Array,
    gain: Array,
    weight: Array,
    cos_sin: Array,
    bias: Array | None = None,
    *,
    eps: float,
    q_size: int,
) -> tuple[Array]:
    """Normalise each row, multiply by a weight, rotate q and k, store k and v in their slots.

    Args:
        k_cache: T [num_blocks, kv_heads, block_size, head_dim], modified.
        v_cache: T [num_blocks, kv_heads, block_size, head_dim], modified.
        x: T [tokens, in_features].
        positions: int32 [tokens].
        slot_mapping: int32 [tokens]; -1 in dead rows.
        gain: the norm's weight, T [in_features].
        weight: T [qkv_size, in_features].
        cos_sin: float32 [max_position, head_dim], as of ROPE_APPEND.
        bias: T [qkv_size], or None.
        eps: added to the mean square.
        q_size: columns of q, heads*head_dim.

    Returns:
        q, T [tokens, q_size].
    """
    (normalised,) = RMS_NORM.reference(x, gain, eps=eps)
    (qkv,) = LINEAR.reference(normalised, weight, bias)
    where = (cos_sin, positions, slot_mapping)
    (q,) = ROPE_APPEND.reference(k_cache, v_cache, qkv, *where, q_size=q_size)
    return (q,)


def cost(axes: Axes, dtype: str, *, eps: float, q_size: int) -> Cost:
    """x, both weights, q, k, v and a row of cos_sin a token move once; the flops of all three."""
    tokens, in_features, qkv_size = axes["tokens"], axes["in_features"], axes["qkv_size"]
    elements = tokens * in_features + in_features + qkv_size * in_features + tokens * qkv_size
    norm = RMS_NORM.cost({"tokens": tokens, "hidden": in_features}, dtype, eps=eps)
    rope = ROPE_APPEND.cost(axes, dtype, q_size=q_size)
    products = 2 * tokens * in_features * qkv_size
    nbytes = elements * DTYPES[dtype].itemsize + tokens * (4 * axes["head_dim"] + 8)
    return Cost(nbytes, norm.flops + products + rope.flops)


def check(axes: Axes, *, eps: float, q_size: int) -> None:
    """Refuse sizes that streaming does not take, and columns of no whole heads."""
    check_heads(axes, q_size=q_size)
    check_streams("norm_rope_append", axes, max_rows=MAX_NORM_ROWS, normalised=True)


def launches(axes: Axes, dtype: str, *, eps: float, q_size: int) -> tuple[Launch, ...]:
    """One launch, of teams of warps that share the weight; each block normalises the rows."""
    tokens, in_features, head_dim = axes["tokens"], axes["in_features"], axes["head_dim"]
    shape = stream_shape(tokens, in_features, axes["qkv_size"])
    sizes = (tokens, in_features, q_size // head_dim, axes["kv_heads"], head_dim)
    return (
        Launch(
            function=shape.function("norm_rope_append", dtype),
            grid=(shape.blocks, 1, 1),
            block=shape.threads,
            scalars=(*map(np.int32, (*sizes, axes["block_size"])), np.float32(eps)),
            shared_bytes=normalised_bytes(tokens, in_features),
            programmatic=True,
        ),
    )


def _of_rope(name: str, in_features: int, *, bias: bool = False, scale: float = 1.0) -> Case:
    """Rows, heads and slots of a case of ROPE_APPEND, and what its qkv could come from."""
    rope = next(case for case in ROPE_APPEND.cases if case.name == name)

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        k_cache, v_cache, qkv, cos_sin, positions, slots = rope.make(rng, dtype)
        x = normal(rng, dtype, (len(qkv), in_features), scale)
        gain = 1 + normal(rng, dtype, (in_features,), 0.25)
        weight = normal(rng, dtype, (qkv.shape[1], in_features), in_features**-0.5)
        rest = (normal(rng, dtype, (len(weight),)),) if bias else ()
        return (k_cache, v_cache, x, positions, slots, gain, weight, cos_sin, *rest)

    suffix = "_bias" * bias + ("_small_scale" if scale < 1 else "")
    return Case(name + suffix, make, {"eps": 1e-5, **rope.attrs})


def _few_pairs(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """Fewer pairs to rotate than a unit has, and a dead row."""
    caches = [normal(rng, dtype, (2, 1, 16, 2)) for _ in range(2)]
    x, gain = normal(rng, dtype, (5, 128)), 1 + normal(rng, dtype, (128,), 0.25)
    positions, slots = int32([3, 7, 10**6, 1, 0]), int32([3, 30, -1, 16, 0])
    cos_sin = rng.uniform(-1, 1, (8, 2)).astype(np.float32)
    return (*caches, x, positions, slots, gain, normal(rng, dtype, (6, 128), 0.1), cos_sin)


NORM_ROPE_APPEND = Kernel(
    name="norm_rope_append",
    operands=(
        Operand("q", ("tokens", "q_size"), "T", Access.WRITE),
        Operand("k_cache", CACHE_AXES, "T", Access.UPDATE),
        Operand("v_cache", CACHE_AXES, "T", Access.UPDATE),
        Operand("x", ("tokens", "in_features"), "T"),
        Operand("positions", ("tokens",), "int32"),
        Operand("slot_mapping", ("tokens",), "int32"),
        Operand("gain", ("in_features",), "T", constant=True),
        Operand("weight", ("qkv_size", "in_features"), "T", constant=True),
        Operand("cos_sin", ("max_position", "head_dim"), "float32", constant=True),
        Operand("bias", ("qkv_size",), "T", optional=True, constant=True),
    ),
    reference=reference,
    cost=cost,
    check=check,
    cuda_dtypes=STREAM_DTYPES,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        _of_rope("one_row", 256),
        _of_rope("first_position", 512, bias=True),
        _of_rope("block_edges", 128, bias=True),
        _of_rope("mha_head_dim_128", 1024),
        _of_rope("mqa", 384),
        _of_rope("head_dim_8", 128),
        _of_rope("head_dim_2", 256),
        _of_rope("dead_rows", 192, bias=True),
        _of_rope("only_dead_rows", 256),
        _of_rope("slot_0", 256),
        _of_rope("attention_scaling", 256),
        _of_rope("one_row", 256, scale=1e-3),  # shows a wrong eps
        Case("few_pairs", _few_pairs, {"eps": 1e-5, "q_size": 2}),
    ),
)
