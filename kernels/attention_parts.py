"""Parts of rows: what each block of decode attention takes, once a step for all layers.

A row's K and V are read by one block for each KV head, unless they are more than a multiprocessor's
share of all by far: then by several blocks, each of which takes a part of the row. (To cut costs a
few microseconds, since whoever is last folds the parts together.) A part is whole units of 64
tokens, and the parts of a row differ by one unit at most. Long rows come first, so that short ones
fill the gaps. With ``batch_invariant`` no row is cut here: attention cuts each by its own length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cugraphs.kernel import Access, Array, Axes, Case, Cost, Kernel, Launch, Operand

from .case_arrays import Make, int32

UNIT_TOKENS = 64
PART_WORDS = 8
# An H100 has 132 multiprocessors. Where rows are half as many or fewer, each gets one part at most.
LONE_BLOCKS = 128
# Elsewhere a row is long if it is more than 1.4 shares of a multiprocessor.
WHOLE_SHARES = 94
PART_SHARES = 120  # at least
PART_SHARES_OF_MANY = 240
# Of attention, at a time. There is room for 264, but in a grid of so many the first blocks lie two
# on some multiprocessors and none on others.
BLOCKS = 256
THREADS = 1024
MAX_ROWS = 8192  # bounded by shared memory


@dataclass(frozen=True)
class Cuts:
    """How rows are cut, by their number alone.

    Args:
        whole_shares: a row that gives a block no more than one of so many equal shares of all work
            stays whole, and so does one that is no more than what a multiprocessor gets of parts.
        part_shares: no part is more than one of so many shares.
        lone_blocks: so many multiprocessors get a part each, as small as can be; 0: they get two,
            each one of ``part_shares``.
    """

    whole_shares: int
    part_shares: int
    lone_blocks: int

    @staticmethod
    def of(rows: int, kv_heads: int, batch_invariant: bool = False) -> Cuts:
        """Parts of few rows, whatever their lengths, find room at a time.

        Among many rows blocks that find no part come last, and cost nothing.
        """
        if batch_invariant:
            return Cuts(1, 1, 0)
        blocks = rows * kv_heads
        if 2 * blocks <= LONE_BLOCKS:
            return Cuts(LONE_BLOCKS, LONE_BLOCKS - blocks, LONE_BLOCKS)
        shares = PART_SHARES_OF_MANY if blocks >= BLOCKS else max(BLOCKS - blocks, PART_SHARES)
        return Cuts(WHOLE_SHARES, shares, 0)

    @property
    def scalars(self) -> tuple[int, ...]:
        """In the order of a launch."""
        return self.whole_shares, self.part_shares, self.lone_blocks


def most_parts(rows: int, kv_heads: int, batch_invariant: bool = False) -> int:
    """Parts that ``rows`` rows have at most."""
    spare = Cuts.of(rows, kv_heads).part_shares // kv_heads
    return rows if batch_invariant else rows + spare


def most_cut_parts(rows: int, kv_heads: int) -> int:
    """Parts that long rows have at most; they come first. Never less for more rows."""
    return min(most_parts(rows, kv_heads), (WHOLE_SHARES + BLOCKS) // kv_heads)


def reference(
    row_ids: Array,
    seq_lens: Array,
    *,
    heads: int,
    kv_heads: int,
    part_words: int,
    batch_invariant: bool = False,
) -> tuple[Array, Array]:
    """Cut rows into parts.

    Args:
        row_ids: int32 [rows]; the slot of the row's sequence.
        seq_lens: int32 [rows]; tokens in the cache; 0 in dead rows, which have an empty part.
        heads: query heads.
        kv_heads: KV heads: so many blocks take a part.
        part_words: words of a part, 8.
        batch_invariant: no row is cut.

    Returns:
        parts: int32 [rows+256, 8]; of each: row, slot, first token, token after the last one, index
        and number of the row's parts, 0, 0. The parts of a row follow each other; row -1 after all.
        arrivals: int32 [rows, heads]; all 0.
    """
    rows = len(seq_lens)
    parts = np.zeros((rows + BLOCKS, part_words), np.int32)
    parts[:, 0] = -1
    cut = cut_rows(seq_lens.tolist(), kv_heads, Cuts.of(rows, kv_heads, batch_invariant))
    for place, (row, *part) in enumerate(cut):
        parts[place, :6] = (row, row_ids[row], *part)
    return parts, np.zeros((rows, heads), np.int32)


def cut_rows(
    seq_lens: Sequence[int], kv_heads: int, cuts: Cuts
) -> list[tuple[int, int, int, int, int]]:
    """``(row, begin, end, index, parts)`` of each part: the longest rows' first."""
    units = [-(-max(length, 1) // UNIT_TOKENS) for length in seq_lens]

    def share(shares: int) -> int:
        return -(-sum(units) * kv_heads // shares)

    def parts_of(units: int, size: int) -> int:
        whole = max(share(cuts.whole_shares), size if cuts.lone_blocks else 2 * size)
        return -(-units // size) if units > whole else 1

    def fits(size: int) -> bool:
        return sum(parts_of(own, size) for own in units) * kv_heads <= cuts.lone_blocks

    size = share(cuts.part_shares)
    if cuts.lone_blocks:
        size = next(filter(fits, range(share(cuts.lone_blocks), size)), size)
    found = []
    for row in sorted(range(len(units)), key=lambda row: -units[row]):
        parts = parts_of(units[row], size)
        edges = [units[row] * i // parts * UNIT_TOKENS for i in range(parts)] + [seq_lens[row]]
        found += [(row, edges[i], edges[i + 1], i, parts) for i in range(parts)]
    return found


def cost(
    axes: Axes,
    dtype: str,
    *,
    heads: int,
    kv_heads: int,
    part_words: int,
    batch_invariant: bool = False,
) -> Cost:
    """Two words read for each row; each part and each count written once."""
    rows = axes["rows"]
    return Cost(4 * (2 * rows + (rows + BLOCKS) * part_words + rows * heads), 0)


def check(
    axes: Axes, *, heads: int, kv_heads: int, part_words: int, batch_invariant: bool = False
) -> None:
    """Refuse parts of another size, and more rows than a block can look at.

    Raises:
        ValueError: ``part_words`` is not 8, or there are too many rows.
    """
    if part_words != PART_WORDS:
        raise ValueError(f"attention_parts: part_words is {part_words}, expected {PART_WORDS}")
    if axes["rows"] > MAX_ROWS:
        raise ValueError(
            f"attention_parts: axis 'rows' is {int(axes['rows'])}, expected at most {MAX_ROWS}; "
            "lower max_num_seqs"
        )


def launches(
    axes: Axes,
    dtype: str,
    *,
    heads: int,
    kv_heads: int,
    part_words: int,
    batch_invariant: bool = False,
) -> tuple[Launch, ...]:
    """One block for all rows."""
    rows = axes["rows"]
    sizes = (rows, rows + BLOCKS, heads, kv_heads)
    cuts = Cuts.of(rows, kv_heads, batch_invariant).scalars
    scalars = tuple(np.int32(size) for size in (*sizes, *cuts))
    shared_bytes = 3 * 4 * rows
    return (
        Launch(
            "attention_parts",
            (1, 1, 1),
            THREADS,
            scalars,
            shared_bytes=shared_bytes,
            programmatic=True,
        ),
    )


def _inputs(seq_lens: Sequence[int]) -> Make:
    """Slots in random order; -1 where the length is 0."""

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        slots = rng.permutation(len(seq_lens) + 2)[: len(seq_lens)]
        return int32(np.where(np.array(seq_lens) > 0, slots, -1)), int32(seq_lens)

    return make


def _case(name: str, kv_heads: int, seq_lens: Sequence[int], batch_invariant: bool = False) -> Case:
    attrs = {"heads": 4 * kv_heads, "kv_heads": kv_heads, "part_words": PART_WORDS}
    return Case(name, _inputs(seq_lens), {**attrs, "batch_invariant": batch_invariant})


ATTENTION_PARTS = Kernel(
    name="attention_parts",
    operands=(
        Operand("parts", (f"rows+{BLOCKS}", "part_words"), "int32", Access.WRITE),
        Operand("arrivals", ("rows", "heads"), "int32", Access.WRITE),
        Operand("row_ids", ("rows",), "int32"),
        Operand("seq_lens", ("rows",), "int32"),
    ),
    reference=reference,
    cost=cost,
    check=check,
    source=Path(__file__).with_suffix(".cu"),
    launches=launches,
    cases=(
        _case("one_row", 8, [8192]),
        _case("one_token", 8, [1]),
        _case("longest", 1, [131_072]),
        _case("equal", 8, [1024] * 16),
        _case("as_many_as_shares", 1, [1024] * 94),
        _case("fewer_than_shares", 1, [1024] * 93),
        _case("one_long", 8, [70] * 30 + [100_000]),
        _case("two_parts_each", 8, [1090] * 8),
        _case("one_long_of_few", 8, [4096] + [300] * 7),
        _case("no_longer_than_two_parts", 8, [1090] * 10),
        _case("a_part_for_each_block", 1, [64] * 63 + [64 * 64]),
        _case("unequal", 8, [1, 2100, 0, 17, 130, 600, 64, 65, 128, 129]),
        _case("edges", 2, [63, 64, 65, 127, 128, 129, 255, 256, 257, 384, 385]),
        _case("only_dead_rows", 8, [0, 0, 0]),
        _case("more_heads_than_blocks", 300, [500, 1000]),
        _case("many_rows", 1, [(37 * row) % 1500 for row in range(1100)]),
        _case("batch_invariant", 8, [17, 0, 3000], batch_invariant=True),
    ),
)
