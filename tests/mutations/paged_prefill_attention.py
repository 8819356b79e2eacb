"""Bugs to plant in kernels/paged_prefill_attention.cu and kernels/paged_prefill_attention.py."""

BUGS = {
    ("paged_prefill_attention", "paged_prefill_attention.cu"): (
        ("a token does not see itself", "after / group + 1)", "after / group)"),
        ("a token sees the next one", "after / group + 1)", "after / group + 2)"),
        (
            "no causal mask",
            "if (first_key + kKeys > unmasked_keys) {",
            "if (false) {",
        ),
        (
            "keys that only a warp's first rows do not see are not masked",
            "(tile.first_row + first_row) / group + 1;",
            "(tile.first_row + first_row + kWarpRows - 1) / group + 1;",
        ),
        (
            "mask of the first tile of keys for all",
            "row - (first_key - own_key) * group",
            "row + own_key * group",
        ),
        (
            "mask of the first tile of rows for all",
            "const int row = tile.first_row + first_row + 16",
            "const int row = first_row + 16",
        ),
        (
            "mask of the first warp for all",
            "tile.first_row + first_row + 16 * i",
            "tile.first_row + 16 * i",
        ),
        (
            "mask of a fragment's first 8 rows for all",
            "16 * i + 8 * half + lane / 4;\n          const int after",
            "16 * i + lane / 4;\n          const int after",
        ),
        (
            "mask of a lane's first column for both",
            "if (8 * n + 1 >= limit)",
            "if (8 * n >= limit)",
        ),
        (
            "mask of the first lane for all",
            "(after < 0 ? 0 : after / group + 1) - lane % 4 * 2",
            "(after < 0 ? 0 : after / group + 1)",
        ),
        ("keys after the last are read", "k < num_keys - key - lane_key", "true"),
        (
            "the last key is not read",
            "k < num_keys - key - lane_key",
            "k < num_keys - key - lane_key - 1",
        ),
        (
            "blocks after the last are looked up",
            "key < num_keys ? block_tables[table + (key >> block_shift)] : 0",
            "block_tables[table + (key >> block_shift)]",
        ),
        (
            "no wait for K",
            "    cp_async_wait<0>();\n    __syncthreads();  // K has",
            "    __syncthreads();  // K has",
        ),
        (
            "no barrier before K is read",
            "    __syncthreads();  // K has arrived, and V is no longer in use\n",
            "",
        ),
        (
            "no wait for V",
            "    cp_async_wait<0>();\n    __syncthreads();  // V has",
            "    __syncthreads();  // V has",
        ),
        (
            "no barrier before V is read",
            "    __syncthreads();  // V has arrived, and K is no longer in use\n",
            "",
        ),
        ("K used in place of V", "copy_cached(values, v_cache", "copy_cached(values, k_cache"),
        (
            "keys of the tile before are read again",
            "    find_slots(first_key + kKeys);\n",
            "    find_slots(first_key);\n",
        ),
        (
            "32-bit offset of a key in the cache",
            "static_cast<long long>(slots[j] + lane_key) * kHeadDim",
            "(slots[j] + lane_key) * kHeadDim",
        ),
        ("place in the block forgotten", "<< block_shift) | (key & block_mask)", "<< block_shift)"),
        ("block size 16 assumed", "table + (key >> block_shift)", "table + (key >> 4)"),
        (
            "table of another slot",
            "slot_ids[tile.seq] * max_blocks;  // where",
            "tile.seq * max_blocks;  // where",
        ),
        (
            "query heads interleaved over KV heads",
            "(token * kv_heads + kv_head) * group + row % group : -1",
            "(token * group + row % group) * kv_heads + kv_head : -1",
        ),
        (
            "rows after the chunk's last are stored",
            "heads[r] = r < rows ?",
            "heads[r] = r <= rows ?",
        ),
        (
            "rows of no sequence are left as they were",
            "  if (length <= 0) {\n    for (int i = threadIdx.x; i < rows * kVectors",
            "  if (length <= 0) {\n    return;\n    for (int i = threadIdx.x; i < rows * kVectors",
        ),
        (
            "no barrier before the rows' places are read",
            "  __syncthreads();\n  using Vector",
            "  using Vector",
        ),
        (
            "the largest score of half the lanes",
            "        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));\n",
            "",
        ),
        ("the largest score is not scaled", "best, 2)) * scale_log2;", "best, 2));"),
        ("totals are not rescaled", "totals[i][half] *= keep[i][half];", ""),
        ("sums are not rescaled", "sums[i][n][2 * half] *= keep[i][half];", ""),
        (
            "rescaled only where all rows grow",
            "__any_sync(0xffffffffu, rescales)",
            "__all_sync(0xffffffffu, rescales)",
        ),
        ("rescaled only where the last row grows", "rescales |= grown;", "rescales = grown;"),
        ("the origin stays where it begins", "if (grown) origin[i][half] = best;", ""),
        (
            "the origin of the first keys is kept",
            "best > origin[i][half] + kMaxExponent",
            "origin[i][half] == kLowest",
        ),
        ("weights may be as large as 2^100", "kMaxExponent = 8.0f", "kMaxExponent = 100.0f"),
        ("each lane's own total", "lanes_sum<4>(totals[i][half])", "totals[i][half]"),
        (
            "quarters of the weights' fragments in another order",
            "half + n % 2 * 2]",
            "half * 2 + n % 2]",
        ),
        ("V is not transposed", "ldmatrix_x4_trans(b,", "ldmatrix_x4(b,"),
        (
            "quarters of K's fragments in another order",
            "(lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8",
            "lane % 16 * kStride + lane / 16 * 8",
        ),
        (
            "every other fragment of the score is left out",
            "d < kHeadDim; d += 16) {\n      unsigned a",
            "d < kHeadDim; d += 32) {\n      unsigned a",
        ),
        ("weights of the first keys for all", "weights[i][n], b", "weights[i][0], b"),
        (
            "V of the first keys for all",
            "own_values + 16 * n * kStride + 16 * d",
            "own_values + 16 * d",
        ),
        (
            "queries of a warp's first fragment for all",
            "own_queries + 16 * i * kStride + d",
            "own_queries + d",
        ),
        (
            "a pair of floats the other way round",
            "pair.v[0] = from_float<T>(low);\n  pair.v[1] = from_float<T>(high);",
            "pair.v[0] = from_float<T>(high);\n  pair.v[1] = from_float<T>(low);",
        ),
        (
            "the second fragment multiplies the first columns",
            "mma_m16n8k16<T>(c1, a, right);",
            "mma_m16n8k16<T>(c1, a, left);",
        ),
        (
            "results of all warps in one place",
            "T* results = queries + first_row * kStride;",
            "T* results = queries;",
        ),
        (
            "no barrier before the results are read",
            "  __syncwarp();\n  for (int i = lane; i < kWarpRows",
            "  for (int i = lane; i < kWarpRows",
        ),
        ("rows of the first warp's place", "head = heads[first_row + r];", "head = heads[r];"),
        (
            "chunks of two tokens are taken for one",
            "- token != 1) return;",
            "- token > 2) return;",
        ),
        (
            "a chunk of one token is computed as a tile too",
            " || (tile.seq >= 0 && tile.chunk == 1)",
            "",
        ),
        (
            "table of another slot, one token",
            "static_cast<long long>(slot_ids[seq]) * max_blocks",
            "static_cast<long long>(seq) * max_blocks",
        ),
        (
            "heads of the next KV head are written, one token",
            "min(Form::kHeads, group - first_head);\n  const long long head =",
            "Form::kHeads;\n  const long long head =",
        ),
        (
            "a dead sequence of one token is left as it was",
            "  const long long at = head * Form::kHeadDim;\n",
            "  const long long at = head * Form::kHeadDim;\n  if (length <= 0) return;\n",
        ),
        (
            "the last key is left out, one token",
            "table, 0, length, heads",
            "table, 0, max(length - 1, 1), heads",
        ),
        (
            "results are rounded twice",
            "packed<T>(sums[i][n][2 * half] * factor,",
            "packed<T>(to_float(from_float<T>(sums[i][n][2 * half])) * factor,",
        ),
        (
            "the search for a chunk stops at empty ones, alone",
            "if (query_start_loc[middle + 1] <= token) {",
            "if (query_start_loc[middle + 1] < token) {",
        ),
        (
            "rows before the first chunk belong to it, alone",
            "low < seqs && query_start_loc[low] <= token",
            "low < seqs",
        ),
        (
            "rows after the last chunk belong to a sequence, alone",
            "low < seqs && query_start_loc[low] <= token",
            "query_start_loc[low] <= token",
        ),
        (
            "table of the sequence after, alone",
            "block_tables + static_cast<long long>(slot_ids[low]) * max_blocks",
            "block_tables + static_cast<long long>(low) * max_blocks",
        ),
        ("the first part only, alone", "part < parts; ++part", "part < 1; ++part"),
        ("earlier parts are forgotten, alone", "if (part > 0) {", "if (part > 1) {"),
        (
            "highest and totals are read and written at once, alone",
            "highest[2][kHeads], totals[2][kHeads]",
            "highest[1][kHeads], totals[1][kHeads]",
        ),
        (
            "cut by other lengths than decode's, alone",
            "units_of_part(units, max_parts, min_units)",
            "units_of_part(units, max_parts / 2, min_units)",
        ),
        (
            "all rows of a chunk see all of it, alone",
            "seq_lens[low] - (query_start_loc[low + 1] - token) + 1",
            "seq_lens[low]",
        ),
        (
            "a token does not see itself, alone",
            "seq_lens[low] - (query_start_loc[low + 1] - token) + 1",
            "max(seq_lens[low] - (query_start_loc[low + 1] - token), 1)",
        ),
        (
            "heads of the next KV head are written, alone",
            "min(kHeads, group - first_head)",
            "kHeads",
        ),
    ),
    ("paged_prefill_attention", "paged_prefill_attention.py"): (
        ("no tile for the tokens after all chunks", 'axes["seqs"] + 2', 'axes["seqs"]'),
        (
            "no room for the rows' places in shared memory",
            "* (head_dim + 8) + 4 * rows\n",
            "* (head_dim + 8)\n",
        ),
        (
            "tensor cores for blocks that are no power of two",
            "block_size & (block_size - 1) == 0",
            "block_size > 0",
        ),
        (
            "shared memory without the padding, simple form",
            "stride = -(-head_dim // 4) * 4 + 4",
            "stride = -(-head_dim // 4) * 4",
        ),
        (
            "no blocks for chunks of one token",
            'axes["seqs"] * head_sets(axes, form) + tiles * kv_heads',
            "tiles * kv_heads",
        ),
        (
            "shared memory for tiles only",
            "max(tile_bytes, form.shared_bytes)",
            "tile_bytes",
        ),
        (
            "too few tiles where a tile has more rows",
            "tiles = tokens * group // rows + segments",
            "tiles = tokens // rows + segments",
        ),
        (
            "rows alone are cut into other parts than decode's",
            "*cut_scalars(batch_invariant))",
            "np.int32(32), np.int32(2))",
        ),
    ),
}
