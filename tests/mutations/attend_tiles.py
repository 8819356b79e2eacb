"""Bugs to plant in kernels/attend_tiles.cuh."""

BUGS = {
    ("paged_decode_attention", "attend_tiles.cuh"): (
        (
            "tokens after the last are read",
            "return token < end ? first + token % block_size : -1ll;",
            "return first + token % block_size;",
        ),
        (
            "the block of a token after the last is looked up",
            "return token < end ? block_table[token / block_size] : 0;",
            "return block_table[token / block_size];",
        ),
        (
            "tokens after the last are weighed",
            "score = counts ? __fmul_rn(score, scale_log2) : kLowest;",
            "score = __fmul_rn(score, scale_log2);",
        ),
        (
            "a token too many is weighed",
            "lane_pair + i < tokens;",
            "lane_pair + i <= tokens;",
        ),
        (
            "the current token is not weighed",
            "lane_pair + i < tokens;",
            "lane_pair + i < tokens - 1;",
        ),
        (
            "every warp masks as the first one",
            "tokens = end - begin - (n * kWarps + warp) * kTileTokens",
            "tokens = end - begin - n * kWarps * kTileTokens",
        ),
        ("block size 16 assumed", "block_table[token / block_size]", "block_table[token / 16]"),
        (
            "heads and offsets of a block swapped",
            "(static_cast<long long>(block) * kv_heads + kv_head) * block_size;\n"
            "      return token < end ? first + token % block_size : -1ll;",
            "static_cast<long long>(block) * block_size * kv_heads + kv_head;\n"
            "      return token < end ? first + token % block_size * kv_heads : -1ll;",
        ),
        (
            "K read in place of V",
            "copy_tile(tile_at(n, 1), v_cache, slot);\n      cp_async_commit();",
            "copy_tile(tile_at(n, 1), k_cache, slot);\n      cp_async_commit();",
        ),
        (
            "the first tiles of V are K's",
            "copy_tile(tile_at(n, 1), v_cache, slot);\n        cp_async_commit();",
            "copy_tile(tile_at(n, 1), k_cache, slot);\n        cp_async_commit();",
        ),
        ("one slot for all rows of a tile", "__shfl_sync(0xffffffffu, slot, row)", "slot"),
        (
            "K is used before it has arrived",
            "      cp_async_wait<2 * kStages - 1>();\n      __syncwarp();\n      float scores",
            "      cp_async_wait<2 * kStages>();\n      __syncwarp();\n      float scores",
        ),
        (
            "V is used before it has arrived",
            "      cp_async_wait<2 * kStages - 1>();\n      __syncwarp();\n      const T* values",
            "      cp_async_wait<2 * kStages>();\n      __syncwarp();\n      const T* values",
        ),
        (
            "no barrier before K is used",
            "      cp_async_wait<2 * kStages - 1>();\n      __syncwarp();\n      float scores",
            "      cp_async_wait<2 * kStages - 1>();\n      float scores",
        ),
        (
            "no barrier before V is used",
            "      cp_async_wait<2 * kStages - 1>();\n      __syncwarp();\n      const T* values",
            "      cp_async_wait<2 * kStages - 1>();\n      const T* values",
        ),
        (
            "no barrier before the next K replaces this one",
            "      __syncwarp();\n      const long long slot",
            "      const long long slot",
        ),
        (
            "no barrier before the next V replaces this one",
            "      __syncwarp();\n      if (n + kStages < tiles) copy_tile(tile_at(n, 1)",
            "      if (n + kStages < tiles) copy_tile(tile_at(n, 1)",
        ),
        (
            "the next tile's blocks are those of this one",
            "block = block_of(n + kStages + 1);",
            "block = block_of(n + kStages);",
        ),
        (
            "blocks are looked up for the first tiles only",
            "      block = block_of(n + kStages + 1);\n",
            "",
        ),
        (
            "the ring has a stage too few",
            "n % kStages * 2 + which",
            "n % max(1, kStages - 1) * 2 + which",
        ),
        (
            "a tile too few for each warp",
            "(all_tiles - warp + kWarps - 1) / kWarps",
            "(all_tiles - warp) / kWarps",
        ),
        (
            "the last tile is not copied",
            "if (n < tiles) copy_tile(tile_at(n, 0)",
            "if (n < tiles - 1) copy_tile(tile_at(n, 0)",
        ),
        (
            "queries of the next heads are read",
            "head < heads ? *reinterpret",
            "head < kHeads ? *reinterpret",
        ),
        (
            "halves of a query swapped",
            "step * 16 + half * 8 + lane_pair",
            "step * 16 + (1 - half) * 8 + lane_pair",
        ),
        (
            "the second tile of heads is the first",
            "const int head = h * 8 + lane_row;",
            "const int head = lane_row;",
        ),
        (
            "operands of the second tokens swapped",
            "b_second[2] = {b[2], b[3]}",
            "b_second[2] = {b[3], b[2]}",
        ),
        (
            "scores of the first tokens for all",
            "b_second[2] = {b[2], b[3]}",
            "b_second[2] = {b[0], b[1]}",
        ),
        ("scores are not scaled", "__fmul_rn(score, scale_log2)", "score"),
        ("the maximum of one lane", "__shfl_xor_sync(0xffffffffu, best, 1)", "best"),
        ("the maximum of half the lanes", "__shfl_xor_sync(0xffffffffu, best, 2)", "best"),
        (
            "the maximum of earlier tokens is forgotten",
            "float best = highest;",
            "float best = kLowest;",
        ),
        ("the new maximum is not kept", "  highest = best;\n", ""),
        ("totals are not rescaled", "fmaf(total, keep, added)", "total + added"),
        ("sums are never rescaled", "if (__any_sync(0xffffffffu, is_higher)) {", "if (false) {"),
        (
            "sums are rescaled where the first lane's head needs it",
            "if (__any_sync(0xffffffffu, is_higher)) {",
            "if (__shfl_sync(0xffffffffu, is_higher ? 1 : 0, 0)) {",
        ),
        (
            "sums are rescaled as other heads",
            "keep, (threadIdx.x % 4 * 2 + i) * 4)",
            "keep, threadIdx.x % 32)",
        ),
        (
            "the second head is rescaled as the first",
            "keep, (threadIdx.x % 4 * 2 + i) * 4)",
            "keep, threadIdx.x % 4 * 2 * 4)",
        ),
        ("half of the sums is not rescaled", "      sums[step][i + 2] *= factor;\n", ""),
        (
            "weights rounded to T",
            "          mma_m16n8k16<T>(sums[h][step], a, low[h]);\n",
            "",
        ),
        (
            "the weights' lower parts are taken twice",
            "mma_m16n8k16<T>(sums[h][step], a, high[h])",
            "mma_m16n8k16<T>(sums[h][step], a, low[h])",
        ),
        (
            "weights of the first tile of heads for all",
            "mma_m16n8k16<T>(sums[h][step], a, high[h])",
            "mma_m16n8k16<T>(sums[h][step], a, high[0])",
        ),
        ("V is not transposed", "ldmatrix_x4_trans(a, values", "ldmatrix_x4(a, values"),
        ("totals of one lane", "__shfl_xor_sync(0xffffffffu, total, 1)", "0.0f"),
        ("totals of half the lanes", "__shfl_xor_sync(0xffffffffu, total, 2)", "0.0f"),
        (
            "columns of sums swapped",
            "column = lane_row + i / 2 * 8",
            "column = lane_row + i % 2 * 8",
        ),
        (
            "heads of sums swapped",
            "head = h * 8 + lane_pair + i % 2,",
            "head = h * 8 + lane_pair + i / 2,",
        ),
        (
            "no barrier before the warps are merged",
            "    __syncthreads();\n    const float* block_sums",
            "    const float* block_sums",
        ),
        (
            "no barrier before the next tiles",
            "    __syncthreads();  // before the sums give way to the next tiles\n",
            "",
        ),
        (
            "32-bit offset of a token in the cache",
            "cache + (valid ? from * kHeadDim",
            "cache + (valid ? static_cast<int>(from * kHeadDim)",
        ),
    ),
}
