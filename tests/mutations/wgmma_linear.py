"""Bugs to plant in kernels/wgmma_linear.cuh."""

BUGS = {
    ("linear_swiglu", "wgmma_linear.cuh"): (
        ("both boxes are of the gates", "box_row(at.tile, box)", "box_row(at.tile, 0)"),
        ("the second box over the first", "to + box * kBoxBytes", "to"),
        (
            "x is read before it is there",
            "      wait_for_previous_kernel();\n      if (warp > kWarps",
            "      if (warp > kWarps",
        ),
        (
            "results are written before the wait",
            "    wait_for_previous_kernel();\n    float sums",
            "    float sums",
        ),
        (
            "a thread returns without waiting",
            "      wait_for_previous_kernel();\n      if (warp > kWarps && lane == 0) {",
            "      if (warp > kWarps && lane == 0) {\n        wait_for_previous_kernel();",
        ),
    ),
    ("linear_add_rms_norm", "wgmma_linear.cuh"): (
        ("every part from the start", "depth = depths * part / parts;", "depth = 0;"),
        ("a part ends early", "depths * (part + 1) / parts;", "depths * (part + 1) / parts - 1;"),
        ("items beside each other", "item += gridDim.x;", "item += 1;"),
        (
            "x from its start",
            "start = {{at.depth * kDepth, 0, 0, 0}};",
            "start = {{0, 0, 0, 0}};",
        ),
        (
            "a stage is full of weights alone",
            "mbarrier_init(ring.full(stage), 2);",
            "mbarrier_init(ring.full(stage), 1);",
        ),
        ("sums of the tile before", "last >= 0 || k > 0", "true"),
        ("columns of k twice", "ring.tile(at.stage) + k * 32;", "ring.tile(at.stage);"),
        (
            "weights copied over what is in use",
            "      mbarrier_wait(ring.empty(at.stage), at.parity ^ 1);\n"
            "      mbarrier_arrive_expecting(full, kBoxes",
            "      mbarrier_arrive_expecting(full, kBoxes",
        ),
        (
            "x copied over what is in use",
            "      mbarrier_wait(ring.empty(at.stage), at.parity ^ 1);\n"
            "      mbarrier_arrive_expecting(ring",
            "      mbarrier_arrive_expecting(ring",
        ),
        (
            "products of what has not come",
            "        mbarrier_wait(ring.full(at.stage), at.parity);\n",
            "",
        ),
        (
            "zeros that the tensor cores do not see",
            "    fence_shared_memory();\n    named",
            "    named",
        ),
        (
            "given back while it is multiplied",
            "        wgmma_wait_for_earlier<1>();\n",
            "        wgmma_wait_for_earlier<2>();\n",
        ),
        (
            "given back before it is multiplied",
            "        mbarrier_wait(ring.full(at.stage), at.parity);\n",
            "        mbarrier_wait(ring.full(at.stage), at.parity);\n        release(at.stage);\n",
        ),
        ("all warps have the first's rows", "threadIdx.x / 32 * 16 + half", "half"),
        ("columns a lane apart", "threadIdx.x % 4 * 2 + i", "threadIdx.x % 4 + i"),
        ("parts in one place", "workspace + (part * static_cast", "workspace + (0 * static_cast"),
        ("columns after the last", "if (column < out_features) *reinterpret", "*reinterpret"),
    ),
}
