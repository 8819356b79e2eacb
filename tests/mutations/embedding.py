"""Bugs to plant in kernels/embedding.cu and kernels/embedding.py."""

BUGS = {
    ("embedding", "embedding.cu"): (
        ("does not wait for the launch before", "  wait_for_previous_kernel();", "  "),
        ("a dead row reads row -1", "if (id >= 0 && column", "if (column"),
        ("token 0 is taken for a dead row", "if (id >= 0 &&", "if (id > 0 &&"),
        ("reads after the row's end", "if (id >= 0 && column < vectors)", "if (id >= 0)"),
        ("writes after the row's end", "if (column < vectors) target", "target"),
        ("row stride in elements, not vectors", "+ id * vectors;", "+ id * hidden;"),
        (
            "the block's part of a row ignored",
            "blockIdx.y * (kLoads * kThreads) + threadIdx.x",
            "threadIdx.x",
        ),
        ("a dead row is left as it was", "    values[u] = zeros<T, kWidth>();\n", ""),
    ),
    ("embedding", "embedding.py"): (
        (
            "grid rounded down: the last part of a long row is missing",
            "-(-vectors // (threads * loads))",
            "max(1, vectors // (threads * loads))",
        ),
    ),
}
