"""Which bucket serves n rows, and which traced program serves a bucket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cugraphs.ladder import Ladder

MAXIMA = [*range(1, 140), 191, 192, 193, 200, 255, 256, 257, 500, 512, 1000, 1024]


@pytest.mark.parametrize(
    ("max_rows", "rungs", "classes"),
    [
        (1, [1], [1]),
        (2, [1, 2], [1, 2]),
        (3, [1, 2, 3], [1, 3]),
        (8, [1, 2, 4, 8], [1, 8]),
        (9, [1, 2, 4, 8, 9], [1, 8, 9]),
        (64, [1, 2, 4, 8, 16, 32, 64], [1, 8, 64]),
        (100, [1, 2, 4, 8, 16, 32, 64, 100], [1, 8, 64, 100]),
        (128, [1, 2, 4, 8, 16, 32, 64, 128], [1, 8, 64, 128]),
        (129, [1, 2, 4, 8, 16, 32, 64, 128, 129], [1, 8, 64, 129]),
        (300, [1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 300], [1, 8, 64, 300]),
    ],
)
def test_rungs_and_classes(max_rows, rungs, classes):
    ladder = Ladder(max_rows)
    assert list(ladder.rungs) == rungs
    assert list(ladder.classes) == classes


@pytest.mark.parametrize("max_rows", MAXIMA)
def test_every_row_count_has_its_smallest_rung(max_rows):
    ladder = Ladder(max_rows)
    assert list(ladder.rungs) == sorted(set(ladder.rungs)) and ladder.rungs[-1] == max_rows
    for rows in range(1, max_rows + 1):
        rung = ladder.rung_for(rows)
        assert rung == min(r for r in ladder.rungs if r >= rows)
        # Padding never exceeds the live rows up to 128, and 63 rows above.
        assert rung - rows < max(rows, 64) and (rung <= 128 or rung - rows < 64)


def row_class(rows: int) -> int:
    """Kernels differ between 1, 2 to 8, 9 to 64, and more rows."""
    return sum(rows > top for top in (1, 8, 64))


@pytest.mark.parametrize("max_rows", MAXIMA)
def test_every_rung_is_served_by_the_largest_of_its_class(max_rows):
    ladder = Ladder(max_rows)
    for rung in ladder.rungs:
        traced_at = ladder.class_for(rung)
        peers = [other for other in ladder.rungs if row_class(other) == row_class(rung)]
        assert traced_at == max(peers) >= rung
    assert set(ladder.classes) == {ladder.class_for(rung) for rung in ladder.rungs}


@given(st.integers(1, 1024), st.integers())
def test_rows_off_the_ladder_are_refused(max_rows, rows):
    ladder = Ladder(max_rows)
    if not 1 <= rows <= max_rows:
        message = rf"^Ladder: rows is {rows}, expected 1 to {max_rows}$"
        with pytest.raises(ValueError, match=message):
            ladder.rung_for(rows)
    if rows not in ladder.rungs:
        with pytest.raises(
            ValueError, match=rf"^Ladder: {rows} is not a rung, expected one of \[1"
        ):
            ladder.class_for(rows)


@pytest.mark.parametrize("max_rows", [0, -1])
def test_an_empty_ladder_is_refused(max_rows):
    message = rf"^Ladder: max_rows is {max_rows}, expected at least 1"
    with pytest.raises(ValueError, match=message):
        Ladder(max_rows)
