"""Prefill attention on a GPU against its reference, at lengths that take the emulation too long.

And against a few lines of float64, on some rows, at lengths that take the reference too long.
"""

from dataclasses import replace

import numpy as np
import pytest

from cugraphs.kernel import DTYPES
from cugraphs.kernels import PAGED_DECODE_ATTENTION, PAGED_PREFILL_ATTENTION
from cugraphs.kernels.paged_cases import Heads, prefill_case, with_parts
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
def test_every_small_case_in_the_form_for_many_tokens(dtype, monkeypatch):
    from cugraphs.kernels import paged_prefill_attention

    monkeypatch.setattr(paged_prefill_attention, "WGMMA_MIN_TOKENS", 0)
    kernel = replace(PAGED_PREFILL_ATTENTION, benchmarks=())  # another one, whose plans are new
    assert_kernel(kernel, stages=["gpu"], dtypes=[dtype])


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
    given = with_parts([a.copy() for a in arrays[:-1]])
    (rows,) = run_on_gpu(PAGED_DECODE_ATTENTION, given, case.attrs)
    difference = np.abs(chunks.astype(np.float32) - rows.astype(np.float32))
    assert difference.max() <= 2**-7 * np.abs(rows.astype(np.float32)).max()


def exact(arrays, heads, seq, positions):
    """Rows of a sequence's attention in float64, [positions, q_size], q's rows being its last."""
    q, k_cache, v_cache, tables, slots, seq_lens, starts = arrays
    length, rows = int(seq_lens[seq]), q[starts[seq] : starts[seq + 1]]
    table = tables[slots[seq], : -(-length // k_cache.shape[2])]
    k, v = (
        cache[table]
        .astype(np.float32)
        .transpose(1, 0, 2, 3)
        .reshape(heads.kv_heads, -1, heads.head_dim)
        for cache in (k_cache, v_cache)
    )
    results = []
    for position in positions:
        queries = rows[position - length].astype(np.float64)
        queries = queries.reshape(heads.kv_heads, -1, heads.head_dim)
        seen = slice(0, position + 1)
        scores = queries @ k[:, seen].astype(np.float64).transpose(0, 2, 1) * heads.head_dim**-0.5
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        results.append((weights @ v[:, seen].astype(np.float64)).reshape(-1))
    return np.stack(results)


def check_rows(arrays, heads, found, seq, positions):
    wanted = exact(arrays, heads, seq, positions)
    starts, length = arrays[-1], int(arrays[-2][seq])
    rows = found[starts[seq] : starts[seq + 1]].astype(np.float64)
    assert np.isfinite(rows).all()
    rows = rows[np.array(positions) - length]
    size = np.sqrt(np.mean(wanted**2, axis=-1, keepdims=True))
    # The largest of a row is some 4 times as large as most, and rounded by up to 2^-9 of itself.
    assert np.abs((rows - wanted) / size).max() <= 2**-6


@pytest.mark.parametrize("head_dim", [64, 128])
def test_prompts_of_1_15_16_17_and_8191_tokens(head_dim):
    from cugraphs.gpu_runs import run_on_gpu

    heads, lengths = Heads(8, 2, head_dim), [1, 15, 16, 17, 8191]
    case = prefill_case("", heads, [(length, length) for length in lengths])
    arrays = case.make(np.random.default_rng(0), DTYPES["bfloat16"])
    (found,) = run_on_gpu(PAGED_PREFILL_ATTENTION, arrays, case.attrs)
    for seq, length in enumerate(lengths[:4]):
        check_rows(arrays, heads, found, seq, range(length))
    some = np.random.default_rng(1).integers(0, 8191, 20).tolist()
    check_rows(arrays, heads, found, 4, [0, 15, 16, 127, 128, 4095, 8189, 8190, *some])


def test_a_prompt_of_131071_tokens():
    from cugraphs.gpu_runs import run_on_gpu

    heads, length = Heads(2, 1, 128), 131_071
    case = prefill_case("", heads, [(length, length)])
    arrays = case.make(np.random.default_rng(0), DTYPES["bfloat16"])
    (found,) = run_on_gpu(PAGED_PREFILL_ATTENTION, arrays, case.attrs)
    check_rows(arrays, heads, found, 0, [0, 127, 65_535, 65_536, 100_000, 131_069, 131_070])


@pytest.mark.parametrize("head_dim", [64, 128])
def test_rows_have_the_same_bits_however_a_prompt_is_cut(head_dim):
    """Not promised by default, but so where one kernel takes all chunks: tiles begin at key 0."""
    from cugraphs.gpu_runs import run_on_gpu

    heads = Heads(8, 2, head_dim)
    case = prefill_case("", heads, [(1500, 1500)])
    arrays = case.make(np.random.default_rng(0), DTYPES["bfloat16"])
    q, *caches, seq_lens, _ = arrays
    (whole,) = run_on_gpu(PAGED_PREFILL_ATTENTION, arrays, case.attrs)
    begin = 0
    for rows in (300, 257, 489, 454):
        end = begin + rows
        chunk = [q[begin:end], *caches, np.full_like(seq_lens, end), np.array([0, rows], np.int32)]
        (found,) = run_on_gpu(PAGED_PREFILL_ATTENTION, chunk, case.attrs)
        assert found.tobytes() == whole[begin:end].tobytes()
        begin = end
