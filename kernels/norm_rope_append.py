"""RMSNorm, linear, rotary embedding and append to the cache, for few rows.

``rope_append(rms_norm(x, gain) @ weight.T + bias)``. Rounding: the normalised rows and the product
are rounded as RMS_NORM and LINEAR store them, so the results are those of RMS_NORM, LINEAR and
ROPE_APPEND, one after the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import Access, Array, Axes, Case, Cost, Kernel, Launch, Operand

from .case_arrays import normal
from .linear_rope_append import LINEAR_ROPE_APPEND, few_pairs, of_rope
from .normalised_rows import check_normalised, normalised_cost, normalised_launch
from .rms_norm import RMS_NORM
from .rope_append import CACHE_AXES
from .rope_append import check as check_heads
from .stream_linear import STREAM_DTYPES


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
    rest = (positions, slot_mapping, weight, cos_sin, bias)
    (q,) = LINEAR_ROPE_APPEND.reference(k_cache, v_cache, normalised, *rest, q_size=q_size)
    return (q,)


def cost(axes: Axes, dtype: str, *, eps: float, q_size: int) -> Cost:
    """x, both weights, q, k, v and a row of cos_sin a token move once; the flops of all three."""
    product = LINEAR_ROPE_APPEND.cost(axes, dtype, q_size=q_size)
    return normalised_cost(product, axes, dtype, eps)


def check(axes: Axes, *, eps: float, q_size: int) -> None:
    """Refuse sizes that streaming does not take, and columns of no whole heads."""
    check_heads(axes, q_size=q_size)
    check_normalised("norm_rope_append", axes)


def launches(axes: Axes, dtype: str, *, eps: float, q_size: int) -> tuple[Launch, ...]:
    """One launch, of teams of warps that share the weight; each block normalises the rows."""
    head_dim = axes["head_dim"]
    return (
        normalised_launch(
            "norm_rope_append",
            axes,
            dtype,
            eps,
            columns=axes["qkv_size"],
            sizes=(q_size // head_dim, axes["kv_heads"], head_dim, axes["block_size"]),
            settles=True,
        ),
    )


def _normalised(case: Case, suffix: str = "", *, scale: float = 1.0) -> Case:
    """A case of LINEAR_ROPE_APPEND, with the norm's weight."""

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        k_cache, v_cache, x, positions, slots, *rest = case.make(rng, dtype)
        gain = 1 + normal(rng, dtype, (x.shape[1],), 0.25)
        return (k_cache, v_cache, x * dtype.type(scale), positions, slots, gain, *rest)

    return Case(case.name + suffix, make, {"eps": 1e-5, **case.attrs})


NORM_ROPE_APPEND = Kernel(
    name="norm_rope_append",
    operands=(
        Operand("q", ("tokens", "q_size"), "T", Access.WRITE),
        Operand("k_cache", CACHE_AXES, "T", Access.UPDATE, appends=True),
        Operand("v_cache", CACHE_AXES, "T", Access.UPDATE, appends=True),
        Operand("x", ("tokens", "in_features"), "T"),
        Operand("positions", ("tokens",), "int32"),
        Operand("slot_mapping", ("tokens",), "int32"),
        Operand("gain", ("in_features",), "T", constant=True),
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
        _normalised(of_rope("one_row", 256)),
        _normalised(of_rope("first_position", 512, bias=True)),
        _normalised(of_rope("block_edges", 128, bias=True)),
        _normalised(of_rope("mha_head_dim_128", 1024)),
        _normalised(of_rope("mqa", 384)),
        _normalised(of_rope("head_dim_8", 128)),
        _normalised(of_rope("head_dim_2", 256)),
        _normalised(of_rope("dead_rows", 192, bias=True)),
        _normalised(of_rope("only_dead_rows", 256)),
        _normalised(of_rope("slot_0", 256)),
        _normalised(of_rope("attention_scaling", 256)),
        _normalised(of_rope("one_row", 256), "_small_scale", scale=1e-3),  # shows a wrong eps
        _normalised(Case("few_pairs", few_pairs, {"q_size": 2})),
    ),
)
