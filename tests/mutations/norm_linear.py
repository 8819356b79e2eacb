"""Bugs to plant in kernels/norm_linear.cu."""

BUGS = {
    ("norm_linear", "norm_linear.cu"): (
        ("no bias", "sums[g] + (bias != nullptr ? to_float(bias[output]) : 0.0f)", "sums[g]"),
        ("columns after the last are stored", "if (output < out_features) {", "{"),
        (
            "out's row stride is x's",
            "static_cast<long long>(row) * out_features",
            "static_cast<long long>(row) * in_features",
        ),
    ),
}
