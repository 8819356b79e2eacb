"""Bugs to plant in kernels/begin_rows.cu."""

BUGS = {
    ("begin_rows", "begin_rows.cu"): (
        ("does not wait for the launch before", "  wait_for_previous_kernel();\n", ""),
        ("every step applies the changes", "if (is_before(newest, first_step)) {", "{"),
        ("no change is taken for one", "if (change.v[0] >= 0) words", "words"),
        ("only the first changes", "i < num_changes; i +=", "i < min(num_changes, kThreads); i +="),
        ("a launch begins anew", "begun_step(newest, first_step)", "first_step"),
        ("a dead row's slot is known", "live ? slot : -1", "slot"),
        (
            "the new token's position is sampled",
            "= live ? position + 1 : 0;\n    target",
            "= live ? position : 0;\n    target",
        ),
        ("row stride in elements, not vectors", "token * vectors + i", "token * hidden + i"),
        ("no barrier before the tokens are read", "  __syncthreads();\n  using", "  using"),
        (
            "no barrier before the step begins",
            "  __syncthreads();  // all have read the step, and all words are written\n",
            "",
        ),
        (
            "embeddings of the first vectors alone",
            "i < rows * vectors; i += kThreads",
            "i < vectors; i += kThreads",
        ),
        ("a dead row reports", "live ? wanted : -1", "wanted"),
        (
            "parts of rows that are shorter",
            "lengths[row] = seq_lens[row] = live ? position + 1 : 0;",
            "lengths[row] = position;\n    seq_lens[row] = live ? position + 1 : 0;",
        ),
        (
            "rows are begun while words change",
            "  if (is_before(newest, first_step)) {\n"
            "    for (int i = threadIdx.x; i < num_changes; i += kThreads) {\n"
            "      const auto change = reinterpret_cast<const Pack<int, 2>*>(changes)[i];\n"
            "      if (change.v[0] >= 0) words[change.v[0]] = change.v[1];\n"
            "    }\n"
            "  }\n"
            "  __syncthreads();  // all have read the step, and all words are written\n",
            "  __syncthreads();\n"
            "  if (is_before(newest, first_step)) {\n"
            "    for (int i = threadIdx.x; i < num_changes; i += kThreads) {\n"
            "      const auto change = reinterpret_cast<const Pack<int, 2>*>(changes)[i];\n"
            "      if (change.v[0] >= 0) words[change.v[0]] = change.v[1];\n"
            "    }\n"
            "  }\n",
        ),
    ),
}
