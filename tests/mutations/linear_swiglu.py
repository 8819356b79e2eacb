"""Bugs to plant in kernels/linear_swiglu.cu."""

BUGS = {
    ("linear_swiglu", "linear_swiglu.cu"): (
        ("gates after the last are stored, wgmma", "if (column < inter) {", "{"),
        ("rows after the last are stored, wgmma", "if (row >= tokens) continue;", ""),
        ("gate and up swapped, wgmma", "return box * inter +", "return (1 - box) * inter +"),
        ("of another column's gate, wgmma", "sums[at + kGates / 2]", "sums[at + kGates / 4]"),
    ),
}
