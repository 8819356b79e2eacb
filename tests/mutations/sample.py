"""Bugs to plant in kernels/sample.cu."""

BUGS = {
    ("sample", "sample.cu"): (
        ("a dead row gives -1", "token_ids[blockIdx.x] = 0;", "token_ids[blockIdx.x] = -1;"),
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
            "tokens of top_k's last bin are no candidates",
            "place < top_p_end || (place >= k_begin && place < k_end)",
            "place < top_p_end",
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
            "  let_next_kernel_start();\n"
            "  wait_for_previous_kernel();\n"
            "  RowWork<T>& work = work_of<T>(workspace, blockIdx.y);\n"
            "  const Request",
            "  let_next_kernel_start();\n"
            "  RowWork<T>& work = work_of<T>(workspace, blockIdx.y);\n"
            "  const Request",
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
        (
            "a dead row of many is sampled",
            "  if (slot < 0) {\n    if (describes",
            "  if (slot < -1) {\n    if (describes",
        ),
        (
            "a dead row of few is sampled",
            "  if (slot < 0) {\n    if (rank",
            "  if (slot < -1) {\n    if (rank",
        ),
        (
            "position of the slot, not of the row, of many",
            "const int position = sample_positions[blockIdx.y];\n"
            "  const Row<T> row = asked.row(row_logits, slot, position);\n"
            "  if (describes)",
            "const int position = sample_positions[slot];\n"
            "  const Row<T> row = asked.row(row_logits, slot, position);\n"
            "  if (describes)",
        ),
        (
            "a broken row is counted",
            "if (token >= 0 && counted != nullptr) atomicAdd(&counted[token], 1);\n"
            "  }\n"
            "}\n"
            "\n"
            "template",
            "if (counted != nullptr) atomicAdd(&counted[token], 1);\n  }\n}\n\ntemplate",
        ),
        (
            "few rows: a broken row is counted",
            "if (token >= 0 && counted != nullptr) atomicAdd(&counted[token], 1);\n  }\n  cluster",
            "if (counted != nullptr) atomicAdd(&counted[token], 1);\n  }\n  cluster",
        ),
        (
            "position of the slot, not of the row, of few",
            "    const int position = sample_positions[blockIdx.y];\n    work.row",
            "    const int position = sample_positions[slot];\n    work.row",
        ),
        (
            "blocks of few rows do not wait for each other's end",
            "  cluster_wait();  // nobody leaves while others read its shared memory\n",
            "",
        ),
        (
            "few rows: every block writes",
            "if (token != Sampler::kNotHere && threadIdx.x == 0) {",
            "if (threadIdx.x == 0) {",
        ),
        (
            "few rows: the first row's logits",
            "  loads.load(row_logits, vocab, begin, block_tokens",
            "  loads.load(logits, vocab, begin, block_tokens",
        ),
    ),
}
