"""Bugs to plant in kernels/online_softmax.cuh."""

BUGS = {
    ("paged_decode_attention", "online_softmax.cuh"): (
        ("0 as the identity of the maximum, fold", "kLowest = -3.402823466e38f", "kLowest = 0.0f"),
        (
            "the smallest positive float as the lowest, fold",
            "kLowest = -3.402823466e38f",
            "kLowest = 1.175494351e-38f",
        ),
        (
            "sums so far are not rescaled, fold",
            "__fmul_rn(all.sum, keep)",
            "all.sum",
        ),
        (
            "totals so far are not rescaled, fold",
            "__fmul_rn(all.total, keep)",
            "all.total",
        ),
        ("what is added is not rescaled, fold", "fmaf(next.sum, scale,", "fmaf(next.sum, 1.0f,"),
        (
            "the total that is added is not rescaled, fold",
            "fmaf(next.total, scale,",
            "fmaf(next.total, 1.0f,",
        ),
        ("the new maximum is not kept, fold", "  all.highest = best;\n", ""),
        (
            "the last total in place of the sum, fold",
            "fmaf(next.total, scale, __fmul_rn(all.total, keep))",
            "next.total",
        ),
        ("the first warp's sums for all", "sums[w * kPitch +", "sums["),
        (
            "the last warp's maximum is not taken",
            "w < kWarps; ++w) all.highest",
            "w < kWarps - 1; ++w) all.highest",
        ),
        ("the last warp is not merged", "w < kWarps; ++w) {", "w < kWarps - 1; ++w) {"),
        ("warps are not rescaled in the merge", "fmaf(sum, scale, all.sum)", "all.sum + sum"),
        (
            "divides by the last warp's total",
            "fmaf(totals[w][head], scale, all.total)",
            "totals[w][head] * scale",
        ),
    ),
}
