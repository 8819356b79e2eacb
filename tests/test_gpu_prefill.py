"""Prefill attention on a GPU against its reference, at lengths that take the emulation too long."""

from dataclasses import replace

import numpy as np
import pytest

from cugraphs.kernel import DTYPES
from cugraphs.kernels import PAGED_DECODE_ATTENTION, PAGED_PREFILL_ATTENTION
from cugraphs.kernels.paged_cases import Heads, prefill_case
from cugraphs.testing import assert_kernel

pytestmark = pytest.mark.gpu

LONG = (
    prefill_case("prompt", Heads(8, 2, 128), [(3001, 3001)]),
    prefill_case("chunk_far_into_a_prompt", Heads(8, 2, 128), [(20_000, 300)]),
    prefill_case("peaked", Heads(8, 2, 64), [(5000, 700)], q_scale=30.0),
    prefill_case(
        "decode_rows_among_prompts",
        Heads(8, 2, 128),
        [(100_000, 1), (700, 700), (4097, 1), (1, 1), (0, 0), (9000, 129)],
        padding_rows=3,
    ),
    prefill_case("many_sequences", Heads(4, 1, 64), [(n, n // 3) for n in range(1, 600, 7)]),
)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", LONG, ids=lambda case: case.name)
def test_long_contexts(case, dtype):
    kernel = replace(PAGED_PREFILL_ATTENTION, cases=(case,))
    assert_kernel(kernel, stages=["gpu"], dtypes=[dtype])


def test_a_chunk_of_one_token_is_what_decode_computes():
    from cugraphs.gpu_runs import run_on_gpu

    lengths = [1, 63, 64, 65, 3000, 100_000]
    case = prefill_case("", Heads(8, 2, 128), [(length, 1) for length in lengths])
    arrays = case.make(np.random.default_rng(0), DTYPES["bfloat16"])
    (chunks,) = run_on_gpu(PAGED_PREFILL_ATTENTION, [a.copy() for a in arrays], case.attrs)
    (rows,) = run_on_gpu(PAGED_DECODE_ATTENTION, [a.copy() for a in arrays[:-1]], case.attrs)
    difference = np.abs(chunks.astype(np.float32) - rows.astype(np.float32))
    assert difference.max() <= 2**-7 * np.abs(rows.astype(np.float32)).max()
