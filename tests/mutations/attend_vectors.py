"""Bugs to plant in kernels/attend_vectors.cuh."""

BUGS = {
    ("paged_decode_attention", "attend_vectors.cuh"): (
        (
            "tokens after the last enter the maximum, vectors",
            "if (first + n * kStreams + stream < end) best",
            "best",
        ),
        (
            "tokens after the last are weighed, vectors",
            "live ? exp2_for<T>(scores[n] - best) : 0.0f",
            "exp2_for<T>(scores[n] - best)",
        ),
        (
            "tokens after the last are read, vectors",
            "if (token < end && vector < kVectors) {",
            "if (vector < kVectors) {",
        ),
        (
            "a token too many is weighed, vectors",
            "live = first + n * kStreams + stream < end",
            "live = first + n * kStreams + stream <= end",
        ),
        (
            "block size 16 assumed, vectors",
            "block_table[token / block_size]",
            "block_table[token / 16]",
        ),
        (
            "heads and offsets of a block swapped, vectors",
            "(block * kv_heads + kv_head) * block_size + token % block_size",
            "(block * block_size + token % block_size) * kv_heads + kv_head",
        ),
        (
            "K read in place of V, vectors",
            "const Vector*>(v_cache)[row",
            "const Vector*>(k_cache)[row",
        ),
        (
            "sums are not rescaled, vectors",
            "sum = __fmul_rn(sums[h][j][k], keep);",
            "sum = sums[h][j][k];",
        ),
        ("totals are not rescaled, vectors", "fmaf(totals[h], keep, added)", "totals[h] + added"),
        (
            "the maximum of earlier tokens is forgotten, vectors",
            "best = highest[h];\n#pragma unroll\n        for (int n = 0",
            "best = kLowest;\n#pragma unroll\n        for (int n = 0",
        ),
        (
            "the new maximum is not kept, vectors",
            "highest[h] = best;\n        float added",
            "float added",
        ),
        (
            "streams of a warp merged halfway, vectors",
            "best = highest[h];\n#pragma unroll\n      for (int offset = kLanes; offset < 32",
            "best = highest[h];\n#pragma unroll\n      for (int offset = kLanes; offset < 16",
        ),
        (
            "the last step of a stream's sum is missing, vectors",
            "offset = kLanes; offset < 32; offset *= 2) {\n    v +=",
            "offset = kLanes; offset < 16; offset *= 2) {\n    v +=",
        ),
        (
            "no barrier before the warps are merged, vectors",
            "      __syncthreads();\n      for (int column",
            "      for (int column",
        ),
        (
            "no barrier before the next head's numbers, vectors",
            "result(h, column, all);\n      }\n      __syncthreads();\n",
            "result(h, column, all);\n      }\n",
        ),
        (
            "barriers of one warp only, vectors",
            "result(h, column, all);\n      }\n      __syncthreads();\n",
            "result(h, column, all);\n      }\n      __syncwarp();\n",
        ),
        (
            "a head is read beyond its end, vectors",
            "if (token < end && vector < kVectors) {",
            "if (token < end) {",
        ),
        (
            "queries of the next heads are read, vectors",
            "if (vector < kVectors && h < heads) {",
            "if (vector < kVectors) {",
        ),
        ("heads of the next KV head are stored, vectors", "if (h < heads) result", "result"),
        (
            "queries are not scaled, vectors",
            "to_float(loaded.v[k]) * scale_log2",
            "to_float(loaded.v[k])",
        ),
        (
            "the last round of tokens is left out, vectors",
            "< end; first += kTokens",
            "+ kTokens * kStreams <= end; first += kTokens",
        ),
        (
            "tokens are seen in several rounds, vectors",
            "first += kTokens * kStreams)",
            "first += kStreams)",
        ),
        (
            "loads of a lane rounded down, vectors",
            "(kVectors + kLanes - 1) / kLanes",
            "(kVectors < kLanes ? 1 : kVectors / kLanes)",
        ),
        (
            "only the first load of a lane is in the score, vectors",
            "for (int j = 0; j < kLoads; ++j) {\n"
            "#pragma unroll\n"
            "            for (int k = 0; k < kWidth; ++k) {\n"
            "              dot",
            "for (int j = 0; j < 1; ++j) {\n"
            "#pragma unroll\n"
            "            for (int k = 0; k < kWidth; ++k) {\n"
            "              dot",
        ),
        (
            "only as many columns as threads are stored, vectors",
            "column < kHeadDim; column += kThreads",
            "column < min(kHeadDim, 128); column += kThreads",
        ),
        ("the first query head in place of each, vectors", "[h * kVectors + vector]", "[vector]"),
        (
            "the score of the first query head for all, vectors",
            "fmaf(queries[h][j][k]",
            "fmaf(queries[0][j][k]",
        ),
        ("32-bit offset of a token in the cache, vectors", "long long row = 0;", "int row = 0;"),
        (
            "weights rounded to T, vectors",
            "live ? exp2_for<T>(scores[n] - best)",
            "live ? to_float(from_float<T>(exp2_for<T>(scores[n] - best)))",
        ),
    ),
}
