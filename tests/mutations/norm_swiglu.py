"""Bugs to plant in kernels/norm_swiglu.cu."""

BUGS = {
    ("norm_swiglu", "norm_swiglu.cu"): (
        (
            "gate and up swapped",
            "from_float<T>(silu<T>(gate) * up);\n      }\n    }\n  };\n  const int units",
            "from_float<T>(silu<T>(up) * gate);\n      }\n    }\n  };\n  const int units",
        ),
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
