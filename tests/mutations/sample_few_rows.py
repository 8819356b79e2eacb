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
            "if (reached >= wanted && reached - s.few_terms[threadIdx.x] < wanted) s.found = own;",
            "if (reached >= wanted) s.found = own;",
        ),
        ("equal candidates are added alike", "s.few[i] <= own ?", "s.few[i] < own ?"),
        (
            "a token of no weight ends top_p",
            "        const int at = atomicAdd(&s.num_candidates[0], 1);",
            "        const int at = s.num_candidates[0]++;",
        ),
        (
            "only the first block's likeliest",
            "      if (rank > 0) return kNotHere;\n",
            "      if (rank > 1) return kNotHere;\n",
        ),
        (
            "a likeliest token of a broken row",
            "return extent.is_broken() ? -1 : extent.top_id;",
            "return extent.top_id;",
        ),
        (
            "candidates of top_k's bin are not counted apart",
            ">= k_begin;\n      };",
            ">= 0.0f;\n      };",
        ),
        (
            "few rows: top_p's part of all, not of what top_k keeps",
            "total = ends.k_before + block_scan<kThreads>(own).total;",
            "block_scan<kThreads>(own);",
        ),
        (
            "bins without the last one's weights",
            "      atomicAdd(&s.high[copy + kBins - 1], rest.high);\n",
            "",
        ),
        (
            "all bins of one copy",
            "i < kCopies * kBins; i += kBins) weight",
            "i < kBins; i += kBins) weight",
        ),
        (
            "kept below min_p",
            "      if (logit < draw.min_logit) return;\n      const float place",
            "      const float place",
        ),
        (
            "more candidates than a block has room for",
            "theirs > kOwnCandidates",
            "theirs > 2 * kOwnCandidates",
        ),
        (
            "candidates of half of each block",
            "i < num_from; i += 64) {\n      gathered",
            "i < num_from; i += 128) {\n      gathered",
        ),
        (
            "sums of the block's own warps for all",
            "sum_of_rank(&s.kept[threadIdx.x % kGroups], threadIdx.x / kGroups)",
            "s.kept[threadIdx.x % kGroups]",
        ),
        (
            "cut off candidates are weighed",
            "if (kept.holds(key, candidate_id(candidate))) term",
            "term",
        ),
        (
            "candidates of the first warp of each block alone",
            "threadIdx.x % kGroups < 2)",
            "threadIdx.x % kGroups < 1)",
        ),
        (
            "the sum before a block is of all",
            "edges[0] = of_ranks.reached - own;",
            "edges[0] = of_ranks.reached;",
        ),
        (
            "an edge between blocks belongs to both",
            "before > goal || edges[1] <= goal",
            "before > goal || edges[1] < goal",
        ),
        (
            "no barrier before the groups' sums are read",
            "s.group_sums[i / 128] = sum.joined();\n    }\n    __syncthreads();",
            "s.group_sums[i / 128] = sum.joined();\n    }",
        ),
        ("the first token of a lane", "if (passed > goal) break;", "if (passed >= 0) break;"),
        (
            "what others need is overwritten early",
            "    classify(draw, ends);\n    meet();",
            "    classify(draw, ends);\n    cluster_arrive();",
        ),
    ),
}
