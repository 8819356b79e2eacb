"""Bugs to plant in kernels/attend_pieces.cuh."""

BUGS = {
    ("paged_decode_attention", "attend_pieces.cuh"): (
        (
            "a tile too few for the last warps",
            "(all_tiles - warp + kWarps - 1)",
            "(all_tiles - warp)",
        ),
        ("the last tile is left out", "(end - begin + kTileTokens - 1)", "(end - begin)"),
        (
            "every warp takes the first one's tiles",
            "begin + (n * kWarps + warp) * kTileTokens",
            "begin + n * kWarps * kTileTokens",
        ),
        (
            "K and V in one place",
            "ring + number % kPlaces * kTile",
            "ring + number / 2 % kPlaces * kTile",
        ),
        (
            "K and V at one barrier",
            "barriers + number % kPlaces * 8",
            "barriers + number / 2 % kPlaces * 8",
        ),
        (
            "a copy may come before reads of K, pieces",
            "      fence_shared_memory();\n      __syncwarp();\n      copy(2 * n + kPlaces);",
            "      __syncwarp();\n      copy(2 * n + kPlaces);",
        ),
        (
            "a copy may come before reads of V, pieces",
            "      fence_shared_memory();\n      __syncwarp();\n      copy(2 * n + 1 + kPlaces);",
            "      __syncwarp();\n      copy(2 * n + 1 + kPlaces);",
        ),
        ("waits for the round before", "number / kPlaces % 2", "(number / kPlaces + 1) % 2"),
        (
            "block size 16 assumed, pieces",
            "block_table + token_of(n) / block_size",
            "block_table + token_of(n) / 16",
        ),
        (
            "the place in a block is left out",
            "token_of(n) % block_size) * kHeadDim",
            "0) * kHeadDim",
        ),
        (
            "heads and offsets of a block swapped, pieces",
            "(head * block_size + token_of",
            "(head + kv_heads * token_of",
        ),
        (
            "the first KV head for all",
            "static_cast<long long>(block) * kv_heads + kv_head",
            "static_cast<long long>(block) * kv_heads",
        ),
        (
            "32-bit offset of a block in the cache",
            "const long long head = static_cast<long long>(block) * kv_heads",
            "const int head = block * kv_heads",
        ),
        ("K for V", "(number % 2 ? v_cache : k_cache)", "k_cache"),
        ("the first 32 tiles' blocks for all", "      blocks = later_blocks;\n", ""),
        (
            "the second 32 tiles' blocks for all later ones",
            "block_of(n + 32 + lane)",
            "block_of(32 + lane)",
        ),
        ("the first tile's block for all", "blocks, n % 32)", "blocks, 0)"),
        ("half of each piece is copied", "int bytes = kTile * 2;", "int bytes = kTile;"),
        ("every lane begins the copy", "    if (lane != 0) return;\n", ""),
        (
            "K is copied over while others use it",
            "      __syncwarp();\n      copy(2 * n + kPlaces);",
            "      copy(2 * n + kPlaces);",
        ),
        (
            "V is copied over while others use it",
            "      __syncwarp();\n      copy(2 * n + 1 + kPlaces);",
            "      copy(2 * n + 1 + kPlaces);",
        ),
        ("V is not copied", "      copy(2 * n + 1 + kPlaces);\n", ""),
        (
            "a newest token at its piece's end is read early",
            "token_of(number / 2) + kTileTokens < end;",
            "token_of(number / 2) + kTileTokens <= end;",
        ),
        (
            "the piece of the newest token is never copied",
            "      if (!is_settled(number)) copy(number);\n",
            "      ;\n",
        ),
        (
            "what is settled is copied again",
            "      if (!is_settled(number)) copy(number);\n",
            "      copy(number);\n",
        ),
        ("tokens take queries in one order", "second = queries[j ^ 1]", "second = queries[j]"),
        ("keys in one order for all tokens", "place = j ^ lane_row % 2", "place = j"),
        ("the first 8 tokens twice", "keys + half * 8 * kHeadDim", "keys + half * 0 * kHeadDim"),
        ("odd tokens have even ones' scores", "scores[j][1] = scores[j][3];", ";"),
        (
            "tokens after the last are weighed, pieces",
            "end - token_of(n), scale_log2",
            "kTileTokens, scale_log2",
        ),
        (
            "sums are not rescaled, pieces",
            "      if (__any_sync(0xffffffffu, highest > before)) rescale(sums, keep);\n",
            "",
        ),
        (
            "what lies after the last token counts",
            "        const int first = (end - token_of(n)) * kHeadDim;\n",
            "        const int first = kTile;\n",
        ),
        (
            "the last token's value is zero",
            "(end - token_of(n)) * kHeadDim",
            "(end - token_of(n) - 1) * kHeadDim",
        ),
        (
            "columns in one order for all lanes",
            "(half ^ lane % 2) * kValueWidth",
            "half * kValueWidth",
        ),
        (
            "odd lanes' columns swapped",
            "lane % 2 ? loaded[half ^ 1][i]",
            "false ? loaded[half ^ 1][i]",
        ),
        ("the second 8 tokens' values left out", "i / 2 * 8 + i % 2, column", "i % 2, column"),
        ("weights rounded to T, pieces", "          mma_m16n8k16<T>(sums[step], a, low);\n", ""),
        (
            "a total of a lane's tokens alone",
            "    total += __shfl_xor_sync(0xffffffffu, total, 2);\n",
            "",
        ),
        (
            "columns of odd steps swapped",
            "of_lane[step * 2 + 1] = sums[step][i + 2]",
            "of_lane[step * 2 + 1] = sums[step][i]",
        ),
        (
            "no barrier before warps are merged",
            "    __syncthreads();\n    const float* block_sums",
            "    const float* block_sums",
        ),
    ),
    ("rope_append_attention", "attend_pieces.cuh"): (
        (
            "the newest token's slot is read",
            "min(end - 1 - token_of(n), kTileTokens)",
            "min(end - token_of(n), kTileTokens)",
        ),
        (
            "a token less than there is",
            "min(end - 1 - token_of(n), kTileTokens)",
            "min(end - 2 - token_of(n), kTileTokens)",
        ),
        (
            "a last piece of one token is waited for",
            "barrier_of(number), bytes);\n    if",
            "barrier_of(number), max(bytes, 16));\n    if",
        ),
        (
            "the token's place in a full last piece",
            "kAppends && newest != nullptr && token_of(n) + kTileTokens >= end",
            "kAppends && newest != nullptr && token_of(n) + kTileTokens > end",
        ),
        (
            "the newest key is left out",
            "      if (completes) complete(tile_at(2 * n), newest, end - 1 - token_of(n));\n",
            "",
        ),
        (
            "the newest key for the value",
            "newest + kHeadDim, end - 1 - token_of(n)",
            "newest, end - 1 - token_of(n)",
        ),
        ("the newest value is left out", "      if (completes) {\n", "      if (false) {\n"),
        (
            "the newest token a place too early",
            "newest, end - 1 - token_of(n)",
            "newest, max(end - 2 - token_of(n), 0)",
        ),
        (
            "what lies after the newest token is left as it was",
            "      *reinterpret_cast<Vector*>(tile + i) = vector;\n",
            "      if (column < kHeadDim) *reinterpret_cast<Vector*>(tile + i) = vector;\n",
        ),
        (
            "no barrier before lanes read the newest token",
            "      *reinterpret_cast<Vector*>(tile + i) = vector;\n    }\n    __syncwarp();\n",
            "      *reinterpret_cast<Vector*>(tile + i) = vector;\n    }\n",
        ),
        (
            "the warp of the last piece is another",
            "tiles > 0 && token_of(tiles - 1) + kTileTokens >= end",
            "tiles > 0 && warp == 0",
        ),
        (
            "a last piece that is full is nobody's",
            "token_of(tiles - 1) + kTileTokens >= end;",
            "token_of(tiles - 1) + kTileTokens > end;",
        ),
    ),
}
