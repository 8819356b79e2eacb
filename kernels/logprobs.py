"""Log-probabilities: ``l[i] - m - log(sum(exp(l - m)))`` of a target token and of the likeliest.

On the logits as the model gives them, before biases, penalties, temperature and filters (vLLM's
``raw_logprobs``). Ranks and the likeliest tokens follow the order (logit descending, id ascending):
the rank of a token is 1 + the number of tokens before it, so that the token of rank k is entry
k - 1 of the list, ties included.

A row with ``num_logprobs`` -1, or without a target, gives 0, 0, -1 and 0. Entries beyond the number
wanted, or beyond the vocabulary, are -1 and 0. A row that is no distribution (NaN or +inf in it, or
nothing above -inf) gives a log-probability of NaN, rank 0 and no list.

Rounding: in float32 (float64 when the logits are float64), one rounding at the store.
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
    WORKSPACE,
    Access,
    Array,
    Axes,
    Case,
    Cost,
    Kernel,
    Launch,
    Operand,
    compute_dtype,
)

from .benchmark_sizes import VOCAB
from .precision import quiet, widen
from .row_order import (
    MAX_CANDIDATES,
    RANKS,
    SCRATCH_BYTES,
    THREADS,
    blocks_per_row,
    check_vocab,
    part_bytes,
    row_width,
    run_bits,
)
from .sample import largest

MAX_FEW_ROWS = 12  # that have a cluster each
_WORK_BYTES = 43 * 1024  # of a row: sizeof(ListWork), rounded up
_LIST_RANK_BYTES = 42 * 1024  # of shared memory: sizeof(ListRank), rounded up
_RESULTS = ("target_logprobs", "target_ranks", "top_ids", "top_logprobs")
_GIVEN = ("logits", "token_ids", "target_ids", "num_logprobs")


@quiet
def reference(
    logits: Array, token_ids: Array, target_ids: Array, num_logprobs: Array, *, max_logprobs: int
) -> tuple[Array, Array, Array, Array]:
    """Report the target's log-probability and rank, and the likeliest tokens, of each row.

    Args:
        logits: T [rows, vocab].
        token_ids: int32 [rows]; sampled; negative where none could be.
        target_ids: int32 [rows]; the token asked about; -1 is the sampled one.
        num_logprobs: int32 [rows]; likeliest tokens wanted, 0 to max_logprobs; -1 wants nothing.
        max_logprobs: columns of the list.

    Returns:
        target_logprobs, float32 [rows] (float64 for float64 logits); target_ranks, int32 [rows];
        top_ids, int32 [rows, max_logprobs]; top_logprobs, as target_logprobs, [rows, max_logprobs].
    """
    rows, dtype = len(logits), compute_dtype(logits.dtype)
    target_logprobs = np.zeros(rows, dtype)
    target_ranks = np.zeros(rows, np.int32)
    top_ids = np.full((rows, max_logprobs), -1, np.int32)
    top_logprobs = np.zeros((rows, max_logprobs), dtype)
    results = (target_logprobs, target_ranks, top_ids, top_logprobs)
    wanted = num_logprobs >= 0
    if not wanted.any():
        return results
    targets = np.where(target_ids >= 0, target_ids, token_ids)
    for row in np.flatnonzero(wanted & (targets >= 0)).tolist():
        values, target = widen(logits[row]), targets[row]
        peak = values.max()
        if not math.isfinite(peak):
            target_logprobs[row] = np.nan
            continue
        exponentials = values - peak
        log_sum = np.log(np.exp(exponentials, out=exponentials).sum())
        value = values[target]
        before = np.count_nonzero(values > value) + np.count_nonzero(values[:target] == value)
        target_logprobs[row] = value - peak - log_sum
        target_ranks[row] = before + 1
        count = min(int(num_logprobs[row]), max_logprobs, len(values))
        if count:
            top = largest(values, count, np.partition(values, -count)[-count])
            top = top[np.argsort(-values[top], kind="stable")]
            top_ids[row, :count] = top
            top_logprobs[row, :count] = values[top] - peak - log_sum
    return results


def check(axes: Axes, *, max_logprobs: int) -> None:
    """The list has a column and fits in shared memory, and there is a token to ask about.

    Raises:
        ValueError: max_logprobs or vocab is out of range.
    """
    if not 1 <= max_logprobs <= MAX_CANDIDATES:
        raise ValueError(
            f"logprobs: max_logprobs is {max_logprobs}, expected 1 to {MAX_CANDIDATES}"
        )
    check_vocab("logprobs", axes["vocab"])


def cost(axes: Axes, dtype: str, *, max_logprobs: int) -> Cost:
    """Rows that want all: every logit read once; subtract, exp, add and compare, 4 flops each."""
    rows, vocab = axes["rows"], axes["vocab"]
    row_bytes = 3 * 4 + 2 * 4 + 8 * max_logprobs
    return Cost(rows * (vocab * DTYPES[dtype].itemsize + row_bytes), 4 * rows * vocab)


def workspace(axes: Axes, dtype: str, *, max_logprobs: int) -> int:
    """What the launches hand on of each row."""
    return axes["rows"] * _WORK_BYTES


def launches(axes: Axes, dtype: str, *, max_logprobs: int) -> tuple[Launch, ...]:
    """Of few rows on sm_90a one launch, of a cluster for each row; else three."""
    anywhere = _launches_of_many(axes, dtype, max_logprobs)
    rows, vocab = axes["rows"], axes["vocab"]
    if rows > MAX_FEW_ROWS:
        return anywhere
    return (
        Launch(
            f"logprobs_few_rows<{CUDA_TYPES[dtype]}, {row_width(dtype, vocab)}>",
            (RANKS, rows, 1),
            THREADS,
            (np.int32(vocab), np.int32(max_logprobs), np.int32(run_bits(vocab))),
            (*_RESULTS, *_GIVEN),
            shared_bytes=_LIST_RANK_BYTES + max(part_bytes(vocab), SCRATCH_BYTES),
            programmatic=True,
            arch="sm_90a",
            elsewhere=anywhere,
            cluster=RANKS,
        ),
    )


def _launches_of_many(axes: Axes, dtype: str, max_logprobs: int) -> tuple[Launch, ...]:
    """Two launches in which blocks share the chunks of a row; in the last a block has a row."""
    rows, vocab = axes["rows"], axes["vocab"]
    template = f"<{CUDA_TYPES[dtype]}, {row_width(dtype, vocab)}>"
    grid = (blocks_per_row(rows, vocab), rows, 1)
    sizes = (np.int32(vocab), np.int32(max_logprobs))
    given = (*_GIVEN, WORKSPACE)
    return (
        Launch(f"logprobs_extents{template}", grid, THREADS, sizes, given, programmatic=True),
        Launch(f"logprobs_sums{template}", grid, THREADS, sizes, given, programmatic=True),
        Launch(
            f"logprobs_list{template}",
            (rows, 1, 1),
            THREADS,
            sizes,
            (*_RESULTS, *given),
            shared_bytes=SCRATCH_BYTES,
            programmatic=True,
        ),
    )


def _case(
    name: str,
    vocab: int,
    *,
    scale: float = 3.0,
    levels: int = 0,
    banned: float = 0.0,
    broken: bool = False,
    max_logprobs: int = 20,
    rows: int = 12,
    wanted: Sequence[int] = (),
) -> Case:
    """Make 12 rows that want -1 to ``max_logprobs`` tokens beside a sampled or a given target.

    Args:
        name: of the case.
        vocab: tokens.
        scale: standard deviation of the logits.
        levels: if above 0, logits are whole numbers below it, so that many tie.
        banned: share of the tokens that have a logit of -inf.
        broken: give some rows NaN, +inf or only -inf.
        max_logprobs: columns of the list.
        rows: of the step.
        wanted: by rows 0, 1, ..., repeating; by default from -1, a row that wants nothing.
    """

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        default = (-1, 0, 1, max_logprobs // 2, max_logprobs)
        logits = rng.normal(scale=scale, size=(rows, vocab))
        if levels:
            logits = rng.integers(levels, size=(rows, vocab)).astype(np.float64)
        logits[rng.random((rows, vocab)) < banned] = -np.inf
        logits[:, rng.integers(vocab)] = 1.0  # no row is without a token by chance
        num_logprobs = np.resize(np.array(wanted or default), rows)
        logits[num_logprobs < 0] = np.nan
        token_ids = rng.integers(vocab, size=rows)
        if broken:
            logits[1, vocab - 1] = np.nan
            logits[2, vocab // 2] = np.inf
            logits[3] = -np.inf
            token_ids[1:5] = -1
        target_ids = np.where(rng.random(rows) < 0.5, rng.integers(vocab, size=rows), -1)
        return (
            logits.astype(dtype),
            token_ids.astype(np.int32),
            target_ids.astype(np.int32),
            num_logprobs.astype(np.int32),
        )

    return Case(name, make, {"max_logprobs": max_logprobs})


LOGPROBS = Kernel(
    name="logprobs",
    operands=(
        Operand("target_logprobs", ("rows",), "W", Access.WRITE),
        Operand("target_ranks", ("rows",), "int32", Access.WRITE),
        Operand("top_ids", ("rows", "max_logprobs"), "int32", Access.WRITE),
        Operand("top_logprobs", ("rows", "max_logprobs"), "W", Access.WRITE),
        Operand("logits", ("rows", "vocab"), "T"),
        Operand("token_ids", ("rows",), "int32"),
        Operand("target_ids", ("rows",), "int32"),
        Operand("num_logprobs", ("rows",), "int32"),
    ),
    reference=reference,
    cost=cost,
    check=check,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    workspace=workspace,
    cases=(
        _case("random", 1000),
        _case("nearly_flat", 1000, scale=1e-3),
        _case("peaked", 1000, scale=50.0),
        _case("ties", 1000, levels=3),
        _case("banned", 1000, banned=0.99),
        _case("broken_rows", 1000, broken=True),
        _case("one_token", 1),
        _case("two_tokens", 2),
        _case("odd_vocab", 33),
        _case("one_column", 33, max_logprobs=1),
        _case("large_vocab", 128_256),
        _case("many_ties", 20_000, levels=1),  # more than a block sorts
        # More rows than have a form of their own, and fewer.
        _case("many_rows", 20_008, rows=20),
        _case("many_rows_ties", 20_000, levels=1, rows=20),
        _case("one_row", 128_256, rows=1, wanted=[20]),
        _case("few_rows", 20_008, rows=8),
        _case("few_rows_of_256k", 256_000, rows=2, wanted=[20, 0]),
        _case("few_rows_of_32k", 32_000, rows=3, wanted=[20, 1]),  # half of the blocks are empty
        _case("few_rows_broken", 1000, broken=True, rows=6),
        _case("few_rows_ties", 20_000, levels=2, rows=5),
    ),
    benchmarks=(_case("64x128256_top_20", VOCAB, rows=64, wanted=[20]),),
)
