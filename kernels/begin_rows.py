"""Begin of a decode step of few rows in one launch: state, rows, embeddings, attention's parts.

For few rows :data:`APPLY_CHANGES`, :data:`DECODE_ROWS`, :data:`EMBEDDING` and
:data:`ATTENTION_PARTS` each do next to nothing; most of their time is what passes between one
launch and the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import (
    CUDA_TYPES,
    Access,
    Array,
    Axes,
    Case,
    Cost,
    Kernel,
    Launch,
    Operand,
)

from . import apply_changes, attention_parts, decode_rows, embedding
from .attention_parts import BLOCKS, PART_WORDS, Cuts
from .case_arrays import Make, int32, normal
from .launch_shapes import vector_width

MAX_ROWS = 16
THREADS = 512


def reference(
    words: Array,
    step: Array,
    changes: Array,
    launch: Array,
    row_ids: Array,
    last_token: Array,
    num_computed: Array,
    done: Array,
    block_tables: Array,
    num_logprobs: Array,
    table: Array,
    *,
    block_size: int,
    heads: int,
    kv_heads: int,
    part_words: int,
    batch_invariant: bool = False,
) -> tuple[Array, ...]:
    """Store the changed words, gather the rows' inputs and embeddings, and cut them into parts.

    Args:
        words: int32 [words], modified; last_token and all that follow up to num_logprobs are parts
            of it in a step.
        step: int32 [1], modified; the number of the newest step that has begun.
        changes: int32 [changes, 2], as of :data:`APPLY_CHANGES`.
        launch: int32 [2]; the number of the first step that was launched, and how many were.
        row_ids: int32 [rows]; a slot, or -1. No slot occurs twice.
        last_token: int32 [slots], as of :data:`DECODE_ROWS`; so the next four.
        num_computed: int32 [slots].
        done: int32 [slots].
        block_tables: int32 [slots, max_blocks].
        num_logprobs: int32 [slots].
        table: T [vocab, hidden].
        block_size: tokens of a block.
        heads: as of :data:`ATTENTION_PARTS`; so the next three.
        kv_heads: KV heads.
        part_words: words of a part.
        batch_invariant: no row is cut.

    Returns:
        What :data:`DECODE_ROWS` returns, the embeddings, T [rows, hidden], and what
        :data:`ATTENTION_PARTS` returns.
    """
    apply_changes.reference(words, changes, launch, step)
    state = (last_token, num_computed, done, block_tables, num_logprobs)
    found = decode_rows.reference(step, row_ids, *state, launch, block_size=block_size)
    cut = attention_parts.reference(
        found[4],
        found[3],
        heads=heads,
        kv_heads=kv_heads,
        part_words=part_words,
        batch_invariant=batch_invariant,
    )
    return (*found, *embedding.reference(found[0], table), *cut)


def check(
    axes: Axes,
    *,
    block_size: int,
    heads: int,
    kv_heads: int,
    part_words: int,
    batch_invariant: bool = False,
) -> None:
    """Few rows, and what the four kernels ask for.

    Raises:
        ValueError: an axis is out of range.
    """
    if axes["rows"] > MAX_ROWS:
        raise ValueError(
            f"begin_rows: axis 'rows' is {axes['rows']}, expected at most {MAX_ROWS}; use "
            "apply_changes, decode_rows, embedding and attention_parts"
        )
    apply_changes.check(axes)
    decode_rows.check(axes, block_size=block_size)
    attention_parts.check(axes, heads=heads, kv_heads=kv_heads, part_words=part_words)


def cost(
    axes: Axes,
    dtype: str,
    *,
    block_size: int,
    heads: int,
    kv_heads: int,
    part_words: int,
    batch_invariant: bool = False,
) -> Cost:
    """That of the four."""
    of_rows = decode_rows.cost(axes, dtype, block_size=block_size)
    embedded = embedding.cost({**axes, "tokens": axes["rows"]}, dtype)
    cut = attention_parts.cost(axes, dtype, heads=heads, kv_heads=kv_heads, part_words=part_words)
    return apply_changes.cost(axes, dtype) + of_rows + embedded + cut


def launches(
    axes: Axes,
    dtype: str,
    *,
    block_size: int,
    heads: int,
    kv_heads: int,
    part_words: int,
    batch_invariant: bool = False,
) -> tuple[Launch, ...]:
    """One block."""
    rows, hidden = axes["rows"], axes["hidden"]
    sizes = (
        *(rows, axes["changes"], axes["max_blocks"], block_size, hidden),
        *(rows + BLOCKS, heads, kv_heads, *Cuts.of(rows, kv_heads, batch_invariant).scalars),
    )
    return (
        Launch(
            f"begin_rows<{CUDA_TYPES[dtype]}, {vector_width(dtype, hidden)}, {THREADS}>",
            (1, 1, 1),
            THREADS,
            tuple(np.int32(size) for size in sizes),
            programmatic=True,
        ),
    )


def _inputs(row_ids: Sequence[int], *, hidden: int = 64, changes: int = 9, step: int = 8) -> Make:
    """The rows of a case of :data:`DECODE_ROWS`; changes of words that are no sequence's."""

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        slots, max_blocks, vocab = 6, 4, 50
        num_computed = rng.integers(0, 16 * max_blocks, slots)
        num_computed[:2] = (0, 16 * max_blocks - 1)
        num_computed[-1] = 16 * max_blocks
        changed = rng.integers(-(2**31), 2**31, (changes, 2), dtype=np.int32)
        changed[:, 0] = np.where(
            np.arange(changes) % 3 == 1, -1, 1 + rng.permutation(2999)[:changes]
        )
        changed[:1, 0] = 0
        return (
            int32(-1 - np.arange(3000)),
            int32([step]),
            changed,
            int32([9, 4]),
            int32(row_ids),
            int32(rng.integers(0, vocab, slots)),
            int32(num_computed),
            int32(np.arange(slots) % 4 == 3),
            int32(rng.integers(1, 99, (slots, max_blocks))),
            int32(rng.integers(-1, 5, slots)),
            normal(rng, dtype, (vocab, hidden)),
        )

    return make


_ATTRS = {"block_size": 16, "heads": 32, "kv_heads": 8, "part_words": PART_WORDS}
_FROM_CHANGES = {operand.name: operand for operand in apply_changes.APPLY_CHANGES.operands}
_FROM_ROWS = {operand.name: operand for operand in decode_rows.DECODE_ROWS.operands}

BEGIN_ROWS = Kernel(
    name="begin_rows",
    operands=(
        *decode_rows.DECODE_ROWS.produced,
        Operand("out", ("rows", "hidden"), "T", Access.WRITE),
        *attention_parts.ATTENTION_PARTS.produced,
        _FROM_CHANGES["words"],
        _FROM_ROWS["step"],
        *(_FROM_CHANGES[name] for name in ("changes", "launch")),
        *(
            _FROM_ROWS[name]
            for name in (
                *("row_ids", "last_token", "num_computed", "done"),
                *("block_tables", "num_logprobs"),
            )
        ),
        embedding.EMBEDDING.operands[-1],
    ),
    reference=reference,
    cost=cost,
    check=check,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        Case("one_row", _inputs([1]), _ATTRS),
        Case("dead_rows", _inputs([-1, 2, -1, -1, 0, -1], hidden=33), _ATTRS),
        Case("done_and_full", _inputs([3, 5, 2, 4], hidden=2568), _ATTRS),
        Case("second_step", _inputs([1, 0], step=9), _ATTRS),
        Case("many_changes", _inputs([4, 1, 0, 2], changes=1500), _ATTRS),
        Case("most_rows", _inputs([*range(6), *[-1] * 10], hidden=4096), _ATTRS),
        Case("batch_invariant", _inputs([1, 0]), {**_ATTRS, "batch_invariant": True}),
    ),
)
