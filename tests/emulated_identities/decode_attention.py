"""Attention of decode rows, and with the rotation and the append in it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

from cugraphs.kernels import attention_parts
from cugraphs.kernels.paged_cases import Heads, decode_case, with_parts
from cugraphs.testing import case_arrays
from emulated_identities.any_kernel import orders_agree, rounded_once
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
    package = package_of(kernel)
    module: Any = sys.modules[f"{package}.few_rows_attention"]
    small = {"MAX_ROWS": 1 << 20, "WARPS": 2, "WARPS_IN_CLUSTER": 2, "CLUSTER": 2}
    small |= {"BLOCKS": 24, "RING_BYTES": 1 << 14}
    before = {name: getattr(module, name) for name in (*small, "CLUSTERED_ROWS")}
    try:
        for clusters in (None, True, False):  # None: as it is on a GPU
            rows = 1 << 20 if clusters else 0
            settings = {**small, "CLUSTERED_ROWS": {64: rows, 128: rows}}
            for name, value in ({} if clusters is None else settings).items():
                setattr(module, name, value)
            names = ("one_long_row",) if clusters is None else FEW_ROWS_CASES
            for case in (case_named(kernel, name) for name in names):
                arrays = case_arrays(kernel, case, "bfloat16")
                newest = newest_tokens(*(arrays[i] for i in (2, 4, 5, 6)))
                late = {"k_cache": newest, "v_cache": newest}
                assert_right_on_sm_90(kernel, case, arrays, late=late)
    finally:
        for name, value in before.items():
            setattr(module, name, value)


PIECE_CASES = ("ten_rows", "ten_rows_of_block_size_32", "block_edges", "cut_finely", "peaked")


def pieces_are_right(kernels: Kernels) -> None:
    """Decode attention's form for sm_90a is within the tolerance; newest tokens are read late."""
    kernel = kernels["paged_decode_attention"]
    cases = [(case_named(kernel, name), attention_parts.WHOLE_SHARES) for name in PIECE_CASES]
    # A warp has more tiles than it looks up at a time, which otherwise takes a hundred such rows.
    # Dead rows, so that the form of few rows does not take it.
    cases.append((decode_case("not cut", Heads(2, 1, 64), [9000, 300, 0, 0, 0]), 1))
    for case, shares in cases:
        with mock.patch.object(attention_parts, "WHOLE_SHARES", shares):
            arrays = case_arrays(kernel, case, "bfloat16")
        newest = newest_tokens(*(arrays[i] for i in (2, 4, 5, 6)))
        late = {"k_cache": newest, "v_cache": newest}
        assert_right_on_sm_90(kernel, case, arrays, late=late)


def appended_attention_is_one_after_the_other(kernels: Kernels) -> None:
    """ROPE_APPEND_ATTENTION, in both forms, gives the bits of the kernels that it stands for.

    The newest tokens are read from nowhere in the cache.
    """
    kernel = kernels["rope_append_attention"]
    rope, decode = kernels["rope_append"], kernels["paged_decode_attention"]
    cases = [(case, attention_parts.WHOLE_SHARES) for case in small_cases(kernel)]
    # A warp has more tiles than it looks up at a time, which otherwise takes a hundred such rows.
    long = replace(case_named(kernel, "cut_finely"), name="not cut")
    few_rows = sys.modules[f"{package_of(decode)}.few_rows_attention"]
    for case, shares in (*cases, (long, 1)):
        with mock.patch.object(attention_parts, "WHOLE_SHARES", shares):
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
            found = run(kernel, arrays, case.attrs, arch=arch, late=late, checked=True)
            what = f"rope_append_attention {case.name} {arch}"
            assert_same_bits(what, found, (out, *appended, counts))


IDENTITIES: Mapping[str, tuple[Identity, ...]] = {
    "paged_decode_attention": (
        orders_agree("paged_decode_attention", ("float32", "bfloat16")),
        rounded_once("paged_decode_attention"),
        exp2_is_right,
        decode_rows_stand_alone,
        blocks_may_lie_anywhere("paged_decode_attention"),
        far_blocks("paged_decode_attention"),
        prefill_rows_are_decode_rows,
        forms_of_few_rows_are_right,
        pieces_are_right,
    ),
    "rope_append_attention": (
        orders_agree("rope_append_attention", ("bfloat16",)),
        appended_attention_is_one_after_the_other,
        far_blocks("rope_append_attention"),
    ),
}
"""What is asked of each kernel, by its name."""
