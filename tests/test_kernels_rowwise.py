"""Gather, sums, products, norms and argmax against hand-computed values and identities."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

from cugraphs.kernel import DTYPES, ArrayType, Cost
from cugraphs.kernels import (
    ADD,
    ADD_RMS_NORM,
    EMBEDDING,
    LINEAR,
    RMS_NORM,
    SILU_AND_MUL,
)

FLOATS = ("float64", "float32", "bfloat16", "float16")
BF16 = DTYPES["bfloat16"]


def rows(*values, dtype="float32"):
    return np.array(values, DTYPES[dtype])


# embedding


def test_embedding_gathers_rows_and_zeros_dead_ones():
    table = rows([1, 2], [3, 4], [5, 6])
    (out,) = EMBEDDING.reference(np.array([2, -1, 0, 2], np.int32), table)
    np.testing.assert_array_equal(out, [[5, 6], [0, 0], [1, 2], [5, 6]])


def test_embedding_does_not_read_the_table_for_dead_rows():
    table = rows([np.nan, np.nan], [3, 4])
    (out,) = EMBEDDING.reference(np.array([-7, 1], np.int32), table)
    np.testing.assert_array_equal(out, [[0, 0], [3, 4]])


def test_embedding_refuses_an_id_beyond_the_vocabulary():
    with pytest.raises(IndexError):
        EMBEDDING.reference(np.array([3], np.int32), rows([1], [2], [3]))


def test_embedding_moves_only_the_gathered_rows():
    axes = {"tokens": 4, "hidden": 8, "vocab": 100_000}
    assert EMBEDDING.cost(axes, "bfloat16") == Cost(2 * 4 * 8 * 2 + 4 * 4, 0)


# add


def test_add_rounds_once_and_ties_to_even():
    # bfloat16 has 8 significant bits: 256 + 1 lies between 256 and 258, and goes to the even one.
    (out,) = ADD.reference(
        rows([256, 256, 1], dtype="bfloat16"), rows([1, 3, -1], dtype="bfloat16")
    )
    np.testing.assert_array_equal(out.astype(np.float32), [[256, 260, 0]])


@pytest.mark.parametrize("dtype", FLOATS)
def test_add_overflows_to_infinity_without_a_warning(dtype):
    largest = {"float16": 65504.0, "float64": 1.7e308}.get(dtype, 3.3e38)
    with np.errstate(all="raise"):
        (out,) = ADD.reference(rows([largest], dtype=dtype), rows([largest], dtype=dtype))
    assert np.isposinf(out.astype(np.float64)).all()


# rms_norm


def test_rms_norm_of_a_hand_computed_row():
    # mean(3**2, 4**2, 5**2, 0) = 12.5; with eps 3.5 the root is 4.
    (out,) = RMS_NORM.reference(rows([3, 4, 5, 0]), rows(1, 2, -4, 9), eps=3.5)
    np.testing.assert_array_equal(out, [[0.75, 2, -5, 0]])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [1e-3, 1.0, -300.0])
def test_rms_norm_of_a_constant_row_is_the_weight_times_its_sign(value, dtype):
    weight = np.linspace(-2, 2, 40).astype(DTYPES[dtype])
    x = np.full((3, 40), value, DTYPES[dtype])
    (out,) = RMS_NORM.reference(x, weight, eps=0.0)
    np.testing.assert_allclose(
        out.astype(np.float64), np.tile(np.sign(value) * weight.astype(np.float64), (3, 1)), 1e-3
    )


def test_rms_norm_adds_eps_to_the_mean_square():
    # All of x is eps**0.5, so the mean square is eps and the result 1/sqrt(2).
    (out,) = RMS_NORM.reference(np.full((1, 64), 1e-3, np.float32), np.ones(64, "f"), eps=1e-6)
    np.testing.assert_allclose(out, 0.5**0.5, rtol=1e-6)


def test_rms_norm_ignores_the_scale_of_a_row_when_eps_is_zero():
    x = np.random.default_rng(1).standard_normal((4, 33)).astype(np.float32)
    weight = np.ones(33, np.float32)
    (one,) = RMS_NORM.reference(x, weight, eps=0.0)
    (many,) = RMS_NORM.reference(x * np.float32(2**20), weight, eps=0.0)
    np.testing.assert_array_equal(one, many)
    np.testing.assert_allclose((one.astype(np.float64) ** 2).mean(axis=1), 1, rtol=1e-6)


def test_rms_norm_cost_by_hand():
    cost = RMS_NORM.cost({"tokens": 2, "hidden": 8}, "bfloat16", eps=1e-5)
    assert cost == Cost((16 + 8 + 16) * 2, 4 * 16)


# add_rms_norm


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", ADD_RMS_NORM.cases, ids=lambda case: case.name)
def test_add_rms_norm_is_add_then_rms_norm_bit_for_bit(case, dtype):
    a, b, weight = case.make(np.random.default_rng(2), DTYPES[dtype])
    total, out = ADD_RMS_NORM.reference(a, b, weight, **case.attrs)
    (expected_total,) = ADD.reference(a, b)
    (expected_out,) = RMS_NORM.reference(expected_total, weight, **case.attrs)
    np.testing.assert_array_equal(total, expected_total)
    np.testing.assert_array_equal(out, expected_out)


# linear


def test_linear_of_a_hand_computed_product():
    x, weight = rows([1, 2, 3], [0, -1, 1]), rows([1, 0, 0], [1, 1, 1])
    for batch_invariant in (False, True):
        (out,) = LINEAR.reference(x, weight, batch_invariant=batch_invariant)
        np.testing.assert_array_equal(out, [[1, 6], [0, 0]])
        (out,) = LINEAR.reference(x, weight, rows(10, -6), batch_invariant=batch_invariant)
        np.testing.assert_array_equal(out, [[11, 0], [10, -6]])


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 9])
def test_linear_adds_the_bias_before_it_rounds(tokens):
    # 1 + 2**-9 rounds to 1 in bfloat16; with the bias 2**-8 added first it rounds up to 1 + 2**-7.
    x, weight = np.full((tokens, 2), 1, BF16), rows([1, 2**-9], dtype="bfloat16")
    (out,) = LINEAR.reference(x, weight, np.array([2**-8], BF16))
    np.testing.assert_array_equal(out.astype(np.float32), np.full((tokens, 1), 1 + 2**-7))


def test_linear_sums_in_float32():
    # 4,096 ones: an accumulator of bfloat16 stops at 256, one of float16 at 2,048.
    for dtype in FLOATS:
        x, weight = np.ones((5, 4096), DTYPES[dtype]), np.ones((2, 4096), DTYPES[dtype])
        np.testing.assert_array_equal(LINEAR.reference(x, weight)[0].astype(np.float32), 4096)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_linear_agrees_with_a_float64_einsum(batch_invariant):
    rng = np.random.default_rng(3)
    for tokens, in_features, out_features in itertools.product((1, 3, 4, 20), (7, 96), (1, 50)):
        x = rng.standard_normal((tokens, in_features)).astype(np.float32)
        weight = rng.standard_normal((out_features, in_features)).astype(np.float32)
        exact = np.einsum("ti,oi->to", x, weight, dtype=np.float64)
        (out,) = LINEAR.reference(x, weight, batch_invariant=batch_invariant)
        np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-5)


def test_linear_cost_by_hand():
    axes = {"tokens": 2, "in_features": 3, "out_features": 5}
    assert LINEAR.cost(axes, "bfloat16") == Cost((6 + 15 + 10) * 2, 2 * 2 * 3 * 5)


INVARIANCE = """
import numpy as np
from cugraphs.kernels import LINEAR

rng = np.random.default_rng(4)
for dtype in (np.float32, np.float64):
    for in_features in (1, 33, 64, 577):
        for out_features in (1, 8, 17, 1000):
            weight = rng.standard_normal((out_features, in_features)).astype(dtype)
            row = rng.standard_normal((1, in_features)).astype(dtype)
            alone, = LINEAR.reference(row, weight, batch_invariant=True)
            for rows in (2, 5, 16, 17):
                x = rng.standard_normal((rows, in_features)).astype(dtype)
                for position in {0, 1, rows // 2, rows - 1}:
                    x[position] = row
                    out, = LINEAR.reference(x, weight, batch_invariant=True)
                    assert np.array_equal(out[position], alone[0]), (
                        dtype, in_features, out_features, rows, position)
                    x[position] = np.nan
"""


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("core_type", ["Haswell", None])
def test_batch_invariant_linear_gives_a_row_the_same_bits_anywhere(threads, core_type):
    # BLAS reads its settings when it is loaded, so each pair of them needs its own process.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    environment["OPENBLAS_NUM_THREADS"] = threads
    if core_type:
        environment["OPENBLAS_CORETYPE"] = core_type
    subprocess.run([sys.executable, "-c", INVARIANCE], env=environment, check=True)


# silu_and_mul


def test_silu_and_mul_of_hand_computed_values():
    # silu(0) = 0; silu(ln 3) = ln 3 * 3/4; silu(-ln 3) = -ln 3 / 4.
    ln3 = np.log(3)
    (out,) = SILU_AND_MUL.reference(rows([0, ln3, -ln3, 5, 2, 2], dtype="float64"))
    np.testing.assert_allclose(out, [[0, ln3 * 1.5, -ln3 / 2]], rtol=1e-15)


@pytest.mark.parametrize("dtype", FLOATS)
def test_silu_and_mul_far_from_zero_is_the_gate_or_zero(dtype):
    with np.errstate(all="raise"):
        (out,) = SILU_AND_MUL.reference(rows([1e4, -1e4, -200, 2, 2, 2], dtype=dtype))
    gate = float(DTYPES[dtype].type(1e4))
    np.testing.assert_allclose(out.astype(np.float64), [[2 * gate, 0, 0]], atol=1e-30)


def test_silu_of_x_minus_silu_of_minus_x_is_x():
    x = np.linspace(-30, 30, 101)
    up = np.ones_like(x)
    (plus,) = SILU_AND_MUL.reference(np.concatenate([x, up])[None])
    (minus,) = SILU_AND_MUL.reference(np.concatenate([-x, up])[None])
    np.testing.assert_allclose(plus[0] - minus[0], x, atol=1e-12)


def test_silu_and_mul_refuses_an_odd_width():
    with pytest.raises(ValueError, match=r"^silu_and_mul: x axis '2\*inter' is 5, expected"):
        SILU_AND_MUL.infer([ArrayType((1, 5), "float32")], {})
