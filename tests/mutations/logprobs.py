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
            "the list of the first row for all",
            "top_ids = all_top_ids + at;",
            "top_ids = all_top_ids;",
        ),
        (
            "the rest of the list is left as it was",
            "int i = listed + threadIdx.x",
            "int i = listed + 1 + threadIdx.x",
        ),
        (
            "few rows: the peak is not subtracted in time",
            "sum += expf(logit - peak);\n        before",
            "sum += expf(logit - 0.5f * peak);\n        before",
        ),
        ("few rows: groups of the first block alone", "group / groups));", "0));"),
        (
            "few rows: tokens after the target before it",
            "up_to_target.holds(order_key(logit), id) && id < vocab ? 1 : 0;\n        if",
            "order_key(logit) >= up_to_target.key ? 1 : 0;\n        if",
        ),
        (
            "few rows: the first blocks leave early",
            "*reinterpret_cast<RowScratch*>(tile.words));\n  }\n  meet();\n",
            "*reinterpret_cast<RowScratch*>(tile.words));\n  }\n",
        ),
        (
            "few rows: a chunk's group is written once for all",
            "s.groups[chunk / kChunk * kGroups + warp_index()]",
            "s.groups[warp_index()]",
        ),
    ),
}
