"""Matrix products, and what is fused with them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cugraphs.emulation.emulate import bind_launches
from cugraphs.kernel import DTYPES, Launch
from cugraphs.testing import case_arrays
from emulated_identities.any_kernel import orders_agree, rounded_once
from emulated_identities.identity import (
    Identity,
    Kernels,
    assert_right_on_sm_90,
    assert_same_bits,
    case_named,
    package_of,
    run,
    small_cases,
)


def linear_rows_stand_alone(kernels: Kernels) -> None:
    """With batch_invariant, a row's bits do not depend on how many rows are beside it.

    With parts and without, with rows of 16-byte vectors and of single elements.
    """
    linear, rng = kernels["linear"], np.random.default_rng(0)
    for in_features, out_features in ((1304, 65), (136, 129), (77, 40), (40, 8200)):
        x = rng.standard_normal((300, in_features), np.float32)
        weight = rng.standard_normal((out_features, in_features), np.float32)
        for dtype in ("bfloat16", "float32"):
            wide = [array.astype(DTYPES[dtype]) for array in (x, weight, weight[:, 0])]
            (whole,) = run(linear, wide, {"batch_invariant": True})
            for first, count in ((5, 1), (99, 3), (7, 16), (64, 17), (1, 32), (65, 64), (150, 130)):
                rows = slice(first, first + count)
                (part,) = run(linear, [wide[0][rows], *wide[1:]], {"batch_invariant": True})
                what = f"linear {in_features} x {out_features} {dtype} rows {first} + {count}"
                assert_same_bits(what, [part], [whole[rows]])


def few_rows_of_linear_have_the_bits_of_one(kernels: Kernels) -> None:
    """Up to 4 rows one order of additions serves any number of them."""
    linear, rng = kernels["linear"], np.random.default_rng(0)
    x, weight = (rng.standard_normal((rows, 2600), np.float32) for rows in (4, 9))
    (whole,) = run(linear, [x, weight], {})
    for rows in (slice(0, 1), slice(1, 3), slice(1, 4)):
        assert_same_bits(f"linear rows {rows}", run(linear, [x[rows], weight], {}), [whole[rows]])


def fused_products_are_one_after_the_other(kernels: Kernels) -> None:
    """The fused kernels of few rows give the bits of the products that they stand for."""
    linear_add, swiglu = kernels["linear_add"], kernels["norm_swiglu"]
    for case in linear_add.cases:
        residual, *product = case_arrays(linear_add, case, "bfloat16")
        (sums,) = run(kernels["linear"], product, {})
        expected = run(kernels["add"], [residual, sums], {})
        found = run(linear_add, [residual, *product], {})
        assert_same_bits(f"linear_add {case.name}", found, expected)
    for case in swiglu.cases:
        arrays = case_arrays(swiglu, case, "bfloat16")
        (sums,) = run(kernels["norm_linear"], arrays, case.attrs)
        expected = run(kernels["silu_and_mul"], [sums], {})
        assert_same_bits(f"norm_swiglu {case.name}", run(swiglu, arrays, case.attrs), expected)
    rope = kernels["norm_rope_append"]
    for case in rope.cases:
        arrays = case_arrays(rope, case, "bfloat16")
        k_cache, v_cache, x, positions, slots, gain, weight, cos_sin, *bias = arrays
        eps, q_size = ({key: case.attrs[key]} for key in ("eps", "q_size"))
        (qkv,) = run(kernels["norm_linear"], [x, gain, weight, *bias], eps)
        appended = [k_cache, v_cache, qkv, cos_sin, positions, slots]
        expected = run(kernels["rope_append"], appended, q_size)
        assert_same_bits(f"norm_rope_append {case.name}", run(rope, arrays, case.attrs), expected)
    rope = kernels["linear_rope_append"]
    for case in rope.cases:
        arrays = case_arrays(rope, case, "bfloat16")
        k_cache, v_cache, x, positions, slots, weight, cos_sin, *bias = arrays
        (qkv,) = run(kernels["linear"], [x, weight, *bias], {})
        appended = [k_cache, v_cache, qkv, cos_sin, positions, slots]
        expected = run(kernels["rope_append"], appended, case.attrs)
        assert_same_bits(f"linear_rope_append {case.name}", run(rope, arrays, case.attrs), expected)
    swiglu = kernels["linear_swiglu"]
    for case in swiglu.cases:
        arrays = case_arrays(swiglu, case, "bfloat16")
        (sums,) = run(kernels["linear"], arrays, {})
        expected = run(kernels["silu_and_mul"], [sums], {})
        assert_same_bits(f"linear_swiglu {case.name}", run(swiglu, arrays, {}), expected)


def tiles_of_few_rows_stand_alone(kernels: Kernels) -> None:
    """A row of LINEAR_ADD_RMS_NORM has the same bits whatever rows are beside it."""
    kernel = kernels["linear_add_rms_norm"]
    case = case_named(kernel, "sixteen_rows")
    residual, x, *constants = case_arrays(kernel, case, "bfloat16")
    whole = run(kernel, [residual, x, *constants], case.attrs)
    for rows in (slice(0, 1), slice(5, 14)):
        part = run(kernel, [residual[rows], x[rows], *constants], case.attrs)
        assert_same_bits(f"linear_add_rms_norm rows {rows}", part, [out[rows] for out in whole])


def few_streamed_rows_stand_alone(kernels: Kernels) -> None:
    """A row has the same bits whatever rows are beside it, where as many share a fragment."""
    for name in ("linear_add", "norm_linear", "norm_swiglu", "linear_swiglu"):
        kernel = kernels[name]
        for case_name, rows in (
            ("two_rows", slice(1, 2)),
            ("eight_rows", slice(2, 7)),
            ("sixteen_rows", slice(3, 13)),
        ):
            if case_name not in [case.name for case in kernel.cases]:
                continue
            case = case_named(kernel, case_name)
            arrays = case_arrays(kernel, case, "float16")
            of_rows = [operand.shape[0] == "tokens" for operand in kernel.supplied]
            part = [a[rows] if cut else a for a, cut in zip(arrays, of_rows, strict=False)]
            (whole,) = run(kernel, arrays, case.attrs)
            what = f"{name} {case_name} rows {rows}"
            assert_same_bits(what, run(kernel, part, case.attrs), [whole[rows]])


def held_form_is_right(name: str, multiprocessors: Sequence[int] = (3, 1)) -> Identity:
    """The form for sm_90a of products of few rows is within the tolerance of the reference.

    On cards of so many multiprocessors; one block has so many units that its ring goes round.
    """

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        package = package_of(kernel)
        module: Any = sys.modules[f"{package}.held_rows"]
        before = module.MULTIPROCESSORS, module._LARGE
        module._LARGE = 1
        try:
            seen = 0
            for module.MULTIPROCESSORS, case in itertools.product(
                multiprocessors, small_cases(kernel)
            ):
                arrays = case_arrays(kernel, case, "bfloat16")
                _, launches = bind_launches(kernel, arrays, case.attrs)
                if not any(
                    isinstance(one, Launch) and "HeldRows<" in one.function for one in launches
                ):
                    continue
                seen += 1
                assert_right_on_sm_90(kernel, case, arrays)
            assert seen >= 3 * len(multiprocessors), (
                f"{name}: {seen} cases reach its form for sm_90a"
            )
        finally:
            module.MULTIPROCESSORS, module._LARGE = before

    check.__name__ = "held_form_is_right"
    return check


def products_for_sm_90a_are_right(name: str, *cases: str) -> Identity:
    """A product on wgmma, over two blocks, is within the tolerance of the reference."""

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        package = package_of(kernel)
        shapes: Any = sys.modules[f"{package}.wgmma_linear"]
        before, shapes.MULTIPROCESSORS = shapes.MULTIPROCESSORS, 2
        try:
            for case in (case_named(kernel, case_name) for case_name in cases):
                arrays = case_arrays(kernel, case, "bfloat16")
                assert_right_on_sm_90(kernel, case, arrays)
        finally:
            shapes.MULTIPROCESSORS = before

    check.__name__ = "products_for_sm_90a_are_right"
    return check


MANY_ROWS_CASES = ("seventy_rows", "rows_of_three_groups", "rows_of_four_groups")


def product_of_many_rows_is_right(kernels: Kernels) -> None:
    """SwiGLU's product of 65 rows and more, in narrow tiles, is within the tolerance."""
    kernel = kernels["linear_swiglu"]
    package = package_of(kernel)
    shapes: Any = sys.modules[f"{package}.wgmma_rows"]
    before = shapes.COLUMNS, shapes.LEAST_SHARE
    shapes.COLUMNS, shapes.LEAST_SHARE = 32, 0
    try:
        for case in (case_named(kernel, name) for name in MANY_ROWS_CASES):
            arrays = case_arrays(kernel, case, "bfloat16")
            assert_right_on_sm_90(kernel, case, arrays)
    finally:
        shapes.COLUMNS, shapes.LEAST_SHARE = before


IDENTITIES: Mapping[str, tuple[Identity, ...]] = {
    "linear": (
        orders_agree("linear"),
        rounded_once("linear"),
        linear_rows_stand_alone,
        few_rows_of_linear_have_the_bits_of_one,
        products_for_sm_90a_are_right("linear", "wgmma_bias", "wgmma_many_steps"),
        held_form_is_right("linear"),
    ),
    "linear_residual": (orders_agree("linear_residual"), rounded_once("linear_residual")),
    **{
        name: (
            orders_agree(name, ("bfloat16",)),
            fused_products_are_one_after_the_other,
            few_streamed_rows_stand_alone,
        )
        for name in ("linear_add", "norm_linear", "norm_swiglu")
    },
    "linear_swiglu": (
        orders_agree("linear_swiglu", ("bfloat16",)),
        fused_products_are_one_after_the_other,
        few_streamed_rows_stand_alone,
        products_for_sm_90a_are_right(
            "linear_swiglu", "seventeen_rows", "many_steps", "sixty_four_rows"
        ),
        held_form_is_right("linear_swiglu"),
        product_of_many_rows_is_right,
    ),
    "linear_rope_append": (
        orders_agree("linear_rope_append", ("bfloat16",)),
        fused_products_are_one_after_the_other,
        held_form_is_right("linear_rope_append"),
    ),
    "norm_rope_append": (
        orders_agree("norm_rope_append", ("bfloat16",)),
        fused_products_are_one_after_the_other,
    ),
    "linear_add_rms_norm": (
        orders_agree("linear_add_rms_norm", ("bfloat16",)),
        rounded_once("linear_add_rms_norm"),
        tiles_of_few_rows_stand_alone,
        products_for_sm_90a_are_right(
            "linear_add_rms_norm", "seventeen_rows", "many_steps_bias", "sixty_four_rows"
        ),
        held_form_is_right("linear_add_rms_norm", multiprocessors=(3,)),  # in two parts
    ),
}
"""What is asked of each kernel, by its name."""
