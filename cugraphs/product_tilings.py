"""Which tilings of a matrix product are worth timing: of some hundred, those that waste least.

A block of cuBLASLt's kernels computes a tile of the result; with split-K several blocks share one,
each for a part of in_features. All multiprocessors compute a tile at a time, so the last round of
tiles may leave most of them idle, and rows of a tile beyond the product's are computed for nothing.
Knows sizes only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SPLITS = (1, 2, 3, 4)
# Of tiles: fewer results and the tensor cores wait for operands; more and registers do not hold
# the sums.
_LEAST_RESULTS, _MOST_RESULTS = 64 * 16, 36 * 1024
# A step along in_features loads a row of operands for each row and column of the tile, and takes as
# much longer as if the tile had so many more results for each.
_RESULTS_OF_OPERAND = 32
_OF_PARTS = 1.2  # the time with split-K, whose parts are stored and added


@dataclass(frozen=True)
class Tiling:
    """How a product is dealt out to blocks.

    Args:
        features: columns of the result in a tile.
        rows: of the result in a tile.
        splits: parts of in_features.
    """

    features: int
    rows: int
    splits: int = 1

    def time(self, rows: int, out_features: int, multiprocessors: int) -> float:
        """Roughly, in what a multiprocessor takes for one result over all of in_features."""
        tiles = -(-out_features // self.features) * -(-rows // self.rows) * self.splits
        rounds = -(-tiles // multiprocessors)
        operands = _RESULTS_OF_OPERAND * (self.features + self.rows)
        of_tile = (self.features * self.rows + operands) / self.splits
        return rounds * of_tile * (_OF_PARTS if self.splits > 1 else 1)


def promising(
    tiles: Iterable[tuple[int, int]],
    rows: int,
    out_features: int,
    multiprocessors: int,
    *,
    count: int,
    splits: Sequence[int] = SPLITS,
) -> list[Tiling]:
    """The ``count`` tilings that should take least time, the best first.

    Args:
        tiles: (features, rows) of those that there are.
        rows: of the product's result.
        out_features: of the product's result.
        multiprocessors: of the card.
        count: how many are wanted.
        splits: that may be.
    """
    found = [
        Tiling(*tile, each)
        for tile in set(tiles)
        if _LEAST_RESULTS <= tile[0] * tile[1] <= _MOST_RESULTS
        for each in splits
    ]
    found.sort(key=lambda t: (t.time(rows, out_features, multiprocessors), t.splits, t.features))
    return found[:count]
