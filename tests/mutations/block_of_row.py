"""Bugs to plant in kernels/block_of_row.cuh."""

BUGS = {
    ("rope_append_attention", "block_of_row.cuh"): (
        (
            "results of KV heads over each other",
            "(static_cast<long long>(given.row) * kv_heads + kv_head) * group * kHeadDim;",
            "static_cast<long long>(given.row) * kv_heads * group * kHeadDim;",
        ),
        (
            "only a dead row's first head is zero",
            "i < group * kHeadDim; i += kThreads) {\n      result_in",
            "i < kHeadDim; i += kThreads) {\n      result_in",
        ),
        (
            "a row's parts leave their results in one place",
            "place - given.index + part) * kv_heads",
            "place - given.index) * kv_heads",
        ),
        (
            "a row's results are where its last part is",
            "(place - given.index + part) * kv_heads",
            "(place + part) * kv_heads",
        ),
        (
            "results of KV heads' parts over each other",
            "* kv_heads + kv_head;\n    return workspace",
            "* kv_heads;\n    return workspace",
        ),
        (
            "results of heads without room for the total",
            "(of_head_set * group + head) * (kHeadDim + 2)",
            "(of_head_set * group + head) * (kHeadDim + 1)",
        ),
        (
            "a part is stored as if it were the row",
            "    if (given.parts == 1) {",
            "    if (given.index == 0) {",
        ),
        (
            "highest and total swapped",
            "result[kHeadDim] = found.highest",
            "result[kHeadDim] = found.total",
        ),
        ("a row that is not cut is folded", "    if (given.parts == 1) return;\n", ""),
        (
            "KV heads have one count",
            "kv_heads * group + kv_head;\n    if",
            "kv_heads * group;\n    if",
        ),
        ("rows have one count", "arrivals + static_cast<long long>(given.row) *", "arrivals + 0 *"),
        (
            "a cut row is not folded",
            "!arrives_last(count, given.parts)",
            "arrives_last(count, given.parts)",
        ),
        (
            "only the first head of a cut row",
            "i < group * kHeadDim; i += kThreads) {\n      const int head",
            "i < kHeadDim; i += kThreads) {\n      const int head",
        ),
    ),
}
