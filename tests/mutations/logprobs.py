"""Bugs to plant in kernels/logprobs.cu."""

BUGS = {
    ("logprobs", "logprobs.cu"): (
        (
            "more tokens listed than there are",
            "min(min(num_logprobs[row], max_logprobs), vocab)",
            "min(num_logprobs[row], max_logprobs)",
        ),
        ("a target of id 0 is ignored", "target_ids[row] >= 0 ?", "target_ids[row] > 0 ?"),
        (
            "the number of candidates is not reset",
            "threadIdx.x == 0) work.num_candidates = 0;",
            "false) work.num_candidates = 0;",
        ),
        ("a row without a target reads before the row", "    if (target < 0) count = -1;\n", ""),
        (
            "the sampled token in place of the target",
            "target_ids[row] >= 0 ? target_ids[row] : token_ids[row]",
            "token_ids[row]",
        ),
        (
            "a token too few in the list",
            "return static_cast<Sum>(count);",
            "return static_cast<Sum>(count - 1);",
        ),
        (
            "fewer candidates than are listed",
            "if (num_candidates < count || num_candidates > kMaxCandidates)",
            "if (num_candidates > kMaxCandidates)",
        ),
        (
            "more candidates than there is room for",
            "if (num_candidates < count || num_candidates > kMaxCandidates)",
            "if (num_candidates < count)",
        ),
        (
            "only one warp's sum of a chunk",
            "group_sums[chunk.index * kGroups + warp_index()] = sum;",
            "group_sums[chunk.index * kGroups] = sum;",
        ),
        ("the peak is not subtracted", "end(target - peak - log_sum", "end(target - log_sum"),
        (
            "rank counted from 0",
            "static_cast<int>(before), listed",
            "static_cast<int>(before) - 1, listed",
        ),
        (
            "overflows for large logits",
            "sum += expf(logit - peak);\n      before",
            "sum += expf(logit) * expf(-peak);\n      before",
        ),
        (
            "few rows: overflows for large logits",
            "sum += expf(logit - peak);\n        before",
            "sum += expf(logit) * expf(-peak);\n        before",
        ),
        (
            "the list of the first row for all",
            "top_ids = all_top_ids + at;",
            "top_ids = all_top_ids;",
        ),
        (
            "the rest of the list is left as it was",
            "int i = listed + threadIdx.x",
            "int i = listed + 1 + threadIdx.x",
        ),
        ("few rows: groups of the first block alone", "group / groups));", "0));"),
        (
            "few rows: candidates of the first block alone",
            "gathered[i] = sum_of_rank(&s.candidates[i], from);",
            "gathered[i] = s.candidates[i];",
        ),
        (
            "few rows: tokens after the row's end before the target",
            "holds(order_key(logit), id) && id < vocab ? 1 : 0",
            "holds(order_key(logit), id) ? 1 : 0",
        ),
        (
            "few rows: the first blocks leave early",
            "        row, wanted, extent, sum, before, s.gathered, count, *reinterpret_cast<RowScratch*>(tile));\n  }\n  meet();\n",
            "        row, wanted, extent, sum, before, s.gathered, count, *reinterpret_cast<RowScratch*>(tile));\n  }\n",
        ),
        (
            "few rows: the scratch over the row that is read",
            "    __syncthreads();  // the candidates are there, and the tile may be overwritten\n",
            "",
        ),
        (
            "few rows: too many candidates",
            "if (__any_sync(kAllLanes, theirs > kOwnCandidates)) count = kMaxCandidates + 1;\n    ",
            "",
        ),
    ),
}
