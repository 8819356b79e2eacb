"""Inputs that every form of SAMPLE is proven on: adjustments, filters, ties, broken rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cugraphs.kernel import Array, Case

from .adjust_logits import PROMPT_BIT
from .benchmark_sizes import VOCAB
from .case_arrays import normal


def _case(
    name: str,
    vocab: int,
    *,
    temperature: Sequence[float] = (1.0,),
    top_k: Sequence[int] = (0,),
    top_p: Sequence[float] = (1.0,),
    min_p: Sequence[float] = (0.0,),
    scale: float = 3.0,
    levels: int = 0,
    banned: float = 0.0,
    peak: float = 1.0,
    broken: bool = False,
    repetition: Sequence[float] = (1.0,),
    presence: Sequence[float] = (0.0,),
    frequency: Sequence[float] = (0.0,),
    biases: int = 0,
    stops: int = 0,
    rows: int = 12,
) -> Case:
    """Make rows over 8 slots, at least one of several dead; the parameters repeat over the slots.

    Args:
        name: of the case.
        vocab: tokens.
        temperature: of slots 0, 1, ...
        top_k: likewise.
        top_p: likewise.
        min_p: likewise.
        scale: standard deviation of the logits.
        levels: if above 0, logits are whole numbers below it, so that many tie.
        banned: share of the tokens that have a logit of -inf.
        peak: logit of one token, the same in all rows.
        broken: give some live rows NaN, +inf or only -inf.
        repetition: penalty of slots 0, 1, ...
        presence: likewise.
        frequency: likewise.
        biases: most biased tokens of a slot, of a capacity of 16.
        stops: most stop ids of a slot, of a capacity of 5; about half the rows are short.
        rows: of the step.
    """

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        slots = 8
        live = min(slots, max(1, rows - 1))
        row_ids = np.full(rows, -1, np.int32)
        row_ids[rng.permutation(rows)[:live]] = rng.permutation(slots)[:live]
        logits = rng.normal(scale=scale, size=(rows, vocab)).astype(np.float32)
        if levels:
            logits = rng.integers(levels, size=(rows, vocab)).astype(np.float32)
        logits[rng.random((rows, vocab)) < banned] = -np.inf
        logits[:, rng.integers(vocab)] = peak  # no row is without a token by chance
        logits[row_ids < 0] = np.nan
        if broken:
            known = np.flatnonzero(row_ids >= 0)
            logits[known[0], vocab - 1] = np.nan
            logits[known[1], vocab // 2] = np.inf
            logits[known[2]] = -np.inf
            logits[known[3], 0] = np.copysign(np.float32(np.nan), np.float32(-1.0))

        def per_slot(values: Sequence[float], dtype: type[np.generic]) -> Array:
            return np.resize(np.array(values, dtype), slots)

        def lists(capacity: int, most: int) -> Array:
            ids = np.full((slots, capacity), -1, np.int32)
            for slot in range(slots):
                used = int(rng.integers(min(most, vocab) + 1))
                ids[slot, :used] = rng.permutation(vocab)[:used]
            return ids

        counts = rng.integers(1, 9, size=(slots, vocab))
        counts[rng.random((slots, vocab)) < 0.7] = 0
        counts[rng.random((slots, vocab)) < 0.3] |= PROMPT_BIT
        return (
            counts.astype(np.int32),
            logits.astype(dtype),
            row_ids,
            rng.integers(100_000, size=rows, dtype=np.int32),
            per_slot(repetition, np.float32),
            per_slot(presence, np.float32),
            per_slot(frequency, np.float32),
            lists(16, biases),
            rng.uniform(-5, 5, size=(slots, 16)).astype(np.float32),
            lists(5, stops),
            np.full(slots, 50_000 if stops else 0, np.int32),
            per_slot(temperature, np.float32),
            per_slot(top_k, np.int32),
            per_slot(top_p, np.float32),
            per_slot(min_p, np.float32),
            rng.integers(2**32, size=(slots, 2), dtype=np.uint32),
            rng.integers(4, size=slots, dtype=np.int32),
            rng.integers(2, size=slots, dtype=np.int32),
        )

    return Case(name, make)


def _at_min_p(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """All tokens but one have the float32 next to where min_p cuts: above it, or just below it."""
    case = _case("", 1000, temperature=(0.7, 1.0, 1.9), min_p=(0.5, 0.3, 0.05, 0.8))
    arrays = case.make(rng, dtype)
    logits, row_ids, temperature, min_p = arrays[1], arrays[2], arrays[11], arrays[14]
    for row in np.flatnonzero(row_ids >= 0).tolist():
        slot = row_ids[row]
        logits[row] = 1.0 + float(temperature[slot]) * math.log(min_p[slot])
        logits[row, rng.integers(1000)] = 1.0
    return arrays


def _all_that_are_likely(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """The prefix ends with the last of 300 tokens, all equal or nearly so; others cannot be had."""
    arrays = _case("", 1000, top_k=(300, 0), top_p=(1.0, 0.9999), rows=7).make(rng, dtype)
    logits, row_ids = arrays[1], arrays[2]
    for row in np.flatnonzero(row_ids >= 0).tolist():
        likely = rng.permutation(1000)[:300]
        logits[row] = -np.inf
        logits[row, likely] = 1.0 if row % 3 else rng.uniform(1.0, 1.1, size=300)
    return arrays


def _neighbours_tie(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """Neighbours are equal and likely, and the filters cut between them.

    In some rows one block of a cluster has them all, and no room for so many; in others two blocks
    have them, and likelier ones after them.
    """
    case = _case("", 20_000, temperature=(0.1,), top_k=(0, 700), top_p=(0.5, 1.0), rows=7)
    arrays = case.make(rng, dtype)
    logits, row_ids = arrays[1], arrays[2]
    for i, row in enumerate(np.flatnonzero(row_ids >= 0).tolist()):
        logits[row] = 0.0
        if i % 2:
            logits[row, 100:1600] = 1.0
        else:
            logits[row, 7_800:8_700] = 1.0
            logits[row, 9_000:9_300] = 1.0625
    return arrays


def _draw_of_half(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
    """The draw is 1/2, which is the edge between two equal tokens: the later one is sampled.

    They are in two blocks of a cluster, in the runs of two threads, or in one run.
    """
    arrays = _case("", 16_384, rows=5).make(rng, dtype)
    logits, row_ids, positions, seeds, sample_index = (arrays[i] for i in (1, 2, 3, 15, 16))
    positions[:], seeds[:], sample_index[:] = 9_297_664, 0, 0  # found by trying
    likely = (16_384, 32, 2, 6_000)
    for row, count in zip(np.flatnonzero(row_ids >= 0).tolist(), likely, strict=True):
        logits[row] = -np.inf
        logits[row, :count] = 1.0
    return arrays


SAMPLE_CASES = (
    _case("greedy", 1000, temperature=(0.0, 1.0), top_k=(0, 1)),
    _case("greedy_ties", 1000, temperature=(0.0, 1.0), top_k=(0, 1), levels=3),
    _case("nearly_greedy_ties", 1000, temperature=(5e-6, 2e-5), levels=3),
    _case("no_filter", 1000, temperature=(1e-3, 0.7, 1.0, 10.0)),
    _case("top_k", 1000, top_k=(1, 2, 33, 999, 1000, 2**31 - 1), temperature=(0.7, 2.0)),
    _case("top_k_ties", 1000, top_k=(2, 7, 500, 999), levels=3),
    Case("all_that_are_likely", _all_that_are_likely),
    Case("neighbours_tie", _neighbours_tie),
    Case("draw_of_half", _draw_of_half),
    # The prefix ends with the last of the tokens whose weights are summed together.
    _case("top_k_of_whole_groups", 1000, top_k=(128, 256, 384), levels=2),
    _case("top_p", 1000, top_p=(1e-6, 0.1, 0.9, 0.999), temperature=(0.7, 2.0)),
    _case("top_p_ties", 1000, top_p=(0.05, 0.5, 0.95), levels=2),
    # top_k cuts among unlikely tokens, top_p among likely ones: both in many that are equal.
    _case(
        "filters_end_apart",
        1000,
        levels=2,
        temperature=(0.2,),
        top_k=(700,),
        top_p=(0.5, 0.9),
        rows=5,
    ),
    _case("min_p", 1000, min_p=(1e-6, 0.05, 0.5, 1.0), temperature=(0.7, 2.0)),
    Case("at_min_p", _at_min_p),
    _case(
        "all_filters",
        1000,
        temperature=(0.0, 0.6, 1.0, 1.5),
        top_k=(0, 50, 20),
        top_p=(0.95, 1.0, 0.8),
        min_p=(0.0, 0.05),
    ),
    _case("banned", 1000, banned=0.9, top_k=(0, 500), top_p=(1.0, 0.9)),
    _case("broken_rows", 1000, broken=True, temperature=(0.0, 1.0)),
    _case("one_token", 1, temperature=(0.0, 1.0), top_k=(0, 5), top_p=(1.0, 0.5), min_p=(0.1,)),
    _case("two_tokens", 2, top_k=(0, 2), top_p=(1.0, 0.5)),
    _case("odd_vocab", 33, temperature=(0.0, 1.0), top_k=(0, 32), top_p=(0.9,)),
    _case("block_edge", 257, temperature=(10.0,), top_p=(1.0, 0.99)),
    _case("large_vocab", 128_256, temperature=(0.0, 0.8), top_k=(0, 50), top_p=(0.95, 1.0)),
    # More tokens than a block sorts at a time: equal ones, and different ones close together.
    _case("many_ties", 20_000, levels=2, top_k=(0, 12_000), top_p=(0.3, 1.0)),
    _case(
        "far_peak",
        20_000,
        scale=0.1,
        peak=1000.0,
        temperature=(300.0,),
        top_k=(0, 9_000, 5_000),
        top_p=(0.6, 1.0, 0.9),
    ),
    # The first token of a row that is greedy shows what became of its logit.
    _case("bias", 1000, temperature=(0.0, 1.0), biases=16),
    _case("stops", 1000, temperature=(0.0, 1.0), stops=5),
    _case("repetition", 1000, temperature=(0.0, 1.0), repetition=(1.0, 1.3, 0.5)),
    _case("presence", 1000, temperature=(0.0, 1.0), presence=(0.0, 1.5, -2.0)),
    _case("frequency", 1000, temperature=(0.0, 1.0), frequency=(0.0, 0.1, -0.7)),
    _case(
        "everything",
        1000,
        temperature=(0.0, 0.6, 1.0, 1.5),
        top_k=(0, 50, 20),
        top_p=(0.95, 1.0, 0.8),
        min_p=(0.0, 0.05),
        repetition=(1.0, 1.1),
        presence=(0.0, 0.3, -0.3),
        frequency=(0.0, 0.0, 0.2, -0.2),
        biases=16,
        stops=5,
        banned=0.1,
    ),
    _case("one_token_penalised", 1, repetition=(1.2,), presence=(0.5,), biases=1),
    _case("two_tokens_stopped", 2, repetition=(1.2, 1.0), biases=2, stops=1),
    _case("odd_vocab_penalised", 33, repetition=(1.2, 1.0), frequency=(0.1,), biases=16, stops=5),
    # A row of several chunks, the last of them short.
    _case(
        "several_chunks",
        20_008,
        temperature=(0.0, 0.7, 1.0),
        top_k=(0, 30),
        top_p=(0.9, 1.0, 0.99),
        repetition=(1.0, 1.2),
        biases=16,
        stops=5,
    ),
    # A tail of weights below 2^-20, which together are an eighth of the total.
    _case("far_tail", 128_256, scale=0.1, peak=13.87, top_p=(1.0, 0.95)),
    # Rows whose prefixes end in other bins than their number of candidates, or a group's top, says.
    _case(
        "top_k_of_many",
        20_008,
        top_k=(900, 3_000, 12_000, 20_000),
        top_p=(1.0, 0.9, 0.5),
        min_p=(0.0, 1e-3),
    ),
    # More rows than have a form of their own, and fewer.
    _case(
        "many_rows",
        20_008,
        temperature=(0.0, 0.7, 1.0, 1.5),
        top_k=(0, 30, 900),
        top_p=(0.9, 1.0, 0.99, 0.5),
        min_p=(0.0, 0.0, 0.0, 0.0, 0.05),
        repetition=(1.0, 1.2),
        biases=16,
        stops=5,
        rows=20,
    ),
    _case("many_rows_ties", 20_000, levels=2, top_k=(0, 12_000), top_p=(0.3, 1.0), rows=20),
    _case("one_row", 128_256, temperature=(0.6,), top_p=(0.9,), rows=1),
    _case("few_rows", 20_008, temperature=(0.0, 0.7, 1.0), top_k=(0, 30), min_p=(0, 0.1), rows=8),
    _case(
        "few_rows_everything",
        20_008,
        temperature=(1.0, 0.6, 1.5),
        top_k=(0, 50, 20_000),
        top_p=(0.95, 0.8, 1.0),
        repetition=(1.0, 1.1),
        biases=16,
        stops=5,
        rows=7,
    ),
    _case("few_rows_nearly_flat", 128_256, scale=0.3, top_p=(0.9, 0.5), top_k=(0, 999), rows=3),
    _case("few_rows_ties", 20_000, levels=2, top_k=(0, 12_000), top_p=(0.3, 1.0), rows=4),
    _case(
        "few_rows_of_256k", 256_000, temperature=(0.7, 1.0), top_k=(0, 50), top_p=(0.95,), rows=3
    ),
    _case("few_rows_of_32k", 32_000, scale=0.5, top_k=(50, 0, 999), top_p=(1.0, 0.95), rows=4),
    _case("few_rows_broken", 1000, broken=True, temperature=(0.0, 1.0), rows=6),
)


def _full_batch(
    name: str, temperature: float, top_p: float = 1.0, top_k: int = 0, rows: int = 64
) -> Case:
    """Live rows over a vocabulary of real size, all with the same parameters."""

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        none, zeros = np.full((rows, 1), -1, np.int32), np.zeros(rows, np.float32)
        return (
            np.zeros((rows, VOCAB), np.int32),
            normal(rng, dtype, (rows, VOCAB), 3.0),
            np.arange(rows, dtype=np.int32),
            rng.integers(100_000, size=rows, dtype=np.int32),
            np.ones(rows, np.float32),
            zeros,
            zeros,
            none,
            np.zeros((rows, 1), np.float32),
            none,
            np.zeros(rows, np.int32),
            np.full(rows, temperature, np.float32),
            np.full(rows, top_k, np.int32),
            np.full(rows, top_p, np.float32),
            zeros,
            rng.integers(2**32, size=(rows, 2), dtype=np.uint32),
            np.zeros(rows, np.int32),
            np.zeros(rows, np.int32),
        )

    return Case(name, make)


SAMPLE_BENCHMARKS = (
    _full_batch("64x128256_greedy", temperature=0.0),
    _full_batch("64x128256_no_filter", temperature=0.8),
    _full_batch("64x128256_top_p", temperature=0.8, top_p=0.9),
    _full_batch("64x128256_top_k_top_p", temperature=0.8, top_p=0.9, top_k=50),
    _full_batch("1x128256_greedy", temperature=0.0, rows=1),
    _full_batch("1x128256_top_p", temperature=0.6, top_p=0.9, rows=1),
    _full_batch("8x128256_top_p", temperature=0.6, top_p=0.9, rows=8),
)
