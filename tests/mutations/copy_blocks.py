"""Bugs to plant in kernels/copy_blocks.cu."""

BUGS = {
    ("copy_blocks", "copy_blocks.cu"): (
        ("does not wait for the launch before", "  wait_for_previous_kernel();", "  "),
        ("block 0 is no source", "if (pair.v[0] < 0 ||", "if (pair.v[0] <= 0 ||"),
        ("no pair is taken for one", "if (pair.v[0] < 0 || ", "if ("),
        ("no guard after the block's end", " || index >= vectors", ""),
        ("the last vector is left out", "index >= vectors", "index >= vectors - 1"),
        ("only the first part", "blockIdx.z * blockDim.x + threadIdx.x", "threadIdx.x"),
        ("V is left out", "blockIdx.y == 0 ? k_cache : v_cache", "k_cache"),
        ("K is left out", "blockIdx.y == 0 ? k_cache : v_cache", "v_cache"),
        (
            "the wrong way round",
            "source = pair.v[0], target = pair.v[1]",
            "source = pair.v[1], target = pair.v[0]",
        ),
        ("the first pair for all", "(pairs)[blockIdx.x]", "(pairs)[0]"),
    ),
}
