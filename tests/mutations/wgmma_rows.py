"""Bugs to plant in kernels/wgmma_rows.cuh."""

BUGS = {
    ("linear_swiglu", "wgmma_rows.cuh"): (
        (
            "many rows: both boxes are of the gates",
            "kDepth, box_rows[box], 0",
            "kDepth, box_rows[0], 0",
        ),
        ("many rows: the second box over the first", "kXBytes + box * kBoxBytes;", "kXBytes;"),
        (
            "many rows: x is read before it is there",
            "    wait_for_previous_kernel();\n    if (threadIdx.x == 0) {",
            "    if (threadIdx.x == 0) {",
        ),
        (
            "many rows: both blocks copy the first rows",
            "static_cast<int>(blockIdx.x) % kWgmmaCluster * share",
            "0",
        ),
        (
            "many rows: for this block alone",
            "ring.full(stage), kWgmmaCluster);",
            "ring.full(stage), 1);",
        ),
        ("many rows: the other block's warps", "kThreads / 32 * kWgmmaCluster", "kThreads / 32"),
        (
            "many rows: copied over what is in use",
            "        mbarrier_wait(ring.empty(stage), parity);\n",
            "",
        ),
        (
            "many rows: products of what has not come",
            "      mbarrier_wait(ring.full(stage), parity);\n",
            "",
        ),
        (
            "many rows: zeros that the tensor cores do not see",
            "    fence_shared_memory();\n    __syncthreads();\n    wait",
            "    __syncthreads();\n    wait",
        ),
        (
            "many rows: given back while it is multiplied",
            "      wgmma_wait_for_earlier<1>();\n      const bool",
            "      wgmma_wait_for_earlier<2>();\n      const bool",
        ),
        ("many rows: sums of what was there", "step > 0 || k > 0", "true"),
        ("many rows: columns of k twice", "ring.tile(stage) + k * 32;", "ring.tile(stage);"),
        (
            "many rows: all warpgroups have the first's rows",
            "(first_group + group) * kGroupBytes",
            "group * kGroupBytes",
        ),
        (
            "many rows: stored in the first's place",
            "finish((first_group + group) * 64",
            "finish(group * 64",
        ),
        ("many rows: rows after the last are not zero", "= kXBytes - copied_bytes;", "= 0;"),
        (
            "many rows: the same step again",
            "copy_x(step + kStages, stage);",
            "copy_x(step, stage);",
        ),
        (
            "many rows: the last stage that is filled again is not given back",
            "if (step + kStages >= steps) return;",
            "if (step + kStages >= steps - 1) return;",
        ),
        ("many rows: a phase too soon", "turned ? parity ^ 1 : parity)", "parity)"),
        ("many rows: warps in one place", "threadIdx.x / 32 % 4 * 16 + half", "half"),
        (
            "many rows: the other block's barriers are not made",
            "      mbarrier_init_done();\n    }\n    meet();\n",
            "      mbarrier_init_done();\n    }\n    __syncthreads();\n",
        ),
        (
            "many rows: it ends while its copies are under way",
            "    meet();  // what a block has copied is in both before it ends\n",
            "",
        ),
    ),
}
