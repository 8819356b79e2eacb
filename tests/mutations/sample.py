"""Bugs to plant in kernels/sample.cu."""

BUGS = {
    ("sample", "sample.cu"): (
        ("another word of the draw", ".w[0] >> 8", ".w[1] >> 8"),
        (
            "position and sample index swapped",
            "static_cast<unsigned>(position),\n                                      "
            "static_cast<unsigned>(sample_index[slot])",
            "static_cast<unsigned>(sample_index[slot]),\n                                      "
            "static_cast<unsigned>(position)",
        ),
        (
            "words of the seed swapped",
            "counter, seeds[2 * slot], seeds[2 * slot + 1]",
            "counter, seeds[2 * slot + 1], seeds[2 * slot]",
        ),
        (
            "position of the slot, not of the row",
            "sample_positions[blockIdx.y]",
            "sample_positions[slot]",
        ),
        (
            "stop ids banned a token too long",
            "position < min_position[slot]",
            "position <= min_position[slot]",
        ),
        (
            "bias of the row, not of its slot",
            "bias_values + static_cast<long long>(slot) *",
            "bias_values + static_cast<long long>(blockIdx.y) *",
        ),
        ("frequency alone is not applied", " || frequency != 0.0f;", ";"),
        ("presence alone is not applied", " || presence != 0.0f ||", " ||"),
        ("tiny temperatures are drawn", "temperature[slot] >= 1e-5f", "temperature[slot] > 0.0f"),
        ("min_p keeps a token below it", " + (rounded < threshold ? 1 : 0)", ""),
        ("min_p drops a token at it", " + (rounded < threshold ? 1 : 0)", " + 1"),
        ("min_p without temperature", "peak + t * log(", "peak + log("),
        ("all tokens are counted", "count_tokens[slot] != 0 ? counts : nullptr", "counts"),
        (
            "a broken row is counted",
            "if (token >= 0 && counted != nullptr)",
            "if (counted != nullptr)",
        ),
        ("a dead row gives -1", "token_ids[blockIdx.x] = 0;", "token_ids[blockIdx.x] = -1;"),
        ("a dead row is sampled", "  if (slot < 0) {\n", "  if (slot < -1) {\n"),
        (
            "32 bits in the low half of a share",
            "((total & 0xffffffffu) * draw >> 24)",
            "(static_cast<unsigned>(total) * draw >> 24)",
        ),
        ("weights in the power of 2, not of e", "1.4426950408889634 * inverse", "1.0 * inverse"),
        (
            "top_p is ignored below 1",
            "if (top_p < 1.0f) {\n    const Sum before",
            "if (top_p < 0.9f) {\n    const Sum before",
        ),
        (
            "every thread writes the count",
            "  if (threadIdx.x == 0) {\n    token_ids[blockIdx.x] = token;",
            "  {\n    token_ids[blockIdx.x] = token;",
        ),
        ("sums of bins are not reset", "      work.bin_weights[threadIdx.x] = 0;\n", ""),
        ("counts of bins are not reset", "      work.bin_counts[threadIdx.x] = 0;\n", ""),
        ("the number of candidates is not reset", "      work.num_candidates = 0;\n", ""),
        (
            "only the first warp adds to the last bin",
            "if (lane_index() == 0) {\n      weights.add(kBins - 1, rest);",
            "if (threadIdx.x == 0) {\n      weights.add(kBins - 1, rest);",
        ),
        (
            "no barrier before the bins are cleared",
            "    __syncthreads();\n    if (threadIdx.x < kBins) bin_weight",
            "    if (threadIdx.x < kBins) bin_weight",
        ),
        (
            "no barrier after the bins are cleared",
            "bin_weight += weights.take(threadIdx.x);\n    __syncthreads();\n",
            "bin_weight += weights.take(threadIdx.x);\n",
        ),
        (
            "sums of a block replace those of others",
            "atomicAdd(&work.bin_weights[threadIdx.x], bin_weight)",
            "atomicExch(&work.bin_weights[threadIdx.x], bin_weight)",
        ),
        (
            "top_p's part of all, not of what top_k keeps",
            "      least = ends.k_before;\n      most = ends.before;\n",
            "",
        ),
        (
            "no barrier before the sum of top_k is read",
            "    __syncthreads();\n    if (ends.k_bin < kBins) {\n      least",
            "    if (ends.k_bin < kBins) {\n      least",
        ),
        (
            "tokens of top_k's last bin are no candidates",
            "place < top_p_end || (place >= k_begin && place < k_end)",
            "place < top_p_end",
        ),
        (
            "one bin in which top_p may end",
            "if (before < last && sums.reached >= last) ends.last = bin;",
            "ends.last = ends.first;",
        ),
        (
            "a token of top_k too many",
            "first + static_cast<int>(ends.k_left) - 1",
            "first + static_cast<int>(ends.k_left)",
        ),
        (
            "candidates are weighed although they are cut off",
            "    if (kept.holds(candidate_key(candidate), id)) {\n",
            "    {\n",
        ),
        (
            "more candidates than there is room for",
            "work.num_candidates > kMaxCandidates",
            "work.num_candidates > 2 * kMaxCandidates",
        ),
        (
            "kept tokens below min_p",
            "      if (logit < draw.min_logit) return;\n      const float place",
            "      const float place",
        ),
        (
            "the second launch does not wait for the first",
            "  let_next_kernel_start();\n  wait_for_previous_kernel();\n"
            "  RowWork<T>& work = work_of<T>(workspace, blockIdx.y);\n  const Request",
            "  let_next_kernel_start();\n"
            "  RowWork<T>& work = work_of<T>(workspace, blockIdx.y);\n  const Request",
        ),
        (
            "the floor lies in the last bin",
            "fminf((peak - logit) * scale, kBins - 1.0f)",
            "fminf((peak - logit) * scale, kBins - 2.0f)",
        ),
        (
            "a tie between bins belongs to the odd one",
            "(bin & 1) != 0 ? __int_as_float",
            "(bin & 1) == 0 ? __int_as_float",
        ),
        (
            "candidates up to the bin before top_p's last",
            "Places::edge(ends.last + 1)",
            "Places::edge(ends.last)",
        ),
        (
            "weights of half the groups of a chunk",
            "int offset = kGroups / 2; offset",
            "int offset = kGroups / 4; offset",
        ),
        (
            "the sums of chunks are not reset",
            "s.chunk_high[chunk] = s.chunk_low[chunk] = 0;",
            "s.chunk_high[chunk] = 0;",
        ),
        (
            "candidates count for the first chunk",
            "atomicAdd(&s.chunk_high[id / kChunk], term.high);",
            "atomicAdd(&s.chunk_high[0], term.high);",
        ),
    ),
}
