"""Bugs to plant in kernels/rms_norm.cu; what it has in common with others is in norm_row.py."""

BUGS = {
    ("rms_norm", "rms_norm.cu"): (
        ("does not wait for the launch before", "  wait_for_previous_kernel();", "  "),
        (
            "squares in the operands' dtype",
            "squares += value * value;",
            "squares += to_float(from_float<T>(value * value));",
        ),
        (
            "sum in the operands' dtype",
            "squares += value * value;",
            "squares = to_float(from_float<T>(squares + value * value));",
        ),
        (
            "the last vector is not in the sum",
            "for_each(vectors, [&](int h, int) {",
            "for_each(vectors - 1, [&](int h, int) {",
        ),
        (
            "vectors of a thread side by side where they are loaded",
            "row.held[h] = x_row[i];",
            "row.held[h] = x_row[min(static_cast<int>(threadIdx.x) * kHeld + h, vectors - 1)];",
        ),
        (
            "32-bit offset of a row",
            "static_cast<long long>(blockIdx.x) * hidden",
            "blockIdx.x * hidden",
        ),
    ),
}
