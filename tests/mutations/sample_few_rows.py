"""Bugs to plant in kernels/sample_few_rows.cuh."""

BUGS = {
    ("sample", "sample_few_rows.cuh"): (
        (
            "no barrier before the selection begins anew",
            "    __syncthreads();  // the selection may still be read\n",
            "",
        ),
        (
            "equal logits are not told apart",
            "const bool by_id = first >> 32 == last >> 32;",
            "const bool by_id = false;",
        ),
        (
            "bins of an earlier round are kept",
            "if (threadIdx.x < kBins) s.high[threadIdx.x] = s.low[threadIdx.x] = 0;",
            "if (threadIdx.x < kBins) s.high[threadIdx.x] = 0;",
        ),
        (
            "more candidates than are compared",
            "if (s.count <= kFew) break;",
            "if (s.count <= 4 * kFew) break;",
        ),
        (
            "the last of a bin's values is left out",
            "from + min((1u << shift) - 1, s.highest - from)",
            "from + min((1u << shift) - 1, s.highest - from - 1)",
        ),
        (
            "what is before a bin is lost",
            "      s.before = reached - own;\n    }\n    __syncthreads();\n    before = s.before;",
            "      s.before = 0;\n    }\n    __syncthreads();\n    before = s.before;",
        ),
        (
            "any of the last few reaches it",
            "if (reached >= wanted && reached - s.few_terms[which] < wanted) s.found = own;",
            "if (reached >= wanted) s.found = own;",
        ),
        ("a candidate is not added to itself", "s.few[i] <= own ?", "s.few[i] < own ?"),
        ("half of the few are added up", "int offset = kTeam / 2;", "int offset = kTeam / 4;"),
        (
            "two blocks have the likeliest",
            "      if (rank > 0) return kNotHere;\n      return extent",
            "      if (rank > 1) return kNotHere;\n      return extent",
        ),
        (
            "a broken row has a token",
            "return extent.is_broken() ? -1 : extent.top_id;",
            "return extent.top_id;",
        ),
        ("top_k's last among all candidates", "is_top_k ? Places::edge(ends.k_bin) : 0.0f", "0.0f"),
        (
            "few rows: top_p's part of all, not of what top_k keeps",
            "        total = ends.k_before + scan_of_block(own).total;\n",
            "        scan_of_block(own);\n",
        ),
        (
            "bins without the last one's weights",
            "      atomicAdd(&s.high[copy + kBins - 1], rest.high);\n",
            "",
        ),
        ("all bins of one copy", "i < kCopies * kBins; i += kBins)", "i < kBins; i += kBins)"),
        (
            "bins hold what is below min_p",
            "const bool counts = logit >= draw.min_logit, is_rest",
            "const bool counts = true, is_rest",
        ),
        (
            "more candidates than a block has room for",
            "known.theirs > kOwnCandidates",
            "known.theirs > 2 * kOwnCandidates",
        ),
        (
            "candidates in the run of the first thread",
            "const int first_bit = (begin_of_run & ~31) + 32 * half;",
            "const int first_bit = 32 * half;",
        ),
        (
            "few rows: candidates of a warp overwrite each other",
            "at += __shfl_sync(kAllLanes, before, 31) - own;",
            "at += before - own;",
        ),
        (
            "a block's bins up to the last one are sure",
            "threadIdx.x < first ? s.bins",
            "threadIdx.x <= first ? s.bins",
        ),
        (
            "one warp's sum",
            "if (lane_index() == 0) atomicAdd(&s.sum.sum, own);",
            "if (threadIdx.x == 0) atomicAdd(&s.sum.sum, own);",
        ),
        (
            "cut off candidates are weighed",
            "if (kept.holds(key, candidate_id(candidate))) sum",
            "sum",
        ),
        (
            "candidates of the first warp of each block alone",
            "return of_rank[0] + of_rank[1];",
            "return of_rank[0];",
        ),
        (
            "the sum before a block is with its own",
            "before = end - __shfl_sync(kAllLanes, of_rank, rank);",
            "before = end;",
        ),
        (
            "an edge between blocks belongs to both",
            "if (before > goal || end <= goal)",
            "if (before > goal || end < goal)",
        ),
        (
            "min_p's token alone is weighed",
            "kept.holds(order_key(logit), begin + i);\n    return",
            "kept.holds(order_key(logit), i);\n    return",
        ),
        (
            "few rows: an edge belongs to the token before it",
            "kAllLanes, up_to > goal",
            "kAllLanes, up_to >= goal",
        ),
        (
            "an edge belongs to the run before it",
            "if (reached > goal && reached - own <= goal) {",
            "if (reached >= goal && reached - own < goal) {",
        ),
        (
            "what others need is not there yet",
            "      meet();\n      const RanksSums",
            "      cluster_arrive();\n      const RanksSums",
        ),
        (
            "no barrier before the bins are filled",
            "    if (threadIdx.x < kBins) s.counts[threadIdx.x] = 0;\n    __syncthreads();",
            "    if (threadIdx.x < kBins) s.counts[threadIdx.x] = 0;",
        ),
    ),
}
