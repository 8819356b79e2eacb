"""Bugs to plant in kernels/norm_rope_append.cu."""

BUGS = {
    ("norm_rope_append", "norm_rope_append.cu"): (
        ("no eps", "tokens, in_features, eps);", "tokens, in_features, 0.0f);"),
        ("the norm's weight is that of the product", "gains, gain, in", "gains, weight, in"),
        ("K and V swapped", "q, k_cache, v_cache, x,", "q, v_cache, k_cache, x,"),
        ("slots are positions", "x, positions, slot_mapping, w", "x, positions, positions, w"),
    ),
}
