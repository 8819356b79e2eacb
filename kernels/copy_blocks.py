"""Copy blocks of the paged cache: ``cache[target] = cache[source]`` for each pair, of K and of V.

A sample of a prompt takes over the blocks that another sample of it has filled; the last one, which
both go on to write, it gets as a copy. No target is a source, or the target of another pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import (
    CUDA_TYPES,
    DTYPES,
    Access,
    Array,
    Axes,
    Case,
    Cost,
    Kernel,
    Launch,
    Operand,
)

from .case_arrays import normal
from .launch_shapes import vector_width
from .rope_append import CACHE_AXES

THREADS = 256


def reference(k_cache: Array, v_cache: Array, pairs: Array) -> tuple[()]:
    """Copy the blocks.

    Args:
        k_cache: T [num_blocks, kv_heads, block_size, head_dim], modified.
        v_cache: T [num_blocks, kv_heads, block_size, head_dim], modified.
        pairs: int32 [pairs, 2]; (source, target), the source negative where there is no pair.
    """
    sources, targets = pairs[pairs[:, 0] >= 0].T
    for cache in (k_cache, v_cache):
        cache[targets] = cache[sources]
    return ()


def check(axes: Axes) -> None:
    """A pair is a source and a target.

    Raises:
        ValueError: it has another number of words than 2.
    """
    if axes["pair"] != 2:
        raise ValueError(
            f"copy_blocks: axis 'pair' of pairs is {axes['pair']}, expected 2: (source, target)"
        )


def _block_elements(axes: Axes) -> int:
    return math.prod(axes[name] for name in CACHE_AXES[1:])


def cost(axes: Axes, dtype: str) -> Cost:
    """Reads and writes a block of K and one of V for each pair."""
    block_bytes = _block_elements(axes) * DTYPES[dtype].itemsize
    return Cost(axes["pairs"] * (4 * block_bytes + 8), 0)


def launches(axes: Axes, dtype: str) -> tuple[Launch, ...]:
    """A thread a vector of K or V of each pair."""
    elements = _block_elements(axes)
    width = vector_width(dtype, elements)
    vectors = elements // width
    return (
        Launch(
            function=f"copy_blocks<{CUDA_TYPES[dtype]}, {width}>",
            grid=(axes["pairs"], 2, -(-vectors // THREADS)),
            block=THREADS,
            scalars=(np.int32(vectors),),
            programmatic=True,
        ),
    )


def _case(
    name: str, block: tuple[int, int, int], num_blocks: int, pairs: Sequence[tuple[int, int]]
) -> Case:
    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        k_cache, v_cache = (normal(rng, dtype, (num_blocks, *block)) for _ in range(2))
        return k_cache, v_cache, np.array(pairs, np.int32)

    return Case(name, make)


COPY_BLOCKS = Kernel(
    name="copy_blocks",
    operands=(
        Operand("k_cache", CACHE_AXES, "T", Access.UPDATE),
        Operand("v_cache", CACHE_AXES, "T", Access.UPDATE),
        Operand("pairs", ("pairs", "pair"), "int32"),
    ),
    reference=reference,
    cost=cost,
    check=check,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        _case("one", (2, 16, 64), 5, [(3, 1)]),
        _case("from_the_first_to_the_last", (2, 16, 64), 4, [(0, 3)]),
        _case("one_source_for_all", (2, 16, 8), 9, [(7, 2), (7, 8), (7, 1)]),
        _case("some_are_none", (4, 16, 8), 7, [(-1, -1), (2, 4), (-1, 5), (6, 1), (-1, -1)]),
        _case("none", (2, 16, 8), 3, [(-1, -1), (-1, 2)]),
        _case("more_than_a_block_of_threads", (8, 16, 128), 3, [(1, 2)]),
        _case("narrow", (1, 3, 3), 6, [(5, 2), (4, 1)]),
        _case("tiny", (1, 1, 2), 4, [(1, 2), (3, 0)]),
    ),
)
