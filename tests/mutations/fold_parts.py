"""Bugs to plant in kernels/fold_parts.cuh."""

BUGS = {
    ("paged_decode_attention", "fold_parts.cuh"): (
        ("the first block folds", "== blocks - 1;", "== 0;"),
        ("nobody is the last", "== blocks - 1;", "== blocks;"),
        ("every block is the last", "== blocks - 1;", ">= 0;"),
        ("the count is not set back", "    if (is_last) *count = 0;\n", ""),
        (
            "no barrier before a block says that it is there",
            "  __shared__ bool is_last;\n  __syncthreads();\n",
            "  __shared__ bool is_last;\n",
        ),
        (
            "no barrier before all know whether they are last",
            "    __threadfence();\n  }\n  __syncthreads();\n",
            "    __threadfence();\n  }\n",
        ),
        (
            "results are not there for others",
            "    __threadfence();\n    is_last = atomicAdd(count, 1) == blocks - 1;\n"
            "    if (is_last) *count = 0;\n    __threadfence();\n",
            "    is_last = atomicAdd(count, 1) == blocks - 1;\n    if (is_last) *count = 0;\n",
        ),
        (
            "two arrive as one",
            "atomicAdd(count, 1) == blocks - 1",
            "(*count += 1) == blocks",
        ),
        ("the last parts are not folded", "first < parts; first += kAhead", "first < 1; ++first"),
        ("parts after the last are folded", "if (first + i < parts) fold", "fold"),
        (
            "the last part is not folded",
            "if (first + i < parts) fold",
            "if (first + i < parts - 1) fold",
        ),
        (
            "parts are folded from the last to the first",
            "at_part(min(first + i, parts - 1))",
            "at_part(max(parts - 1 - first - i, 0))",
        ),
    ),
}
