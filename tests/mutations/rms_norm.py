"""Bugs to plant in kernels/rms_norm.cu."""

BUGS = {
    ("rms_norm", "rms_norm.cu"): (
        ("does not wait for the launch before", "  wait_for_previous_kernel();", "  "),
        ("no eps", " / hidden + eps)", " / hidden)"),
        (
            "eps outside of the root",
            "rsqrtf(block_sum<kThreads>(sum) / hidden + eps)",
            "rsqrtf(block_sum<kThreads>(sum) / hidden) + eps",
        ),
        (
            "eps added to the root mean square",
            "rsqrtf(block_sum<kThreads>(sum) / hidden + eps)",
            "1.0f / (sqrtf(block_sum<kThreads>(sum) / hidden) + eps)",
        ),
        ("mean over one element fewer", "(sum) / hidden", "(sum) / max(hidden - 1, 1)"),
        ("mean over the vectors", "(sum) / hidden", "(sum) / vectors"),
        (
            "rounded before the weight, as Hugging Face does",
            "to_float(held[h].v[k]) * scale *",
            "to_float(from_float<T>(to_float(held[h].v[k]) * scale)) *",
        ),
        (
            "squares in the operands' dtype",
            "sum += value * value;",
            "sum += to_float(from_float<T>(value * value));",
        ),
        (
            "sum in the operands' dtype",
            "sum += value * value;",
            "sum = to_float(from_float<T>(sum + value * value));",
        ),
        ("weight of the thread, not of the vector", "weights[i]", "weights[threadIdx.x]"),
        (
            "the last vector is not in the sum",
            "if (h * kThreads + threadIdx.x < vectors)",
            "if (h * kThreads + threadIdx.x < vectors - 1)",
        ),
        (
            "only the first vector of a thread is written",
            "if (i < vectors) {\n      Vector result;",
            "if (i < vectors && h == 0) {\n      Vector result;",
        ),
        (
            "vectors of a thread side by side where they are loaded",
            "const int i = h * kThreads + threadIdx.x;\n    if (i < vectors) held[h]",
            "const int i = threadIdx.x * kHeld + h;\n    if (i < vectors) held[h]",
        ),
        (
            "32-bit offset of a row",
            "static_cast<long long>(blockIdx.x) * hidden",
            "blockIdx.x * hidden",
        ),
        ("only the sum of the own warp", "block_sum<kThreads>(sum)", "lanes_sum<32>(sum)"),
    ),
}
