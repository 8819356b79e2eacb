"""Bugs to plant in kernels/attend_few_rows.cuh."""

BUGS = {
    ("paged_decode_attention", "attend_few_rows.cuh"): (
        (
            "the newest token is read before the wait, few rows",
            "const bool settled = piece_of(lane) < pieces - 1;",
            "const bool settled = piece_of(lane) < pieces;",
        ),
        (
            "the newest piece is not copied, few rows",
            "    if (begins && !settled) begin_copies();\n",
            "",
        ),
        (
            "a token after the last counts, few rows",
            "lane_pair + i < tokens;",
            "lane_pair + i <= tokens;",
        ),
        (
            "what lies after the last token is added, few rows",
            "if (tokens < kTokens) {",
            "if (false) {",
        ),
        (
            "sums keep an old maximum, few rows",
            "if (!__any_sync(0xffffffffu, rescale)) return;",
            "return;",
        ),
        (
            "the total keeps an old maximum, few rows",
            "total = fmaf(total, keep, added);",
            "total += added;",
        ),
        (
            "columns of K are those of Q no more, few rows",
            "const int place = kKeysSwap ? j ^ lane_row % 2 : j;",
            "const int place = j;",
        ),
        ("scores are not scaled, few rows", "__fmul_rn(scores[j][i], scale_log2)", "scores[j][i]"),
        ("queries of other heads are read, few rows", "if (lane_row < heads) queries", "queries"),
        (
            "K is copied over what is in use, few rows",
            "        __syncwarp();\n        if (copies) copy(n + kAhead, 0, block);",
            "        if (copies) copy(n + kAhead, 0, block);",
        ),
        (
            "V is copied over what is in use, few rows",
            "        __syncwarp();\n        if (copies) copy(n + kAhead, 1, block);",
            "        if (copies) copy(n + kAhead, 1, block);",
        ),
        (
            "K may not have arrived, few rows",
            "        mbarrier_wait(barrier_of(n, 0), n / kAhead % 2);\n",
            "",
        ),
        (
            "a ring's second round waits for the first, few rows",
            "mbarrier_wait(barrier_of(n, 1), n / kAhead % 2);",
            "mbarrier_wait(barrier_of(n, 1), 0);",
        ),
        (
            "blocks of the next 32 pieces are those of these, few rows",
            "next < 32 ? blocks : later_blocks",
            "blocks",
        ),
        (
            "blocks of the next 32 pieces stay those of these, few rows",
            "        if (n % 32 == 31) blocks = later_blocks;\n",
            "",
        ),
        ("a dead row keeps what it held, few rows", "if (length <= 0) {", "if (length < 0) {"),
        (
            "KV head 0 for all, few rows",
            "static_cast<long long>(block) * kv_heads + kv_head;",
            "static_cast<long long>(block) * kv_heads;",
        ),
        (
            "a block takes the next one's first piece too, few rows",
            "end = min(first + share, pieces)",
            "end = min(first + share + 1, pieces)",
        ),
        (
            "a cluster's blocks read what is not written yet",
            "        cluster_arrive();\n        cluster_wait();\n        fold_cluster",
            "        fold_cluster",
        ),
        (
            "a cluster's blocks leave while others read",
            "        cluster_arrive();\n        cluster_wait();  // nobody",
            "        // nobody",
        ),
        (
            "of a cluster's last block one warp counts",
            "warps + min(kWarps, of_last)",
            "warps + min(1, of_last)",
        ),
        (
            "a cluster's parts after the first 32 are left out",
            "part += kLaneTeams * kPartsAhead",
            "part += 1 << 20",
        ),
        (
            "the counter stays as it is, few rows",
            "        if (threadIdx.x == 0) *count = 0;  // as it was\n",
            "",
        ),
        (
            "the first block takes itself for the last, few rows",
            "atomicAdd(count, 1) == blocks - 1;",
            "atomicAdd(count, 1) == 0;",
        ),
        (
            "no barrier before warps are folded, few rows",
            "      __syncthreads();\n      const long long place",
            "      const long long place",
        ),
        (
            "parts after the first batch are left out, few rows",
            "begin += kBatch * teams",
            "begin += 1 << 20",
        ),
        (
            "no barrier before teams are folded, few rows",
            "    if (teams == 1) return;\n    __syncthreads();\n",
            "    if (teams == 1) return;\n",
        ),
    ),
}
