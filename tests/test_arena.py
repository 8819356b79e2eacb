"""The one allocation: regions, views, poison, and the map it prints."""

import doctest

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cugraphs.arena
from cugraphs.arena import POISON, Arena, numpy_bytes
from cugraphs.kernel import DTYPES, ArrayType


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.fixture
def arena():
    arena = Arena()
    arena.add("a", 1000)
    arena.add("b", 256)
    arena.add("c", 1)
    return arena


def test_regions_follow_each_other_at_256_bytes(arena):
    assert [(r.name, r.offset, r.nbytes) for r in arena.regions.values()] == [
        ("a", 0, 1000),
        ("b", 1024, 256),
        ("c", 1280, 1),
    ]
    assert arena.nbytes == 1536


def test_the_memory_map(arena):
    assert arena.memory_map().splitlines() == [
        "arena: 1,536 bytes in one allocation",
        "  0x0000000000 .. 0x00000003e7           1,000  a",
        "  0x0000000400 .. 0x00000004ff             256  b",
        "  0x0000000500 .. 0x0000000500               1  c",
    ]


@given(st.integers(1, 10_000))
def test_numpy_bytes_are_aligned_as_a_device_allocation(nbytes):
    raw = numpy_bytes(nbytes)
    assert raw.shape == (nbytes,) and raw.dtype == np.uint8 and address(raw) % 256 == 0


def test_a_view_is_the_arena_itself(arena):
    arena.allocate(numpy_bytes)
    a = arena.view("a", ArrayType((4, 8), "float32"))
    b = arena.view("b", ArrayType((64,), "int32"))
    assert address(a) % 256 == 0 and address(b) - address(a) == 1024
    assert a.flags.c_contiguous and not a.flags.owndata
    a[...] = 7
    assert (arena.view("a", ArrayType((32,), "float32")) == 7).all()
    assert np.shares_memory(a, arena.view("a", ArrayType((1000,), "uint8")))
    assert not np.shares_memory(a, b)
    assert (b == -1).all()  # poison: the write to a did not reach b


@given(
    st.lists(st.integers(0, 2000), min_size=1, max_size=8),
    st.sampled_from(sorted(DTYPES)),
    st.data(),
)
def test_any_view_lies_inside_its_region(sizes, dtype, data):
    arena = Arena()
    for index, nbytes in enumerate(sizes):
        arena.add(str(index), nbytes)
    arena.allocate(numpy_bytes)
    index = data.draw(st.integers(0, len(sizes) - 1))
    offset = 256 * data.draw(st.integers(0, sizes[index] // 256))
    count = (sizes[index] - offset) // DTYPES[dtype].itemsize
    view = arena.view(str(index), ArrayType((count,), dtype), offset)
    view.view(np.uint8)[...] = 0
    whole = [arena.view(str(i), ArrayType((n,), "uint8")) for i, n in enumerate(sizes)]
    written = [np.count_nonzero(region != POISON) for region in whole]
    assert written.pop(index) == view.nbytes and not any(written)


def test_poison_is_nan_in_every_float_and_minus_one_in_int32(arena):
    arena.allocate(numpy_bytes)
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        assert np.isnan(arena.view("b", ArrayType((32,), dtype)).astype(np.float64)).all()
    assert arena.view("b", ArrayType((32,), "bfloat16")).dtype == ml_dtypes.bfloat16
    ints = arena.view("b", ArrayType((64,), "int32"))
    assert (ints == -1).all()
    ints[...] = 5
    arena.poison()
    assert (ints == -1).all()


def test_what_does_not_fit_is_refused(arena):
    arena.allocate(numpy_bytes)
    message = r"^Arena: float32\[65\] at 0 of region 'b' ends at 260, expected at most 256"
    with pytest.raises(ValueError, match=message):
        arena.view("b", ArrayType((65,), "float32"))
    with pytest.raises(ValueError, match=r"^Arena: uint8\[1\] at 256 of region 'b' ends at 257"):
        arena.view("b", ArrayType((1,), "uint8"), 256)
    for offset in (-256, 4):
        message = rf"^Arena: uint8\[1\] is at {offset} of region 'b', expected a multiple of 256"
        with pytest.raises(ValueError, match=message):
            arena.view("b", ArrayType((1,), "uint8"), offset)
    with pytest.raises(KeyError, match="nowhere"):
        arena.view("nowhere", ArrayType((1,), "uint8"))


def test_regions_are_added_before_the_one_allocation(arena):
    for call in (lambda: arena.view("a", ArrayType((1,), "uint8")), arena.poison):
        with pytest.raises(
            ValueError, match=r"^Arena: nothing is allocated yet; call allocate first"
        ):
            call()
    with pytest.raises(ValueError, match=r"^Arena: region 'a' exists already"):
        arena.add("a", 1)
    with pytest.raises(ValueError, match=r"^Arena: region 'd' has -1 bytes, expected at least 0"):
        arena.add("d", -1)
    asked = []
    arena.allocate(lambda nbytes: asked.append(nbytes) or numpy_bytes(nbytes))
    assert asked == [1536]
    with pytest.raises(ValueError, match=r"^Arena: the memory is already allocated, expected one"):
        arena.allocate(numpy_bytes)
    with pytest.raises(
        ValueError, match=r"^Arena: cannot add 'd', the memory is already allocated"
    ):
        arena.add("d", 1)


def test_the_example_of_the_docstring():
    assert doctest.testmod(cugraphs.arena).failed == 0


def test_an_empty_view(arena):
    arena.allocate(numpy_bytes)
    assert arena.view("c", ArrayType((0, 8), "float32")).shape == (0, 8)
