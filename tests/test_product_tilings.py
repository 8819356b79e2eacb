"""Which tilings of a product are tried: worked out by hand for small ones."""

import pytest

from cugraphs.product_tilings import SPLITS, Tiling, promising


def test_a_tile_on_each_multiprocessor_is_one_round():
    # 128 tiles of 64 x 128 on 132 multiprocessors, against as many of twice the size in two rounds.
    one, two = Tiling(64, 128), Tiling(64, 128)
    assert one.time(256, 4096, 132) == 64 * 128 + 32 * (64 + 128)
    assert two.time(512, 4096, 132) == 2 * one.time(256, 4096, 132)


def test_rows_and_columns_beyond_the_products_cost_as_much_as_others():
    assert Tiling(128, 128).time(1, 1, 132) == Tiling(128, 128).time(128, 128, 132)
    assert Tiling(128, 128).time(129, 128, 1) == 2 * Tiling(128, 128).time(128, 128, 1)


def test_parts_of_in_features_share_a_round_and_are_added():
    # 2 tiles on 4 multiprocessors: in two parts each, all compute, half as long, and a fifth more.
    assert Tiling(128, 128, 2).time(256, 128, 4) == pytest.approx(
        0.6 * Tiling(128, 128, 1).time(256, 128, 4)
    )


def test_the_best_come_first_and_no_tile_is_too_small_or_too_large():
    tiles = [(64, 128), (128, 64), (8, 8), (256, 256), (64, 128)]
    found = promising(tiles, 256, 4096, 132, count=100)
    assert {(t.features, t.rows) for t in found} == {(64, 128), (128, 64)}
    assert len(found) == 2 * len(SPLITS)
    times = [t.time(256, 4096, 132) for t in found]
    assert times == sorted(times) and found[0].splits == 1


def test_no_more_are_given_than_wanted():
    assert len(promising([(64, 64), (128, 128)], 64, 4096, 132, count=3)) == 3
    assert promising([], 64, 4096, 132, count=3) == []
