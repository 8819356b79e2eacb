"""Attention of decode rows, and with the rotation and the append in it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from cugraphs.kernel import Array, Case
from cugraphs.kernels.attention_parts import Cuts
from cugraphs.kernels.paged_cases import Heads, decode_case, with_parts
from cugraphs.testing import case_arrays
from emulated_identities.any_kernel import (
    MAX_SHARE_NEXT_TO_TIE,
    assert_rounded_once,
    orders_agree,
    rounded_once,
)
from emulated_identities.common_header import exp2_is_right
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
from emulated_identities.paged_cache import blocks_may_lie_anywhere, far_blocks, newest_tokens
from emulated_identities.prefill_attention import prefill_rows_are_decode_rows


def _not_cut(case: Case) -> Case:
    """The same, but no row is cut into parts, as otherwise a hundred such rows would not be."""

    def make(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Array, ...]:
        with mock.patch.object(Cuts, "of", lambda *sizes: Cuts(1, 1, 0)):
            return case.make(rng, dtype)

    return replace(case, name=f"{case.name}, not cut", make=make)


def decode_rows_stand_alone(kernels: Kernels) -> None:
    """With batch_invariant, a row of decode attention has the same bits alone and in a batch."""
    decode = kernels["paged_decode_attention"]
    for name in ("batch_invariant", "batch_invariant_128", "block_edges", "part_edges"):
        for dtype in ("bfloat16", "float32"):
            case = case_named(decode, name)
            attrs = {**case.attrs, "batch_invariant": True}
            _, q, k_cache, v_cache, tables, row_ids, seq_lens, _ = case_arrays(decode, case, dtype)
            arrays = [q, k_cache, v_cache, tables, row_ids, seq_lens]
            whole = run(decode, with_parts(arrays, batch_invariant=True), attrs)[0]
            for row in range(len(q)):
                one = slice(row, row + 1)
                given = [q[one], k_cache, v_cache, tables, row_ids[one], seq_lens[one]]
                what = f"paged_decode_attention {name} {dtype} row {row}"
                found = run(decode, with_parts(given, batch_invariant=True), attrs)[:1]
                assert_same_bits(what, found, [whole[one]])


FEW_ROWS_CASES = (
    *("one_row", "one_token", "dead_row_128", "one_long_row", "two_rows_128", "peaked"),
    "two_rows_block_size_64",
)


def forms_of_few_rows_are_right(kernels: Kernels) -> None:
    """Both forms of decode attention for few rows, of few warps, are within the tolerance."""
    kernel = kernels["paged_decode_attention"]
    module: Any = sys.modules[f"{package_of(kernel)}.few_rows_attention"]
    few_warps = {"MAX_ROWS": 1 << 20, "WARPS": 2, "WARPS_IN_CLUSTER": 2, "CLUSTER": 2}
    few_warps |= {"BLOCKS": 24, "RING_BYTES": 1 << 14}
    always, never = ({64: rows, 128: rows} for rows in (1 << 20, 0))
    # Scores fall by hundreds from piece to piece.
    falling = decode_case("falling", Heads(2, 1, 64), [2500], q_scale=100.0)
    long = case_named(kernel, "one_long_row")
    cases = [*(case_named(kernel, name) for name in FEW_ROWS_CASES), falling]
    for settings, chosen in (
        ({}, [long]),  # as on a GPU
        ({"WARPS_IN_CLUSTER": 8}, [long]),  # more parts than a warp folds at a time
        ({**few_warps, "CLUSTERED_ROWS": always}, cases),
        ({**few_warps, "CLUSTERED_ROWS": never}, cases),
    ):
        with mock.patch.dict(vars(module), settings):
            for case in chosen:
                arrays = case_arrays(kernel, case, "bfloat16")
                newest = newest_tokens(*(arrays[i] for i in (2, 4, 5, 6)))
                late = {"k_cache": newest, "v_cache": newest}
                assert_right_on_sm_90(kernel, case, arrays, late=late)


PIECE_CASES = ("ten_rows", "ten_rows_of_block_size_32", "block_edges", "cut_finely", "peaked")


def pieces_are_right(kernels: Kernels) -> None:
    """Decode attention's form for sm_90a is within the tolerance; newest tokens are read late."""
    kernel = kernels["paged_decode_attention"]
    # A warp has more tiles than it looks up at a time; scores fall by hundreds from tile to tile.
    # Dead rows, so that the form of few rows does not take them.
    long = decode_case("long", Heads(2, 1, 64), [9000, 300, 0, 0, 0])
    falling = decode_case("falling", Heads(4, 2, 64), [900, 300, 0, 0, 0], q_scale=100.0)
    for case in (
        *(case_named(kernel, name) for name in PIECE_CASES),
        _not_cut(long),
        _not_cut(falling),
    ):
        arrays = case_arrays(kernel, case, "bfloat16")
        newest = newest_tokens(*(arrays[i] for i in (2, 4, 5, 6)))
        late = {"k_cache": newest, "v_cache": newest}
        assert_right_on_sm_90(kernel, case, arrays, late=late)


def weights_are_not_rounded(kernels: Kernels) -> None:
    """Every form of decode attention multiplies values by weights as exact as its sums.

    A weight that is rounded to 16 bits is within the tolerance, and most small cases have as many
    threads as tokens, each of which then weighs 1.
    """
    kernel = kernels["paged_decode_attention"]
    for arch, case in (
        ("", decode_case("vectors", Heads(4, 2, 8), [3000, 1000, 2000])),
        ("", decode_case("tiles", Heads(4, 2, 32), [1000, 700])),
        ("sm_90", decode_case("pieces", Heads(4, 2, 64), [900, 300, 0, 0, 0])),
        ("sm_90", decode_case("few rows", Heads(4, 2, 64), [4000])),
        ("sm_90", decode_case("few rows", Heads(4, 2, 128), [4000])),
    ):
        assert_rounded_once(kernel, [_not_cut(case)], MAX_SHARE_NEXT_TO_TIE, arch)


def appended_attention_is_one_after_the_other(kernels: Kernels) -> None:
    """ROPE_APPEND_ATTENTION, in both forms, gives the bits of the kernels that it stands for.

    The newest tokens are read from nowhere in the cache.
    """
    kernel = kernels["rope_append_attention"]
    rope, decode = kernels["rope_append"], kernels["paged_decode_attention"]
    # The last one: a warp has more tiles than it looks up at a time.
    cases = (*small_cases(kernel), _not_cut(case_named(kernel, "cut_finely")))
    few_rows = sys.modules[f"{package_of(decode)}.few_rows_attention"]
    for case in cases:
        arrays = case_arrays(kernel, case, "bfloat16")
        *caches, arrivals, qkv, positions, slots, tables, row_ids, lengths, parts, cos_sin = arrays
        attrs = dict(case.attrs)
        where = (qkv, cos_sin, positions, slots)
        q, *appended = run(rope, [*caches, *where], {"q_size": attrs.pop("q_size")})
        given = [arrivals, q, *appended, tables, row_ids, lengths, parts]
        newest = newest_tokens(caches[0], tables, row_ids, lengths)
        late = {"k_cache": newest, "v_cache": newest}
        for arch in ("", "sm_90"):
            with mock.patch.object(few_rows, "MAX_ROWS", 0):
                out, counts = run(decode, given, attrs, arch=arch)
            for how in ({"checked": True, "late": late}, {"order": "reverse"}):
                found = run(kernel, arrays, case.attrs, arch=arch, **how)
                what = f"rope_append_attention {case.name} {arch} {', '.join(how)}"
                assert_same_bits(what, found, (out, *appended, counts))


IDENTITIES: Mapping[str, tuple[Identity, ...]] = {
    "paged_decode_attention": (
        orders_agree("paged_decode_attention", ("float32", "bfloat16")),
        rounded_once("paged_decode_attention"),
        exp2_is_right,
        decode_rows_stand_alone,
        blocks_may_lie_anywhere("paged_decode_attention"),
        far_blocks(
            "paged_decode_attention",
            ("one_row", "float32", ""),
            ("one_row", "bfloat16", ""),
            ("one_row", "bfloat16", "sm_90"),
            ("block_edges", "bfloat16", "sm_90"),
        ),
        prefill_rows_are_decode_rows,
        forms_of_few_rows_are_right,
        pieces_are_right,
        weights_are_not_rounded,
    ),
    "rope_append_attention": (
        orders_agree("rope_append_attention", ("bfloat16",)),
        appended_attention_is_one_after_the_other,
        far_blocks(
            "rope_append_attention", ("one_row", "bfloat16", ""), ("one_row", "bfloat16", "sm_90")
        ),
    ),
}
"""What is asked of each kernel, by its name."""
