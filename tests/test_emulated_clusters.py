"""Clusters of blocks in the emulation: right kernels pass, planted mistakes are found."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import needs_compiler

from cugraphs.emulation import emulate
from cugraphs.kernel import Access, Case, Cost, Kernel, Launch, Operand
from cugraphs.tensor_map import TensorMap

pytestmark = needs_compiler

SOURCE = Path(__file__).with_name("planted_clusters.cu")
ORDERS = ("forward", "reverse", "random")
RIGHT = ("neighbours", "twice", "copies_to_all")
# The mistake, and what the message must say of it.
WRONG = {
    "no_barrier_before": r"read of uninitialised|race on .* written by block",
    "returns_early": r"read of the shared memory of block \d of the cluster, which has returned",
    "writes_again": r"written here, read by block \d of the cluster|written by block \d of the clu",
    "half_is_written": r"read of uninitialised shared memory smem of block \d of the cluster",
    "arrives_twice": r"a thread arrives twice at one barrier of the cluster",
    "does_not_arrive": r"a thread waits for a cluster without arriving",
    "a_block_waits_elsewhere": r"deadlock: thread \d+ waits here for threads that never come",
    "beyond_the_cluster": r"block 4 of a cluster of 4",
    "returns_while_copying": r"what it copies to block \d of the cluster may be under way",
}
COPYING = ("copies_to_all", "returns_while_copying")
# x as 16 rows of 64 elements of two bytes, of which a block copies two.
ROWS = TensorMap("x", "bfloat16", (64, 16, 1, 1), (128, 128, 128), box=(64, 2, 1, 1))


def launches(axes, dtype, *, function):
    plain = Launch(function, (8, 1, 1), 64, (np.int32(16),), shared_bytes=6 << 10)
    maps = (ROWS,) if function in COPYING else ()
    own = replace(plain, cluster=4, arch="sm_90a", elsewhere=(plain,), tensor_maps=maps)
    return (own,)


PLANTED = Kernel(
    "planted_clusters",
    (
        Operand("out", ("n",), "float32", Access.WRITE),
        Operand("x", ("n",), "float32"),
        Operand("bias", ("n",), "float32", optional=True),
    ),
    reference=lambda x, bias=None, *, function: (x,),
    cost=lambda axes, dtype, **_: Cost(0, 0),
    cases=tuple(
        Case(name, lambda rng, dtype: (np.zeros(512, np.float32),), {"function": name})
        for name in (*RIGHT, *WRONG)
    ),
    source=SOURCE,
    launches=launches,
)


def run(function, **how):
    x = np.arange(1, 513, dtype=np.float32)
    return emulate(PLANTED, (x,), {"function": function}, arch="sm_90", **how)[0]


def moved(blocks):
    """What each block finds that many blocks further on in its cluster of 4."""
    x = np.arange(1, 513, dtype=np.float32).reshape(2, 4, 64)
    return np.roll(x, -blocks, axis=1).ravel()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("checked", [False, True], ids=["plain", "checked"])
def test_right_kernels_pass(checked, order):
    how = {"checked": checked, "order": order}
    np.testing.assert_array_equal(run("neighbours", **how), moved(1))
    np.testing.assert_array_equal(run("twice", **how), moved(2))
    np.testing.assert_array_equal(run("copies_to_all", **how), moved(1))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("function", WRONG)
def test_a_planted_mistake_is_found(function, order):
    with pytest.raises(AssertionError, match=WRONG[function]):
        run(function, checked=True, order=order)


@pytest.mark.parametrize("function", ["returns_early", "returns_while_copying"])
def test_without_checks_too_a_block_that_others_need_may_not_return(function):
    with pytest.raises(AssertionError, match=WRONG[function]):
        run(function)


def test_a_cluster_needs_an_architecture_and_divides_the_grid():
    plain = Launch("f", (8, 1, 1), 64)
    with pytest.raises(ValueError, match=r"f has clusters of 4 and no arch"):
        replace(plain, cluster=4)
    for cluster in (0, 3, 32):
        with pytest.raises(ValueError, match=rf"clusters of {cluster} in a grid of 8 in x, expect"):
            replace(plain, cluster=cluster, arch="sm_90a", elsewhere=(plain,))
