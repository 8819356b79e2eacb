"""Bugs to plant in kernels/swiglu_columns.cuh."""

BUGS = {
    ("linear_swiglu", "swiglu_columns.cuh"): (
        ("gates in place of what they scale", "gate : inter + gate", "gate : gate"),
        (
            "gates after the last are read",
            "min(unit * kGates + column % kGates, inter - 1)",
            "unit * kGates + column % kGates",
        ),
        ("gates after the last are stored", "if (output < inter) {", "{"),
    ),
}
