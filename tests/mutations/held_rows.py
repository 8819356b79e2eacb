"""Bugs to plant in kernels/held_rows.cuh and kernels/held_rows.py."""

BUGS = {
    ("linear", "held_rows.cuh"): (
        ("held: no wait for the launch before", "    wait_for_previous_kernel();\n", ""),
        (
            "held: weights after the last row are read",
            "return min(unit * kColumns + column, out_features - 1);",
            "return unit * kColumns + column;",
        ),
        ("held: rows of x after the last are read", "min(row, tokens - 1)", "row"),
        (
            "the ring's barriers of another stage",
            "barriers + n % kStages * kBarrierBytes",
            "barriers",
        ),
        (
            "a stage is read before it is there",
            "        mbarrier_wait(barrier_of(n), n / kStages % 2);\n",
            "",
        ),
        ("a copy may come before reads of a stage", "        fence_shared_memory();\n", ""),
        ("the other phase is waited for", "n / kStages % 2", "1 - n / kStages % 2"),
        ("more bytes expected than come", "kColumns * kDepth * 2);", "kColumns * kPitch * 2);"),
        ("rows of the weight too few", "if (lane < kColumns) {", "if (lane < kColumns - 1) {"),
        ("the first stage of a unit again", "+ n % kDepths * kDepth, kDepth", ", kDepth"),
        (
            "the first unit's weights again",
            "weight_row(begin + n / kDepths, lane)",
            "weight_row(begin, lane)",
        ),
        (
            "barriers are used before they are initialised",
            "      mbarrier_init_done();\n    }\n    __syncthreads();\n",
            "      mbarrier_init_done();\n    }\n",
        ),
        ("warps multiply the same k", "warp * kWarpDepth + lane", "lane"),
        ("x of the first stage for all", "i / kSteps * kDepth + i % kSteps", "i % kSteps"),
        (
            "held: a step of a load's elements left out",
            "for (int i = 0; i < 4; i += 2) {",
            "for (int i = 0; i < 2; i += 2) {",
        ),
        (
            "the next step's weights",
            "weights[step % 2][i], weights",
            "weights[(step + 1) % 2][i], weights",
        ),
        ("one chain left out", "to[0] = sums[0][0] + sums[1][0];", "to[0] = sums[0][0];"),
        (
            "stages are filled while others read them",
            "        __syncthreads();  // no warp reads the stage any more, "
            "and the sums are there\n",
            "",
        ),
        ("units share one place", "parts[turn % 2]", "parts[0]"),
        (
            "a warp's sums left out",
            "int w = 1; w < kWarps; ++w) results",
            "int w = 2; w < kWarps; ++w) results",
        ),
        (
            "held: rows after the last are finished",
            "if (!finishes || row >= tokens)",
            "if (!finishes)",
        ),
        ("one warp finishes all units, another begins", "if (!finishes ||", "if (warp != 0 ||"),
        ("stages are never filled again", "if (warp == n % kWarps) fill(n + kStages);", ""),
        ("the last unit of a block left out", "unit < end; ++unit", "unit < end - 1; ++unit"),
    ),
    ("linear", "held_rows.py"): (("blocks without units", "units),\n", "2 * units),\n"),),
}
