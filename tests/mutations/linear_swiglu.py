"""Bugs to plant in kernels/linear_swiglu.cu."""

BUGS = {
    ("linear_swiglu", "linear_swiglu.cu"): (
        (
            "gate and up swapped",
            "from_float<T>(silu<T>(gate) * up);\n      }\n    }\n  };\n  const int units",
            "from_float<T>(silu<T>(up) * gate);\n      }\n    }\n  };\n  const int units",
        ),
        ("products not rounded", "to_float(from_float<T>(sums[g]))", "sums[g]"),
        ("gates in place of what they scale", "gate : inter + gate", "gate : gate"),
        ("gates after the last are stored", "if (output < inter) {", "{"),
        ("gates after the last are stored, wgmma", "if (column < inter) {", "{"),
        ("rows after the last are stored, wgmma", "if (row >= tokens) continue;", ""),
        ("gate and up swapped, wgmma", "return box * inter +", "return (1 - box) * inter +"),
        ("of another column's gate, wgmma", "sums[at + kGates / 2]", "sums[at + kGates / 4]"),
    ),
}
