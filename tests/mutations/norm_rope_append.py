"""Bugs to plant in kernels/norm_rope_append.cu."""

BUGS = {
    ("norm_rope_append", "norm_rope_append.cu"): (
        ("no eps", "tokens, in_features, eps);", "tokens, in_features, 0.0f);"),
        ("the norm's weight is that of the product", "gains, gain, in", "gains, weight, in"),
        (
            "K and V swapped",
            "k_cache, v_cache,  cos_sin",
            "v_cache, k_cache,  cos_sin",
        ),
        ("slots are positions", "positions, slot_mapping,\n", "positions, positions,\n"),
    ),
}
