"""Bugs to plant in kernels/silu.cuh."""

BUGS = {
    ("silu_and_mul", "silu.cuh"): (
        ("wrong sign in exp", "1.0f + expf(-gate)", "1.0f + expf(gate)"),
        ("wrong sign in the fast exp", "1.0f + __expf(-gate)", "1.0f + __expf(gate)"),
        (
            "overflows for large gates",
            "gate / (1.0f + expf(-gate))",
            "gate * expf(gate) / (1.0f + expf(gate))",
        ),
        (
            "overflows for large gates of 16 bits",
            "__fdividef(gate, 1.0f + __expf(-gate))",
            "__fdividef(gate * __expf(gate), 1.0f + __expf(gate))",
        ),
        ("sigmoid in place of SiLU", "return gate / ", "return 1.0f / "),
        ("sigmoid of 16 bits in place of SiLU", "__fdividef(gate,", "__fdividef(1.0f,"),
    ),
    ("linear_swiglu", "silu.cuh"): (
        ("gate and up swapped", "silu<T>(gate) * up", "silu<T>(up) * gate"),
        ("products not rounded", "gate = to_float(from_float<T>(gate_sum))", "gate = gate_sum"),
    ),
}
