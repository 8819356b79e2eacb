"""Bugs to plant in kernels/silu_and_mul.cu."""

BUGS = {
    ("silu_and_mul", "silu_and_mul.cu"): (
        ("does not wait for the launch before", "  wait_for_previous_kernel();", "  "),
        (
            "gate and up swapped",
            "gates = x_row[column], ups = x_row[vectors + column]",
            "ups = x_row[column], gates = x_row[vectors + column]",
        ),
        (
            "gate and up interleaved",
            "gates = x_row[column], ups = x_row[vectors + column]",
            "gates = x_row[2 * column], ups = x_row[2 * column + 1]",
        ),
        ("rows of half the length", "+ 2 * row * vectors", "+ row * vectors"),
        (
            "rounded before the product",
            "silu<T>(to_float(gates.v[k])) *",
            "to_float(from_float<T>(silu<T>(to_float(gates.v[k])))) *",
        ),
        ("no guard after the row's end", "if (column >= vectors) return;", ""),
        ("the block's part of a row ignored", "blockIdx.y * kThreads + threadIdx.x", "threadIdx.x"),
    ),
}
