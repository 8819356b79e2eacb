"""What `ProductTimer` tries and chooses; cuBLASLt and the clock are played."""

import types
from collections import Counter

import numpy as np
import pytest

from cugraphs import product_timing
from cugraphs.product_tilings import promising
from cugraphs.product_timing import BEST_TILINGS, CLUSTERS, TILINGS, ProductTimer
from cugraphs.tuning_table import Product

ROWS, OUT, IN = 128, 4096, 1024
MULTIPROCESSORS = 132
TILES = {
    (features, rows): 1 + number
    for number, (features, rows) in enumerate(
        (features, rows) for features in (64, 96, 128, 192, 256) for rows in (32, 64, 128)
    )
}


def algorithm(kind, tile=0, cluster=(1, 1), splits=1):
    return bytes([kind, tile, *cluster, splits]).ljust(64, b"\0")


class Library:
    """Proposes algorithms, makes others of them, and says how long each takes.

    Args:
        proposed: what it proposes at any number of rows, the first heuristic first.
        time_us: what an algorithm takes, by its bytes.
        refuses: whether it cannot make one of these bytes.
        fails: whether one of these bytes fails when it is launched.
    """

    def __init__(
        self, proposed, time_us, *, refuses=lambda found: False, fails=lambda found: False
    ):
        self.proposed, self.time_us, self.refuses, self.fails = proposed, time_us, refuses, fails
        self.asked = []  # what variants were made of, and how
        self.wrong = set()  # algorithms that compute something else

    def heuristics(self, shape, bias_ptr, *, count, workspace_bytes):
        assert (shape.tokens, shape.out_features, shape.in_features) == (ROWS, OUT, IN)
        return [self.plan(each) for each in self.proposed[:count]]

    def plan(self, found):
        return types.SimpleNamespace(algorithm=np.frombuffer(found, np.uint8), workspace_bytes=7)

    def restore(self, shape, bias_ptr, found):
        return self.plan(found)

    def kind(self, plan):
        return (int(plan.algorithm[0]),)

    def tiles(self, plan):
        return TILES

    def varied(self, plan, shape, bias_ptr, *, tile, cluster, splits):
        found = algorithm(int(plan.algorithm[0]), tile, cluster, splits)
        self.asked.append((plan.algorithm.tobytes(), found))
        return None if self.refuses(found) else self.plan(found)


@pytest.fixture
def timer(monkeypatch):
    """Makes a timer over a library; ``chained`` counts how often each algorithm was captured."""
    attributes = {"L2CacheSize": 1 << 20, "MultiProcessorCount": MULTIPROCESSORS}
    card = types.SimpleNamespace(attributes=attributes)
    cuda = types.SimpleNamespace(Device=lambda: card)
    monkeypatch.setattr(product_timing, "_cupy", lambda: types.SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(product_timing, "_fill", lambda *_: None)

    def make(library):
        chained = Counter()

        class Chain:
            def __init__(self, stream, launch, num_launches):
                (plan,) = launch.args
                self.found = plan.algorithm.tobytes()
                chained[self.found] += 1
                if library.fails(self.found):
                    raise RuntimeError("CUBLAS_STATUS_INTERNAL_ERROR")

            def us(self, rounds):
                return library.time_us(self.found)

        def result(self, rows, plan):
            is_wrong = plan.algorithm.tobytes() in library.wrong
            return np.full((2, OUT), 2.0 if is_wrong else 1.0, np.float32)

        monkeypatch.setattr(product_timing, "_Chain", Chain)
        monkeypatch.setattr(ProductTimer, "_result", result)
        device = types.SimpleNamespace(
            cublaslt=library,
            allocate_bytes=lambda nbytes: None,
            stream=types.SimpleNamespace(synchronize=lambda: None),
        )
        made = ProductTimer(device, Product("bfloat16", OUT, IN), ROWS)
        made.chained = chained
        return made

    return make


def steady(found):
    """Every algorithm takes as long."""
    return 10.0


def tiles_and_splits(count):
    """Bytes of tile and splits that are tried, from the module that ranks them."""
    tilings = promising(TILES, ROWS, OUT, MULTIPROCESSORS, count=count)
    return [(TILES[each.features, each.rows], each.splits) for each in tilings]


def test_the_tilings_that_should_waste_least_are_tried_first_once_for_each_kind(timer):
    library = Library([algorithm(1), algorithm(1, 9), algorithm(2)], steady)
    timer(library)._tiled(ROWS, library.proposed)
    expected = [
        (of, algorithm(of[0], tile, (1, 1), splits))
        for of in (algorithm(1), algorithm(2))
        for tile, splits in tiles_and_splits(TILINGS)
    ]
    assert len(tiles_and_splits(TILINGS)) == TILINGS
    assert library.asked[: len(expected)] == expected


def test_the_fastest_tilings_are_tried_in_all_clusters_and_the_fastest_of_all_given(timer):
    fast = tiles_and_splits(TILINGS)[-BEST_TILINGS:]  # what was ranked last is fastest

    def time_us(found):
        _, tile, *cluster, splits = found[:5]
        ahead = fast.index((tile, splits)) if (tile, splits) in fast else 20
        return 10.0 + ahead - (0.5 if tuple(cluster) == (2, 1) else 0)

    library = Library([algorithm(1)], time_us)
    found = timer(library)._tiled(ROWS, library.proposed)
    in_clusters = [each for _, each in library.asked[TILINGS:]]
    assert in_clusters == [
        algorithm(1, tile, cluster, splits) for tile, splits in fast for cluster in CLUSTERS[1:]
    ]
    times = sorted(map(time_us, {each for _, each in library.asked}))
    assert list(map(time_us, found)) == times[:BEST_TILINGS]
    assert found[0] == algorithm(1, fast[0][0], (2, 1), fast[0][1])


def test_what_the_library_refuses_or_cannot_launch_is_left_out(timer):
    library = Library(
        [algorithm(1)],
        steady,
        refuses=lambda found: found[1] % 2 == 0,
        fails=lambda found: found[4] > 1,
    )
    timed = timer(library)
    found = timed._tiled(ROWS, library.proposed)
    assert found and all(each[1] % 2 and each[4] == 1 for each in found)
    assert all(each[1] % 2 for each in timed.chained)


def test_nothing_is_timed_twice_and_what_was_proposed_is_not_given_again(timer):
    tile, splits = tiles_and_splits(1)[0]
    first = algorithm(1, tile, (1, 1), splits)
    library = Library([first, algorithm(1)], lambda found: 1.0 if found == first else 10.0)
    timed = timer(library)
    found = timed._tiled(ROWS, library.proposed)
    assert first not in found and len(found) == BEST_TILINGS
    assert set(timed.chained.values()) == {1}


def test_without_a_proposal_that_runs_nothing_is_tried(timer, monkeypatch):
    library = Library([algorithm(1)], steady)
    monkeypatch.setattr(library, "restore", lambda shape, bias_ptr, found: None)
    assert timer(library)._tiled(ROWS, library.proposed) == [] and library.asked == []


def test_a_tiling_that_is_faster_than_all_proposals_is_chosen(timer):
    tile, splits = tiles_and_splits(3)[2]
    best = algorithm(1, tile, (2, 2), splits)

    def time_us(found):
        plain = algorithm(1, tile, (1, 1), splits)
        return {best: 8.0, plain: 9.0, algorithm(1): 10.0}.get(found, 9.5)

    library = Library([algorithm(1), algorithm(2)], time_us)
    choice = timer(library).tune(ROWS)
    assert (choice.algorithm, choice.us, choice.first_us) == (best, 8.0, 10.0)
    library.wrong.add(best)  # one that computes something else is not
    choice = timer(library).tune(ROWS)
    assert (choice.algorithm, choice.us) == (algorithm(1, tile, (1, 1), splits), 9.0)
