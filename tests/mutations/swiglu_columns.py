"""Bugs to plant in kernels/swiglu_columns.cuh."""

BUGS = {
    ("linear_swiglu", "swiglu_columns.cuh"): (
        ("gate and up swapped", "silu<T>(gate) * up", "silu<T>(up) * gate"),
        ("products not rounded", "to_float(from_float<T>(sums[g]))", "sums[g]"),
        ("gates in place of what they scale", "gate : inter + gate", "gate : gate"),
        (
            "gates after the last are read",
            "min(unit * kGates + column % kGates, inter - 1)",
            "unit * kGates + column % kGates",
        ),
        ("gates after the last are stored", "if (output < inter) {", "{"),
    ),
}
