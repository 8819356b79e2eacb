"""Rope, append and paged attention against hand-computed values and dense float64 attention."""

import numpy as np
import pytest

from cugraphs.kernel import DTYPES, ArrayType, Cost
from cugraphs.kernels import PAGED_DECODE_ATTENTION, PAGED_PREFILL_ATTENTION, ROPE_APPEND
from cugraphs.kernels.paged_cases import (
    Heads,
    decode_case,
    filled_cache,
    prefill_case,
    with_parts,
)

F32, BF16 = DTYPES["float32"], DTYPES["bfloat16"]
GQA = Heads(4, 2, 64)


def int32(values):
    return np.array(values, np.int32)


def inputs(case, dtype=F32, seed=0):
    return case.make(np.random.default_rng(seed), dtype)


def decode_inputs(case):
    """Those that are no matter of how blocks share the work."""
    _, *arrays, _ = inputs(case)
    return arrays


def decode(arrays, **attrs):
    given = with_parts(arrays)
    return PAGED_DECODE_ATTENTION.reference(*given, **{"scale": 0.125, **attrs})[0]


def prefill(arrays, **attrs):
    return PAGED_PREFILL_ATTENTION.reference(*arrays, **{"scale": 0.125, **attrs})[0]


def dense(q, k_cache, v_cache, table, length, scale):
    """softmax(scale q K^T) V of one row in float64, head by head, token by token."""
    _, kv_heads, block_size, head_dim = k_cache.shape
    heads = q.reshape(-1, head_dim).astype(np.float64)
    group = len(heads) // kv_heads
    out = []
    for head, query in enumerate(heads):
        at = [(table[t // block_size], head // group, t % block_size) for t in range(length)]
        keys = np.array([k_cache[i] for i in at], np.float64)
        values = np.array([v_cache[i] for i in at], np.float64)
        scores = keys @ query * scale
        weights = np.exp(scores - scores.max())
        out.append(weights @ values / weights.sum())
    return np.concatenate(out)


# rope_append


def rope(qkv, positions, slots, head_dim, kv_heads=1, *, cos_sin=None, num_blocks=4, block_size=4):
    qkv = np.atleast_2d(qkv)
    if cos_sin is None:
        frequencies = 10000.0 ** (-np.arange(0, head_dim, 2) / head_dim)
        angles = np.arange(600)[:, None] * frequencies
        cos_sin = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    k_cache = np.full((num_blocks, kv_heads, block_size, head_dim), 9, qkv.dtype)
    v_cache = k_cache.copy()
    q_size = qkv.shape[1] - 2 * kv_heads * head_dim
    (q,) = ROPE_APPEND.reference(
        k_cache, v_cache, qkv, cos_sin, int32(positions), int32(slots), q_size=q_size
    )
    return q, k_cache, v_cache


def test_rope_rotates_a_pair_by_hand_and_stores_k_and_v_in_the_slot():
    # One frequency; position 1 is a quarter turn: (a, b) -> (-b, a).
    quarter = np.array([[1, 0], [0, 1]], np.float32)
    q, k_cache, v_cache = rope(
        np.array([[1, 2, 3, 4, 5, 6, 7, 8]], np.float32), [1], [6], 2, cos_sin=quarter
    )
    np.testing.assert_array_equal(q, [[-2, 1, -4, 3]])
    np.testing.assert_array_equal(k_cache[1, 0, 2], [-6, 5])  # slot 6 = block 1, offset 2
    np.testing.assert_array_equal(v_cache[1, 0, 2], [7, 8])
    k_cache[1, 0, 2] = v_cache[1, 0, 2] = 9
    assert (k_cache == 9).all() and (v_cache == 9).all()


def test_rope_pairs_element_i_with_i_plus_half_as_hugging_face_does():
    # The first frequency turns by a quarter, the second not at all.
    cos_sin = np.array([[0, 1, 1, 0]], np.float32)
    q, _, _ = rope(np.arange(1, 13, dtype=np.float32), [0], [0], 4, cos_sin=cos_sin)
    np.testing.assert_array_equal(q, [[-3, 2, 1, 4]])


def test_rope_at_position_zero_changes_nothing():
    qkv = np.random.default_rng(0).standard_normal((1, 32)).astype(np.float32)
    q, k_cache, _ = rope(qkv, [0], [0], 8)
    np.testing.assert_array_equal(q, qkv[:, :16])
    np.testing.assert_array_equal(k_cache[0, 0, 0], qkv[0, 16:24])


def test_rope_preserves_the_norm_of_every_head():
    qkv = np.random.default_rng(1).standard_normal((5, 6 * 16)).astype(np.float64)
    q, k_cache, _ = rope(qkv, [1, 7, 100, 333, 599], range(5), 16)
    before = np.linalg.norm(qkv[:, :80].reshape(5, 5, 16), axis=2)
    k = k_cache[:, 0].reshape(-1, 16)[:5]
    after = np.linalg.norm(np.concatenate([q, k], axis=1).reshape(5, 5, 16), axis=2)
    np.testing.assert_allclose(after, before, rtol=1e-6)


def test_rope_scores_depend_on_relative_positions_only():
    rng = np.random.default_rng(2)
    qkv = np.tile(rng.standard_normal(3 * 16), (4, 1))
    q, k_cache, _ = rope(qkv, [3, 10, 203, 210], range(4), 16)
    k = k_cache[:, 0].reshape(-1, 16)
    np.testing.assert_allclose(q[1] @ k[0], q[3] @ k[2], rtol=1e-5)
    assert abs(q[1] @ k[0] - q[3] @ k[0]) > 1e-2


def test_rope_dead_rows_leave_the_cache_alone_and_give_zeros():
    qkv = np.full((3, 24), np.nan, np.float32)
    qkv[1] = 1
    with np.errstate(all="raise"):
        q, k_cache, v_cache = rope(qkv, [10**9, 0, -5], [-1, 5, -1], 8)
    np.testing.assert_array_equal(q, [[0] * 8, [1] * 8, [0] * 8])
    np.testing.assert_array_equal(k_cache[1, 0, 1], 1)
    assert (k_cache == 9).sum() == k_cache.size - 8 == (v_cache == 9).sum()


def test_rope_copies_v_bit_for_bit():
    qkv = np.random.default_rng(3).standard_normal((2, 48)).astype(BF16)
    _, _, v_cache = rope(qkv, [5, 6], [3, 12], 16)
    np.testing.assert_array_equal(v_cache[0, 0, 3], qkv[0, 32:])
    np.testing.assert_array_equal(v_cache[3, 0, 0], qkv[1, 32:])


def test_rope_refuses_a_position_beyond_its_table():
    with pytest.raises(IndexError):
        rope(np.ones((1, 12), np.float32), [600], [0], 4)


@pytest.mark.parametrize(
    ("qkv_size", "kv_heads", "head_dim", "q_size", "message"),
    [
        (512, 2, 64, 192, r"q_size is 192, expected a multiple of kv_heads\*head_dim = 2\*64"),
        (513, 2, 64, 256, r"axis 'qkv_size' is 513 in qkv, expected 512 = "),
        (45, 1, 15, 15, "head_dim of k_cache is 15, expected an even number"),
        (256, 2, 64, 0, "q_size is 0"),
    ],
)
def test_rope_refuses_sizes_that_do_not_fit(qkv_size, kv_heads, head_dim, q_size, message):
    cache = ArrayType((8, kv_heads, 16, head_dim), "float32")
    ints = ArrayType((3,), "int32")
    types = [
        cache,
        cache,
        ArrayType((3, qkv_size), "float32"),
        ArrayType((9, head_dim), "float32"),
        ints,
        ints,
    ]
    with pytest.raises(ValueError, match="^rope_append: " + message):
        ROPE_APPEND.infer(types, {"q_size": q_size})


def test_rope_cost_by_hand():
    axes = {"tokens": 3, "kv_heads": 2, "head_dim": 8, "qkv_size": 64, "num_blocks": 99}
    # qkv in and out, a row of cos_sin, a position and a slot; 3 flops for q and k.
    assert ROPE_APPEND.cost(axes, "bfloat16", q_size=32) == Cost(
        3 * (2 * 64 * 2 + 8 * 4 + 4 + 4), 3 * 3 * 48
    )


# decode attention


@pytest.mark.parametrize("case", PAGED_DECODE_ATTENTION.cases, ids=lambda case: case.name)
def test_decode_is_dense_softmax_attention(case):
    _, q, k_cache, v_cache, tables, row_ids, seq_lens, _ = arrays = inputs(case)
    (out,) = PAGED_DECODE_ATTENTION.reference(*arrays, **case.attrs)
    for row, seq_len in enumerate(seq_lens):
        expected = np.zeros(q.shape[1])
        if seq_len:
            expected = dense(
                q[row], k_cache, v_cache, tables[row_ids[row]], seq_len, case.attrs["scale"]
            )
        np.testing.assert_allclose(out[row], expected, rtol=1e-4, atol=1e-4)


def test_decode_of_one_token_is_its_value():
    _, _, v_cache, tables, (slot,), _ = arrays = decode_inputs(decode_case("", GQA, [1]))
    value = v_cache[tables[slot, 0], :, 0]
    np.testing.assert_array_equal(decode(arrays).reshape(2, 2, 64), value[:, None].repeat(2, 1))


def test_decode_of_a_zero_query_is_the_mean_of_the_values():
    q, k_cache, v_cache, tables, row_ids, seq_lens = decode_inputs(decode_case("", GQA, [20]))
    table = tables[row_ids[0]]
    values = np.concatenate([v_cache[table[0]], v_cache[table[1], :, :4]], axis=1)
    out = decode((q * 0, k_cache, v_cache, tables, row_ids, seq_lens))
    expected = values.mean(axis=1)[:, None].repeat(2, 1)
    np.testing.assert_allclose(out.reshape(2, 2, 64), expected, atol=1e-6)


def test_decode_of_a_dominant_key_is_its_value_without_overflow():
    q, k_cache, v_cache, tables, row_ids, seq_lens = decode_inputs(decode_case("", GQA, [20]))
    block = tables[row_ids[0], 1]
    q[:] = 1e3
    k_cache[block, :, 2] = 1e3  # token 18: a score of 8e6
    with np.errstate(all="raise"):
        out = decode((q, k_cache, v_cache, tables, row_ids, seq_lens))
    expected = v_cache[block, :, 2][:, None].repeat(2, 1)
    np.testing.assert_allclose(out.reshape(2, 2, 64), expected, rtol=1e-6)


def test_decode_takes_any_block_size():
    rng = np.random.default_rng(4)
    for block_size in (1, 4, 32):
        blocks = -(-70 // block_size)
        k_cache = rng.standard_normal((blocks + 1, 2, block_size, 8)).astype(np.float32)
        v_cache = rng.standard_normal(k_cache.shape).astype(np.float32)
        table = int32([1 + rng.permutation(blocks)])
        q = rng.standard_normal((1, 32)).astype(np.float32)
        out = decode((q, k_cache, v_cache, table, int32([0]), int32([70])))
        expected = dense(q[0], k_cache, v_cache, table[0], 70, 0.125)
        np.testing.assert_allclose(out[0], expected, rtol=1e-5, atol=1e-6)


def test_decode_takes_a_numpy_scale_without_widening():
    arrays = decode_inputs(decode_case("", GQA, [20]))
    np.testing.assert_array_equal(decode(arrays, scale=np.float64(0.125)), decode(arrays))


def test_decode_does_not_depend_on_where_the_blocks_are():
    q, k_cache, v_cache, tables, *rest = arrays = decode_inputs(decode_case("", GQA, [40, 600]))
    to = np.random.default_rng(5).permutation(len(k_cache))
    moved = np.empty_like(k_cache), np.empty_like(v_cache)
    moved[0][to], moved[1][to] = k_cache, v_cache
    np.testing.assert_array_equal(
        decode((q, *moved, to[tables].astype(np.int32), *rest)), decode(arrays)
    )


@pytest.mark.parametrize("kernel", [PAGED_DECODE_ATTENTION, PAGED_PREFILL_ATTENTION])
def test_attention_refuses_heads_that_the_kv_heads_cannot_share(kernel):
    case = kernel.cases[0]
    arrays = inputs(case)
    types = list(map(ArrayType.of, arrays))
    (q,) = (i for i, operand in enumerate(kernel.supplied) if operand.name == "q")
    types[q] = ArrayType((types[q].shape[0], 3 * 64), "float32")
    message = rf"^{kernel.name}: axis 'q_size' is 192 in q, expected a multiple of .* 2\*64"
    with pytest.raises(ValueError, match=message):
        kernel.infer(types, case.attrs)


def test_decode_cost_by_hand():
    axes = {
        "rows": 3,
        "q_size": 32,
        "kv_heads": 2,
        "head_dim": 8,
        "block_size": 16,
        "max_blocks": 4,
        "num_blocks": 99,
    }
    # 17 tokens: q and out, K and V, two table entries, a slot and a length a row.
    cost = PAGED_DECODE_ATTENTION.cost({**axes, "context": 17}, "bfloat16", scale=1.0)
    assert cost == Cost(3 * (2 * 32 * 2 + 2 * 17 * 16 * 2 + 2 * 4 + 8), 3 * 17 * 32 * 4)
    full = PAGED_DECODE_ATTENTION.cost(axes, "bfloat16", scale=1.0)
    assert full == PAGED_DECODE_ATTENTION.cost({**axes, "context": 64}, "bfloat16", scale=1.0)


# prefill attention


@pytest.mark.parametrize("case", PAGED_PREFILL_ATTENTION.cases, ids=lambda case: case.name)
def test_prefill_is_dense_causal_attention_and_zero_elsewhere(case):
    q, k_cache, v_cache, tables, slot_ids, seq_lens, starts = arrays = inputs(case)
    out = prefill(arrays, **case.attrs)
    expected = np.zeros(q.shape)
    for seq, seq_len in enumerate(seq_lens):
        for row in range(starts[seq], starts[seq + 1] if seq_len else starts[seq]):
            visible = seq_len - (starts[seq + 1] - row) + 1
            expected[row] = dense(
                q[row], k_cache, v_cache, tables[slot_ids[seq]], visible, case.attrs["scale"]
            )
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", PAGED_PREFILL_ATTENTION.cases, ids=lambda case: case.name)
def test_batch_invariant_prefill_is_decode_bit_for_bit(case, dtype):
    q, *cache, slot_ids, seq_lens, starts = arrays = inputs(case, DTYPES[dtype])
    attrs = {**case.attrs, "batch_invariant": True}
    owner = np.repeat(np.arange(len(seq_lens)), np.diff(starts))
    rows = starts[0] + np.arange(len(owner))
    visible = seq_lens[owner] - (starts[owner + 1] - rows) + 1
    expected = np.zeros_like(q)
    if len(owner):
        expected[rows] = decode((q[rows], *cache, slot_ids[owner], visible), **attrs)
    np.testing.assert_array_equal(prefill(arrays, **attrs), expected)


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("sizes", [[45], [44, 1], [1, 44], [15, 16, 14], [16, 1, 28], [9] * 5])
def test_chunks_of_a_prompt_give_what_the_whole_prompt_gives(sizes, batch_invariant):
    q, k_cache, v_cache, tables, slots, *_ = arrays = inputs(prefill_case("", GQA, [(45, 45)]))
    whole = prefill(arrays, batch_invariant=batch_invariant)
    # K and V of later chunks are not in the cache yet: nothing after a chunk may be read.
    done, parts = 0, []
    for size in sizes:
        start, done = done, done + size
        k_now, v_now = np.full_like(k_cache, np.nan), np.full_like(v_cache, np.nan)
        for position in range(done):
            at = (tables[slots[0], position // 16], slice(None), position % 16)
            k_now[at], v_now[at] = k_cache[at], v_cache[at]
        chunk = (q[start:done], k_now, v_now, tables, slots, int32([done]), int32([0, size]))
        parts.append(prefill(chunk, batch_invariant=batch_invariant))
    if batch_invariant:
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    else:
        np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-5, atol=1e-5)


def test_prefill_of_many_query_tiles_equals_the_decode_of_each_row():
    case = prefill_case("", Heads(8, 1, 16), [(900, 900)])
    q, *cache, slots, _, _ = arrays = inputs(case)
    rows = int32([0, 1, 35, 36, 37, 511, 898, 899])
    expected = decode((q[rows], *cache, slots[np.zeros(8, int)], rows + 1))
    np.testing.assert_allclose(prefill(arrays)[rows], expected, rtol=1e-5, atol=1e-5)


def test_prefill_of_a_sequence_does_not_depend_on_the_sequences_beside_it():
    chunks = [(17, 17), (40, 8), (1, 1), (0, 0)]
    q, *cache, slots, seq_lens, starts = arrays = inputs(prefill_case("", GQA, chunks))
    together = prefill(arrays, batch_invariant=True)
    for seq, (_, rows) in enumerate(chunks):
        own = slice(starts[seq], starts[seq + 1])
        alone = (q[own], *cache, slots[[seq]], seq_lens[[seq]], int32([0, rows]))
        np.testing.assert_array_equal(prefill(alone, batch_invariant=True), together[own])


def test_prefill_without_sequences_or_rows():
    k_cache, v_cache, tables = filled_cache(np.random.default_rng(6), F32, [3], GQA)
    none = (np.ones((2, 256), F32), k_cache, v_cache, tables, int32([]), int32([]), int32([0]))
    np.testing.assert_array_equal(prefill(none), np.zeros((2, 256)))
    rest = (int32([0]), int32([3]), int32([0, 0]))
    empty = (np.ones((0, 256), F32), k_cache, v_cache, tables, *rest)
    assert prefill(empty).shape == (0, 256)


def test_prefill_cost_by_hand():
    axes = {
        "tokens": 6,
        "seqs": 2,
        "q_size": 32,
        "kv_heads": 2,
        "head_dim": 8,
        "block_size": 16,
        "max_blocks": 4,
        "num_blocks": 99,
        "context": 20,
    }
    # Two chunks of 3 rows, each over 20 tokens: the rows of a chunk see 18, 19 and 20.
    cost = PAGED_PREFILL_ATTENTION.cost(axes, "bfloat16", scale=1.0)
    kv_bytes = 2 * 2 * 20 * 16 * 2
    assert cost == Cost(
        2 * 6 * 32 * 2 + kv_bytes + 2 * (2 * 4 + 4) + 3 * 4, 2 * (18 + 19 + 20) * 32 * 4
    )
