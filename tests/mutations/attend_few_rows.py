"""Bugs to plant in kernels/attend_few_rows.cuh."""

BUGS = {
    ("paged_decode_attention", "attend_few_rows.cuh"): (
        (
            "the newest token is read before the wait, few rows",
            "settled = own < pieces - 1;",
            "settled = own < pieces;",
        ),
        (
            "the newest piece is not copied, few rows",
            "    if (begins && !settled) begin_copies();\n",
            "",
        ),
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
            "a copy may come before reads of K, few rows",
            "fence_shared_memory();\n        __syncwarp();\n        if (copies) copy(n + kAhead, 0",
            "__syncwarp();\n        if (copies) copy(n + kAhead, 0",
        ),
        (
            "a copy may come before reads of V, few rows",
            "fence_shared_memory();\n        __syncwarp();\n        if (copies) copy(n + kAhead, 1",
            "__syncwarp();\n        if (copies) copy(n + kAhead, 1",
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
            "32-bit offset of a block in the cache, few rows",
            "const long long head = static_cast<long long>(block) * kv_heads",
            "const int head = block * kv_heads",
        ),
        (
            "a block takes the next one's pieces too, few rows",
            "stride = kWarps * ranks, first = warp * ranks + rank;",
            "stride = kWarps * ranks, first = warp * ranks + rank / 2;",
        ),
        (
            "pieces are left out, few rows",
            "stride = kWarps * ranks,",
            "stride = kWarps * ranks * 2,",
        ),
        ("a piece of another block, few rows", "(piece >> block_shift)", "piece"),
        (
            "always a block's first piece, few rows",
            "first + n * stride & (1 << block_shift) - 1;",
            "0;",
        ),
        (
            "the highest score of what is no warp counts, few rows",
            "warps += w * ranks + rank < pieces;",
            "warps += w * ranks + rank <= pieces;",
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
            "of a cluster's last warps one too few counts",
            "const int parts = min(pieces, stride);",
            "const int parts = min(pieces, stride - 1);",
        ),
        (
            "a cluster's warps are folded as if each block had all",
            "cluster_address(own, from % kCluster)",
            "cluster_address(own, from / kWarps)",
        ),
        (
            "a cluster's parts after the first 32 are left out",
            "part += kLaneTeams * kPartsAhead",
            "part += 1 << 20",
        ),
        (
            "the counter stays as it is, few rows",
            "    if (lane == 0) *count = 0;  // as it was\n",
            "",
        ),
        (
            "the first block takes itself for the last, few rows",
            "arrived, 0) != used - 1) return;",
            "arrived, 0) != 0) return;",
        ),
        (
            "no barrier before a head is said to be there, few rows",
            "    __syncwarp();\n    int arrived",
            "    int arrived",
        ),
        (
            "a head of another KV head is counted, few rows",
            "kv_heads + kv_head) * group;\n      for",
            "kv_heads) * group;\n      for",
        ),
        (
            "one count for all heads, few rows",
            "counts + head, store",
            "counts, store",
        ),
        (
            "heads after the warps are not folded, few rows",
            "head < group; head += kWarps",
            "head < min(group, kWarps); head += kWarps",
        ),
        (
            "what other blocks found may not be there, few rows",
            "add_and_meet(count, 1)",
            "atomicAdd(count, 1)",
        ),
        (
            "no barrier before warps are folded, few rows",
            "      __syncthreads();\n      const long long place",
            "      const long long place",
        ),
        (
            "parts after the first batch are left out, few rows",
            "begin < used; begin += kBatch",
            "begin < 1; begin += kBatch",
        ),
    ),
}
