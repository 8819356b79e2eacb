"""Bugs to plant in kernels/linear_swiglu.cu."""

BUGS = {
    ("linear_swiglu", "linear_swiglu.cu"): (
        ("gates after the last are stored, wgmma", "if (column < inter) {", "{"),
        ("rows after the last are stored, wgmma", "if (row >= tokens) continue;", ""),
        ("gate and up swapped, wgmma", "return box * inter +", "return (1 - box) * inter +"),
        ("of another column's gate, wgmma", "first + i + kGates / 2]", "first + i + kGates / 4]"),
        ("many rows: rows after the last", "row < tokens && column < inter", "column < inter"),
        ("many rows: gates after the last", "row < tokens && column < inter", "row < tokens"),
        ("many rows: columns of odd lanes", "(odd ? 6 : 0)", "(odd ? 2 : 0)"),
        (
            "many rows: neighbours give what they keep",
            "odd ? results[0] : results[1], 1)",
            "odd ? results[1] : results[0], 1)",
        ),
        (
            "many rows: gates scale gates",
            "{first_gate, inter + first_gate}",
            "{first_gate, first_gate}",
        ),
    ),
}
