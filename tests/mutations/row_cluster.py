"""Bugs to plant in kernels/row_cluster.cuh."""

BUGS = {
    ("sample", "row_cluster.cuh"): (
        (
            "what is after the row's end is a logit",
            "begin + i < vocab ? to_float(packs[v].v[k + j]) : key_logit(-kInfinityKey)",
            "to_float(packs[v].v[k + j])",
        ),
        ("loads after the row's end", "if (i < tokens && begin + i < vocab)", "if (i < tokens)"),
        (
            "the others' turn is the first one's",
            "loads.load(row.logits, row.vocab, begin, tokens, turn + own);",
            "loads.load(row.logits, row.vocab, begin, tokens, own);",
        ),
        ("no barrier before the row is read", "  __syncthreads();\n  PlainTile", "  PlainTile"),
        (
            "adjusted as if it began with id 0",
            "adjust<kWidth>(row, begin, min(",
            "adjust<kWidth>(row, 0, min(",
        ),
        (
            "the extent of the first block alone",
            "lane_index() < kRanks ? lane_index() : 0);\n  top_key",
            "0);\n  top_key",
        ),
        (
            "the top id of any block",
            "top_key == extent.top_key ? static_cast<int>(found.y) : kHighestInt",
            "static_cast<int>(found.y)",
        ),
        (
            "blocks do not wait",
            "  cluster_arrive();\n  cluster_wait();\n}",
            "  cluster_arrive();\n}",
        ),
        (
            "every second vector of a tile",
            "visit(logits.z, begin + i + 2);",
            "visit(logits.z, begin + i + 1);",
        ),
    ),
    ("logprobs", "row_cluster.cuh"): (
        (
            "candidates of a block on top of each other's",
            "if (lane_index() >= offset) up_to += left;",
            "up_to += left;",
        ),
    ),
}
