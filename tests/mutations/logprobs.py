"""Bugs to plant in kernels/logprobs.cu."""

BUGS = {
    ("logprobs", "logprobs.cu"): (
        (
            "the peak is not subtracted",
            "to_float(row.logits[wanted.target]) - peak - log_sum;",
            "to_float(row.logits[wanted.target]) - log_sum;",
        ),
        (
            "rank counted from 0",
            "block_scan<kThreads>(before).total)",
            "block_scan<kThreads>(before).total - 1)",
        ),
        (
            "more tokens listed than there are",
            "min(min(num_logprobs[row], max_logprobs), vocab)",
            "min(num_logprobs[row], max_logprobs)",
        ),
        (
            "a row that wants nothing writes before its list",
            "int i = listed + threadIdx.x",
            "int i = wanted.count + threadIdx.x",
        ),
        ("a target of id 0 is ignored", "target_ids[row] >= 0 ?", "target_ids[row] > 0 ?"),
        (
            "the number of candidates is not reset",
            "threadIdx.x == 0) work.num_candidates = 0;",
            "false) work.num_candidates = 0;",
        ),
        ("a row without a target reads before the row", "    if (target < 0) count = -1;\n", ""),
        (
            "overflows for large logits",
            "sum += expf(logit - peak);",
            "sum += expf(logit) * expf(-peak);",
        ),
        (
            "the sampled token in place of the target",
            "target_ids[row] >= 0 ? target_ids[row] : token_ids[row]",
            "token_ids[row]",
        ),
        (
            "the list of the first row for all",
            "top_ids[at] = candidate_id(candidate);",
            "top_ids[i] = candidate_id(candidate);",
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
    ),
}
