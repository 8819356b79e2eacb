"""Bugs to plant in kernels/norm_swiglu.cu."""

BUGS = {
    ("norm_swiglu", "norm_swiglu.cu"): (
        ("no eps", "tokens, in_features, eps);", "tokens, in_features, 0.0f);"),
        ("the norm's weight is that of the product", "gains, gain, in", "gains, weight, in"),
        (
            "as many gates as in_features",
            "tokens, in_features, inter, load",
            "tokens, in_features, in_features, load",
        ),
    ),
}
