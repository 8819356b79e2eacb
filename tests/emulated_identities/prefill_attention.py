"""Attention of chunks of prompts."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

import numpy as np

from cugraphs.kernel import Kernel
from cugraphs.kernels.paged_cases import with_parts
from cugraphs.testing import case_arrays
from emulated_identities.any_kernel import orders_agree, rounded_once
from emulated_identities.identity import (
    Identity,
    Kernels,
    assert_right_on_sm_90,
    assert_same_bits,
    case_named,
    run,
)
from emulated_identities.paged_cache import (
    assert_far_blocks_are_found,
    blocks_may_lie_anywhere,
    far_blocks,
)

# Where the weights of attention are rounded too, each relative to a largest one that is not the
# reference's: as large an error as the rounding of the result, but averaged over the tokens.
MAX_SHARE_ROUNDED_WEIGHTS = 0.2


def prefill_rows_are_decode_rows(kernels: Kernels) -> None:
    """With batch_invariant, each row of a chunk has the bits that decode gives that token."""
    prefill, decode = kernels["paged_prefill_attention"], kernels["paged_decode_attention"]
    for name in ("batch_invariant", "batch_invariant_128", "batch_invariant_group_of_9"):
        for dtype in ("bfloat16", "float32"):
            case = case_named(prefill, name)
            q, *cache, slot_ids, seq_lens, starts = case_arrays(prefill, case, dtype)
            (chunks,) = run(prefill, [q, *cache, slot_ids, seq_lens, starts], case.attrs)
            rows, row_ids, lengths = [], [], []
            for seq, (start, end) in enumerate(itertools.pairwise(starts)):
                rows += range(start, end)
                row_ids += [slot_ids[seq]] * (end - start)
                lengths += range(seq_lens[seq] - (end - start) + 1, seq_lens[seq] + 1)
            given = [q[rows], *cache, np.array(row_ids, np.int32), np.array(lengths, np.int32)]
            decoded = run(decode, with_parts(given, batch_invariant=True), case.attrs)[:1]
            assert_same_bits(f"paged_prefill_attention {name} {dtype}", [chunks[rows]], decoded)


WGMMA_CASES = ("several_chunks", "many_tokens_128", "peaks_late", "dead_sequences", "key_edges")


def form_for_sm_90a_is_right(kernels: Kernels) -> None:
    """Prefill attention on wgmma, over two blocks, is within the tolerance of the reference."""
    kernel = kernels["paged_prefill_attention"]
    with _wgmma_of_few_tokens(kernel):
        for case in (case_named(kernel, name) for name in WGMMA_CASES):
            arrays = case_arrays(kernel, case, "bfloat16")
            assert_right_on_sm_90(kernel, case, arrays)


def far_boxes(kernels: Kernels) -> None:
    """Prefill attention on wgmma finds blocks more than 2^31 vectors into a cache."""
    kernel = kernels["paged_prefill_attention"]
    with _wgmma_of_few_tokens(kernel):
        assert_far_blocks_are_found(kernel, case_named(kernel, "block_edges"), "bfloat16", "sm_90")


@contextmanager
def _wgmma_of_few_tokens(kernel: Kernel) -> Iterator[None]:
    """Prefill attention takes its form for sm_90a, over two blocks, for any number of tokens."""
    assert kernel.launches is not None
    module = sys.modules[kernel.launches.__module__]
    with mock.patch.multiple(module, WGMMA_MIN_TOKENS=0, MULTIPROCESSORS=2):
        yield


IDENTITIES: Mapping[str, tuple[Identity, ...]] = {
    "paged_prefill_attention": (
        orders_agree("paged_prefill_attention", ("float32", "bfloat16")),
        rounded_once("paged_prefill_attention", MAX_SHARE_ROUNDED_WEIGHTS),
        blocks_may_lie_anywhere("paged_prefill_attention"),
        far_blocks(
            "paged_prefill_attention", ("one_row", "float32", ""), ("one_row", "bfloat16", "")
        ),
        far_boxes,
        prefill_rows_are_decode_rows,
        form_for_sm_90a_is_right,
    ),
}
"""What is asked of each kernel, by its name."""
