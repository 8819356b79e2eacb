"""Bugs to plant in kernels/shortest_prefix.cuh."""

BUGS = {
    ("sample", "shortest_prefix.cuh"): (
        (
            "tokens filtered before are weighed again",
            "key <= top_key && kept.holds(key, id);\n    };",
            "key <= top_key;\n    };",
        ),
        (
            "all of many ties are kept",
            "return {top_key, lowest_id_above<T, kWidth>(row, tied, target, s)};",
            "return {top_key, kHighestInt};",
        ),
        (
            "more candidates than there is room for, of a prefix",
            "if (count <= kMaxCandidates) {\n",
            "if (count <= 2 * kMaxCandidates) {\n",
        ),
        (
            "no barrier while the scratch is read",
            "    __syncthreads();  // the scratch may still be read\n",
            "",
        ),
        (
            "the sum of earlier rounds is lost",
            "      s.before = reached - own;",
            "      s.before = reached - own - before;",
        ),
        ("sorted the wrong way", "== ((left & size) == 0)", "== ((left & size) != 0)"),
        (
            "a bin after the last",
            "return static_cast<int>((static_cast<unsigned>(top_key)",
            "return 1 + static_cast<int>((static_cast<unsigned>(top_key)",
        ),
        (
            "a prefix that ends with a candidate is a token longer",
            "if (reached >= wanted && reached - own < wanted) s.end = i;",
            "if (reached > wanted && reached - own <= wanted) s.end = i;",
        ),
        (
            "no barrier in the sort",
            "      }\n      __syncthreads();\n    }\n  }\n}",
            "      }\n    }\n  }\n}",
        ),
        (
            "padding sorts before the candidates",
            "s.candidates[i] = ~Sum(0);",
            "s.candidates[i] = 0;",
        ),
        (
            "the bins keep what they held",
            "high[0][bin] = high[1][bin] = low[0][bin] = low[1][bin] = 0;",
            "high[0][bin] = high[1][bin] = low[0][bin] = 0;",
        ),
        (
            "a bin is not emptied when its sum is taken",
            "      high[copy][bin] = low[copy][bin] = 0;\n",
            "",
        ),
        (
            "candidates of a warp overwrite each other",
            "atomicAdd(num_candidates, index)",
            "*num_candidates, *num_candidates += index",
        ),
        (
            "a chunk's sum without the chunks before it",
            "Sum before = __shfl_sync(kAllLanes, reached - own_chunk, chunk);",
            "Sum before = 0;",
        ),
        (
            "an edge belongs to the token before it",
            "      if (passed > goal) break;\n",
            "      if (passed >= goal) break;\n",
        ),
        (
            "the first token of a thread is found",
            "for (; i < end - 1; ++i) {",
            "for (; i < begin; ++i) {",
        ),
    ),
}
