"""Bugs to plant in kernels/paged_prefill_simple.cuh."""

BUGS = {
    ("paged_prefill_attention", "paged_prefill_simple.cuh"): (
        (
            "a token does not see itself, simple form",
            "(tile.first_row + r) / group + 1;",
            "(tile.first_row + r) / group;",
        ),
        (
            "a token sees the next one, simple form",
            "(tile.first_row + r) / group + 1;",
            "(tile.first_row + r) / group + 2;",
        ),
        (
            "no causal mask, simple form",
            "column + 8 * j < limit ? exp2_for<T>(scores[i][j] - best) : 0.0f",
            "exp2_for<T>(scores[i][j] - best)",
        ),
        (
            "hidden tokens enter the maximum, simple form",
            "if (column + 8 * j < limit) best",
            "best",
        ),
        (
            "only the last 32 columns are in the score, simple form",
            "scores[1][j] += part[1][j];",
            "scores[1][j] = part[1][j];",
        ),
        (
            "parts of a score overlap, simple form",
            "first < kPadded; first += 32",
            "first < kPadded; first += 16",
        ),
        (
            "mask of the first tile of keys for all, simple form",
            "visible(row0 + i) - first_key;",
            "visible(row0 + i);",
        ),
        (
            "mask of the first tile of rows for all, simple form",
            "(tile.first_row + r) / group + 1",
            "r / group + 1",
        ),
        (
            "no barrier before K is read, simple form",
            "    fill_cached(k_cache, first_key);\n    __syncthreads();\n",
            "    fill_cached(k_cache, first_key);\n",
        ),
        (
            "no barrier before V replaces K, simple form",
            "    __syncthreads();  // before V replaces K\n",
            "",
        ),
        (
            "no barrier before V is read, simple form",
            "    __syncthreads();\n#pragma unroll 2\n",
            "#pragma unroll 2\n",
        ),
        (
            "no barrier before the next K, simple form",
            "    __syncthreads();  // before the next K replaces V\n",
            "",
        ),
        (
            "keys after the last are read, simple form",
            "fill_tile<T, kWidth, kVectors>(cached, keys - first_key,",
            "fill_tile<T, kWidth, kVectors>(cached, kTileKeys,",
        ),
        (
            "the last key is not loaded, simple form",
            "cached, keys - first_key,",
            "cached, keys - first_key - 1,",
        ),
        (
            "query heads interleaved over KV heads, simple form",
            "((token * kv_heads + kv_head) * group + row % group)",
            "((token * group + row % group) * kv_heads + kv_head)",
        ),
        (
            "rows of no sequence are left as they were, simple form",
            "  const int length = tile.seq < 0 ? 0 : seq_lens[tile.seq];\n  if (length <= 0) {\n",
            "  const int length = tile.seq < 0 ? 0 : seq_lens[tile.seq];\n"
            "  if (length <= 0) {\n    return;\n",
        ),
        (
            "rows of a tile are not padded, simple form",
            "target[r * (kPadded + 4) +",
            "target[r * kPadded +",
        ),
        (
            "a head is read beyond its end, simple form",
            "if (r < count && vector < kVectors)",
            "if (r < count)",
        ),
        (
            "columns after the head's end are stored, simple form",
            "if (at < kHeadDim) target",
            "target",
        ),
        (
            "K used in place of V, simple form",
            "fill_cached(v_cache, first_key)",
            "fill_cached(k_cache, first_key)",
        ),
        (
            "totals are not rescaled, simple form",
            "totals[i] * keep + lanes_sum",
            "totals[i] + lanes_sum",
        ),
        ("sums are not rescaled, simple form", "sums[i][part][k] *= keep;", ";"),
        ("each lane sums its own keys only, simple form", "lanes_sum<8>(added)", "added"),
        (
            "the maximum of half the lanes, simple form",
            "offset < 8; offset *= 2",
            "offset < 4; offset *= 2",
        ),
        (
            "the second row stores the first one's, simple form",
            "sums[1][part][k] = fmaf(p1.v[n]",
            "sums[1][part][k] = fmaf(p0.v[n]",
        ),
        (
            "only the first 32 output columns, simple form",
            "for (int part = 0; part < kParts; ++part) {\n        const int at",
            "for (int part = 0; part < 1; ++part) {\n        const int at",
        ),
        (
            "only the first rows of a tile are stored, simple form",
            "if (row0 + i < rows)",
            "if (row0 + i < rows - 1)",
        ),
        (
            "keys of the tile before are weighed again, simple form",
            "row0 * kProbsStride + key);",
            "row0 * kProbsStride);",
        ),
        (
            "weights rounded to T, simple form",
            "probs[(row0 + i) * kProbsStride + column + 8 * j] = prob;",
            "probs[(row0 + i) * kProbsStride + column + 8 * j] = to_float(from_float<T>(prob));",
        ),
        (
            "32-bit offset of a token in the cache, simple form",
            "const long long slot = (block",
            "const int slot = (block",
        ),
        (
            "table of the sequence after, simple form",
            "static_cast<long long>(slot_ids[tile.seq]) * max_blocks;\n  // How",
            "static_cast<long long>(slot_ids[tile.seq] + 1) * max_blocks;\n  // How",
        ),
        ("block size 16 assumed, simple form", "table[key / block_size]", "table[key / 16]"),
    ),
}
