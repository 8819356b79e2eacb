"""Linear, rotary embedding and append to the cache, for few rows.

``rope_append(x @ weight.T + bias)``. Rounding: the product is rounded as LINEAR stores it, so the
results are those of LINEAR and ROPE_APPEND, one after the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import DTYPES, Access, Array, Axes, Case, Cost, Kernel, Launch, Operand

from .case_arrays import int32, normal
from .held_rows import MAX_ROWS, held_shape
from .linear import LINEAR
from .rope_append import CACHE_AXES, ROPE_APPEND
from .rope_append import check as check_heads
from .stream_linear import STREAM_DTYPES, check_streams, stream_shape


def reference(
    k_cache: Array,
    v_cache: Array,
    x: Array,
    positions: Array,
    slot_mapping: Array,
    weight: Array,
    cos_sin: Array,
    bias: Array | None = None,
    *,
    q_size: int,
) -> tuple[Array]:
    """Multiply by a weight, rotate q and k, store k and v in their slots.

    Args:
        k_cache: T [num_blocks, kv_heads, block_size, head_dim], modified.
        v_cache: T [num_blocks, kv_heads, block_size, head_dim], modified.
        x: T [tokens, in_features].
        positions: int32 [tokens].
        slot_mapping: int32 [tokens]; -1 in dead rows.
        weight: T [qkv_size, in_features].
        cos_sin: float32 [max_position, head_dim], as of ROPE_APPEND.
        bias: T [qkv_size], or None.
        q_size: columns of q, heads*head_dim.

    Returns:
        q, T [tokens, q_size].
    """
    (qkv,) = LINEAR.reference(x, weight, bias)
    where = (cos_sin, positions, slot_mapping)
    (q,) = ROPE_APPEND.reference(k_cache, v_cache, qkv, *where, q_size=q_size)
    return (q,)


def cost(axes: Axes, dtype: str, *, q_size: int) -> Cost:
    """x, the weight, q, k, v and a row of cos_sin a token move once; the flops of both."""
    tokens, in_features, qkv_size = axes["tokens"], axes["in_features"], axes["qkv_size"]
    elements = tokens * in_features + qkv_size * in_features + tokens * qkv_size
    rope = ROPE_APPEND.cost(axes, dtype, q_size=q_size)
    nbytes = elements * DTYPES[dtype].itemsize + tokens * (4 * axes["head_dim"] + 8)
    return Cost(nbytes, 2 * tokens * in_features * qkv_size + rope.flops)


# Attention of so few rows reads before its wait. That of more does not, and its blocks in the way
# cost the 8B half a percent.
MAX_EARLY_ROWS = 4


def check(axes: Axes, *, q_size: int) -> None:
    """Refuse sizes that streaming does not take, and columns of no whole heads."""
    check_heads(axes, q_size=q_size)
    check_streams("linear_rope_append", axes, max_rows=MAX_ROWS)


def launches(axes: Axes, dtype: str, *, q_size: int) -> tuple[Launch, ...]:
    """One launch, of teams of warps that share the weight."""
    tokens, in_features, head_dim = axes["tokens"], axes["in_features"], axes["head_dim"]
    shape = stream_shape(tokens, in_features, axes["qkv_size"])
    sizes = (tokens, in_features, q_size // head_dim, axes["kv_heads"], head_dim)
    stream = Launch(
        function=shape.function("linear_rope_append", dtype),
        grid=(shape.blocks, 1, 1),
        block=shape.threads,
        scalars=tuple(map(np.int32, (*sizes, axes["block_size"]))),
        programmatic=True,
        settles=tokens <= MAX_EARLY_ROWS,
    )
    held = held_shape(tokens, in_features, axes["qkv_size"], dtype)
    return (held.launch("linear_rope_append", dtype, stream) if held else stream,)


def of_rope(name: str, in_features: int, *, bias: bool = False) -> Case:
    """Rows, heads and slots of a case of ROPE_APPEND, and what its qkv could come from."""
    rope = next(case for case in ROPE_APPEND.cases if case.name == name)

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        k_cache, v_cache, qkv, cos_sin, positions, slots = rope.make(rng, dtype)
        x = normal(rng, dtype, (len(qkv), in_features))
        weight = normal(rng, dtype, (qkv.shape[1], in_features), in_features**-0.5)
        rest = (normal(rng, dtype, (len(weight),)),) if bias else ()
        return (k_cache, v_cache, x, positions, slots, weight, cos_sin, *rest)

    return Case(name + "_bias" * bias, make, rope.attrs)


def few_pairs(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """Fewer pairs to rotate than a unit has, and a dead row."""
    caches = [normal(rng, dtype, (2, 1, 16, 2)) for _ in range(2)]
    x = normal(rng, dtype, (5, 256))
    positions, slots = int32([3, 7, 10**6, 1, 0]), int32([3, 30, -1, 16, 0])
    cos_sin = rng.uniform(-1, 1, (8, 2)).astype(np.float32)
    return (*caches, x, positions, slots, normal(rng, dtype, (6, 256), 0.1), cos_sin)


def _eight_rows(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """As many rows as there can be, some of them dead."""
    caches = [normal(rng, dtype, (3, 2, 16, 16)) for _ in range(2)]
    x, weight = normal(rng, dtype, (8, 256)), normal(rng, dtype, (128, 256), 256**-0.5)
    positions = int32(rng.integers(0, 40, 8))
    slots = int32(rng.permutation(np.arange(1, 48))[:8])
    slots[[2, 5]] = -1
    cos_sin = rng.uniform(-1, 1, (40, 16)).astype(np.float32)
    return (*caches, x, positions, slots, weight, cos_sin, normal(rng, dtype, (128,)))


LINEAR_ROPE_APPEND = Kernel(
    name="linear_rope_append",
    operands=(
        Operand("q", ("tokens", "q_size"), "T", Access.WRITE),
        Operand("k_cache", CACHE_AXES, "T", Access.UPDATE, appends=True),
        Operand("v_cache", CACHE_AXES, "T", Access.UPDATE, appends=True),
        Operand("x", ("tokens", "in_features"), "T"),
        Operand("positions", ("tokens",), "int32"),
        Operand("slot_mapping", ("tokens",), "int32"),
        Operand("weight", ("qkv_size", "in_features"), "T", constant=True),
        Operand("cos_sin", ("max_position", "head_dim"), "float32", constant=True, gathered=True),
        Operand("bias", ("qkv_size",), "T", optional=True, constant=True),
    ),
    reference=reference,
    cost=cost,
    check=check,
    cuda_dtypes=STREAM_DTYPES,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        of_rope("one_row", 256),
        of_rope("first_position", 512, bias=True),
        of_rope("block_edges", 256, bias=True),
        of_rope("mha_head_dim_128", 2560),
        of_rope("mqa", 384),
        of_rope("head_dim_8", 256),
        of_rope("head_dim_2", 256),
        of_rope("dead_rows", 256, bias=True),
        of_rope("only_dead_rows", 256),
        of_rope("slot_0", 256),
        of_rope("attention_scaling", 256),
        Case("few_pairs", few_pairs, {"q_size": 2}),
        Case("eight_rows", _eight_rows, {"q_size": 64}),
    ),
)
