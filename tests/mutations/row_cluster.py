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
            "no barrier before the row is read",
            "turn + own);\n  }\n  __syncthreads();\n",
            "turn + own);\n  }\n",
        ),
        (
            "the extent of the first block alone",
            "lane_index() < kRanks ? lane_index() : 0);\n  top_key",
            "0);\n  top_key",
        ),
        (
            "blocks do not wait",
            "  cluster_arrive();\n  cluster_wait();\n}",
            "  cluster_arrive();\n}",
        ),
        ("a token is visited twice", "visit(logits.z, i + 2);", "visit(logits.y, i + 1);"),
        (
            "a run too short",
            "begin = first(), end = begin + run();",
            "begin = first(), end = begin + run() - 4;",
        ),
        (
            "candidates of a block on top of each other's",
            "if (lane_index() >= offset) up_to += left;\n    }\n    all",
            "up_to += left;\n    }\n    all",
        ),
        (
            "candidates of half of each block",
            "i < count; i += 64) {\n    to[i]",
            "i < count; i += 128) {\n    to[i]",
        ),
    ),
}
