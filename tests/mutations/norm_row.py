"""Bugs to plant in kernels/norm_row.cuh."""

BUGS = {
    ("rms_norm", "norm_row.cuh"): (
        ("no eps", " / size + eps)", " / size)"),
        (
            "eps outside of the root",
            "rsqrtf(block_sum<kThreads>(squares) / size + eps)",
            "rsqrtf(block_sum<kThreads>(squares) / size) + eps",
        ),
        (
            "eps added to the root mean square",
            "rsqrtf(block_sum<kThreads>(squares) / size + eps)",
            "1.0f / (sqrtf(block_sum<kThreads>(squares) / size) + eps)",
        ),
        ("mean over one element fewer", "(squares) / size", "(squares) / max(size - 1, 1)"),
        ("mean over the vectors", "(squares) / size", "(squares) / (size / kWidth)"),
        (
            "rounded before the weight, as Hugging Face does",
            "to_float(held[h].v[k]) * scale *",
            "to_float(from_float<T>(to_float(held[h].v[k]) * scale)) *",
        ),
        ("no weight", " * scale * to_float(gains[h].v[k])", " * scale"),
        ("weight of the thread, not of the vector", "= from[i];", "= from[threadIdx.x];"),
        ("the last vector is left out", "if (i < vectors)", "if (i < vectors - 1)"),
        ("no guard after the row's end", "if (i < vectors) each", "each"),
        (
            "only the first vector of a thread is written",
            "to[i] = result;",
            "if (!h) to[i] = result;",
        ),
        ("only the sum of the own warp", "block_sum<kThreads>(squares)", "lanes_sum<32>(squares)"),
    ),
    ("add_rms_norm", "norm_row.cuh"): (
        (
            "the first vector scaled in place of each",
            "to_float(held[h].v[k]) * scale",
            "to_float(held[0].v[k]) * scale",
        ),
        ("eps added to the row's size", "/ size + eps)", "/ (size + eps))"),
    ),
    ("linear_add_rms_norm", "norm_row.cuh"): (
        ("without eps", " / size + eps)", " / size)"),
        ("no gain", "scale * to_float(gains[h].v[k])", "scale"),
        ("no guard after the row's end", "if (i < vectors) each", "each"),
    ),
}
