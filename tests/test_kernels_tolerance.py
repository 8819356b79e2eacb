"""The tolerance accepts another order of a sum and refuses the mistakes it is there to catch."""

import numpy as np
import pytest

from cugraphs.kernel import DTYPES
from cugraphs.tolerance import check_close, error, tolerance

BF16 = DTYPES["bfloat16"]


def test_error_is_relative_to_the_element_or_to_the_rms_whichever_is_larger():
    exact = np.array([3.0, -4.0, 0.0, 5.0])  # rms = sqrt(50/4)
    found = error(np.array([3.0, -4.0, 1.0, 6.0]), exact)
    small = 1 / np.sqrt(12.5)
    assert found.max == pytest.approx(small)
    assert found.rms == pytest.approx(np.sqrt((small**2 + 0.2**2) / 4))


def test_error_of_what_is_not_finite():
    inf, nan = np.inf, np.nan
    assert error(np.array([inf, nan, 1.0]), np.array([inf, nan, 1.0])).max == 0
    assert error(np.array([inf, 1.0]), np.array([1.0, 1.0])).max == inf
    assert error(np.array([nan, 1.0]), np.array([1.0, 1.0])).max == inf
    assert error(np.array([1.0, 1.0]), np.array([nan, 1.0])).max == inf
    assert error(np.array([-inf]), np.array([inf])).max == inf
    assert error(np.zeros(3), np.zeros(3)).max == 0
    assert error(np.ones(1), np.zeros(1)).max == inf
    assert error(np.zeros((0, 4)), np.zeros((0, 4))).max == 0


@pytest.mark.parametrize(
    ("dtype", "max_factor", "rms_factor", "unit"),
    [
        ("bfloat16", 2, 1.25, 2**-9),
        ("float16", 2, 1.25, 2**-11),
        ("float32", 4, 4, 2**-24),
    ],
)
def test_tolerance_is_a_multiple_of_what_the_format_alone_costs(
    dtype, max_factor, rms_factor, unit
):
    exact = np.random.default_rng(0).standard_normal(1000)
    plain = exact.astype(DTYPES[dtype])
    cost, allowed = error(plain, exact), tolerance(exact, plain, DTYPES[dtype])
    assert allowed.max == max_factor * cost.max + unit
    assert allowed.rms == rms_factor * cost.rms + unit / 32


def product(dtype):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((8, 2048)).astype(DTYPES[dtype]).astype(np.float32)
    weight = (rng.standard_normal((64, 2048)) / 45).astype(DTYPES[dtype]).astype(np.float32)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    return x, weight, exact, (x @ weight.T).astype(DTYPES[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_another_order_of_the_sum_passes(dtype):
    x, weight, exact, plain = product(dtype)
    order = np.random.default_rng(6).permutation(2048)
    shuffled = sum(
        x[:, part].astype(np.float32) @ weight[:, part].T for part in np.split(order, 16)
    )
    check_close(shuffled.astype(DTYPES[dtype]), exact, plain, DTYPES[dtype])


def test_split_sums_rounded_to_bfloat16_fail():
    x, weight, exact, plain = product("bfloat16")
    total = np.zeros(plain.shape, BF16)
    for part in np.split(np.arange(2048), 16):
        total = (total.astype(np.float32) + x[:, part] @ weight[:, part].T).astype(BF16)
    with pytest.raises(AssertionError, match=r"^check_close: error is .* expected at most"):
        check_close(total, exact, plain, BF16)


def test_one_dropped_product_fails():
    x, weight, exact, plain = product("bfloat16")
    with pytest.raises(AssertionError, match="worst at"):
        check_close((x[:, :-1] @ weight[:, :-1].T).astype(BF16), exact, plain, BF16)


def test_a_second_rounding_of_a_copy_fails_in_float32():
    exact = np.random.default_rng(7).standard_normal(100)
    plain = exact.astype(np.float32)
    with pytest.raises(AssertionError):
        check_close(plain.astype(np.float16).astype(np.float32), exact, plain, plain.dtype)


def test_integers_must_be_equal_and_the_message_says_where():
    ids = np.array([[1, 2], [3, 4]], np.int32)
    check_close(ids, ids, ids, ids.dtype)
    wrong = np.array([[1, 2], [7, 4]], np.int32)
    with pytest.raises(AssertionError, match=r"1 of 4 elements differ, first at \[1, 0\]: 7, ex"):
        check_close(wrong, ids, ids, ids.dtype)


def test_shape_and_dtype_are_checked():
    exact = np.ones(3)
    with pytest.raises(AssertionError, match=r"is float32\[2\], expected float32\[3\]"):
        check_close(np.ones(2, "f"), exact, np.ones(3, "f"), np.dtype("f"))
    with pytest.raises(AssertionError, match=r"is float64\[3\], expected float32\[3\]"):
        check_close(np.ones(3), exact, np.ones(3, "f"), np.dtype("f"))
    with pytest.raises(TypeError, match="tolerance: dtype is complex64"):
        tolerance(exact, exact, np.dtype(np.complex64))
