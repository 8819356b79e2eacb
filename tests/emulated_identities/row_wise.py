"""Kernels that take each row by itself: norms, the activation, the rotation."""

from __future__ import annotations

from collections.abc import Mapping

from cugraphs.kernel import CUDA_TYPES
from cugraphs.testing import case_arrays
from emulated_identities.any_kernel import orders_agree, rounded_once
from emulated_identities.common_header import block_sums_may_follow_each_other
from emulated_identities.identity import Identity, Kernels, assert_same_bits, case_named, run
from emulated_identities.paged_cache import far_blocks


def fused_norm_is_add_then_norm(kernels: Kernels) -> None:
    """ADD_RMS_NORM gives the bits of ADD followed by RMS_NORM."""
    add, norm, fused = (kernels[name] for name in ("add", "rms_norm", "add_rms_norm"))
    for case in fused.cases:
        for dtype in CUDA_TYPES:
            a, b, weight = case_arrays(fused, case, dtype)
            (total,) = run(add, [a, b], {})
            (out,) = run(norm, [total, weight], case.attrs)
            what = f"add_rms_norm {case.name} {dtype}"
            assert_same_bits(what, run(fused, [a, b, weight], case.attrs), [total, out])


def rows_stand_alone(name: str) -> Identity:
    """A row has the same bits alone and among others."""

    def check(kernels: Kernels) -> None:
        kernel = kernels[name]
        for case in (case_named(kernel, "odd"), case_named(kernel, "smollm2")):
            for dtype in CUDA_TYPES:
                arrays = case_arrays(kernel, case, dtype)
                whole = run(kernel, arrays, case.attrs)
                for rows in (slice(0, 1), slice(2, 5)):
                    part = [array[rows] if array.ndim == 2 else array for array in arrays]
                    what = f"{name} {case.name} rows {rows} {dtype}"
                    found = run(kernel, part, case.attrs)
                    assert_same_bits(what, found, [out[rows] for out in whole])

    check.__name__ = "rows_stand_alone"
    return check


IDENTITIES: Mapping[str, tuple[Identity, ...]] = {
    "rms_norm": (
        orders_agree("rms_norm"),
        rounded_once("rms_norm"),
        rows_stand_alone("rms_norm"),
        block_sums_may_follow_each_other,
        fused_norm_is_add_then_norm,
    ),
    "add_rms_norm": (
        orders_agree("add_rms_norm"),
        rounded_once("add_rms_norm"),
        rows_stand_alone("add_rms_norm"),
        fused_norm_is_add_then_norm,
    ),
    "rope_append": (
        orders_agree("rope_append"),
        rounded_once("rope_append"),
        far_blocks("rope_append", ("one_row", "bfloat16", "")),
    ),
    "silu_and_mul": (orders_agree("silu_and_mul"), rounded_once("silu_and_mul")),
}
"""What is asked of each kernel, by its name."""
