"""Embedding: ``out[t] = table[token_ids[t]]``, zeros where the id is negative (a dead row).

Nothing is computed, so nothing is rounded. The same kernel gathers the rows that are sampled from
the hidden states of a step.
"""

from __future__ import annotations

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

from .benchmark_sizes import rowwise_sizes
from .case_arrays import Make, int32, normal
from .launch_shapes import LOADS_OF_THREAD, block_threads, vector_width

MANY_TOKENS = 1024  # of prefill


def reference(token_ids: Array, table: Array) -> tuple[Array]:
    """Gather rows of a table.

    Args:
        token_ids: int32 [tokens]; below the vocabulary's size, negative in dead rows.
        table: T [vocab, hidden].

    Returns:
        T [tokens, hidden].
    """
    dead = token_ids < 0
    if not dead.any():
        return (table.take(token_ids, axis=0),)
    out = table.take(np.where(dead, 0, token_ids), axis=0)
    out[dead] = 0
    return (out,)


def cost(axes: Axes, dtype: str) -> Cost:
    """Only the gathered rows of the table are read."""
    tokens, hidden = axes["tokens"], axes["hidden"]
    return Cost(2 * tokens * hidden * DTYPES[dtype].itemsize + 4 * tokens, 0)


def launches(axes: Axes, dtype: str) -> tuple[Launch, ...]:
    """A block a token's row, or a part of it where it is long.

    A thread has more loads under way where there are many tokens, since each waits for its id.
    """
    hidden = axes["hidden"]
    width = vector_width(dtype, hidden)
    vectors = hidden // width
    most = LOADS_OF_THREAD if axes["tokens"] < MANY_TOKENS else 2 * LOADS_OF_THREAD
    threads = block_threads(-(-vectors // most))
    loads = min(-(-vectors // threads), most)
    return (
        Launch(
            function=f"embedding<{CUDA_TYPES[dtype]}, {width}, {threads}, {loads}>",
            grid=(axes["tokens"], -(-vectors // (threads * loads)), 1),
            block=threads,
            scalars=(np.int32(hidden),),
            programmatic=True,
        ),
    )


def _inputs(vocab: int, hidden: int, token_ids: Sequence[int]) -> Make:
    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        return int32(token_ids), normal(rng, dtype, (vocab, hidden))

    return make


def _distinct(tokens: int, hidden: int) -> Make:
    """Tokens that all differ, so that each row comes from memory, from a table of 4 times more."""

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        token_ids = rng.permutation(4 * tokens)[:tokens]
        return int32(token_ids), normal(rng, dtype, (4 * tokens, hidden))

    return make


EMBEDDING = Kernel(
    name="embedding",
    operands=(
        Operand("out", ("tokens", "hidden"), "T", Access.WRITE),
        Operand("token_ids", ("tokens",), "int32"),
        Operand("table", ("vocab", "hidden"), "T", constant=True, gathered=True),
    ),
    reference=reference,
    cost=cost,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        Case("one_row", _inputs(50, 64, [17])),
        Case("first_last_and_repeated", _inputs(50, 33, [0, 49, 49, 7, 0])),
        Case("dead_rows", _inputs(20, 48, [-1, 3, -1, 19, -1])),
        Case("only_dead_rows", _inputs(20, 8, [-1, -1])),
        Case("wide", _inputs(7, 4096, [6, 0, 3])),
        Case("partial_block", _inputs(7, 2568, [6, -1, 3])),
        Case("many_tokens", _inputs(7, 40, [*range(6, -1, -1)] * 147)),
        Case("two_blocks_a_row", _inputs(7, 9000, [6, -1, 3])),
    ),
    benchmarks=tuple(
        Case(name, _distinct(rows, model.hidden)) for name, model, rows in rowwise_sizes()
    ),
)
