"""Bugs to plant in kernels/step_numbers.cuh."""

BUGS = {
    ("apply_changes", "step_numbers.cuh"): (
        ("numbers do not wrap", "return static_cast<int>(", "return a < b && static_cast<int>("),
        (
            "a step is before itself",
            "static_cast<unsigned>(b)) < 0",
            "static_cast<unsigned>(b)) <= 0",
        ),
    ),
    ("decode_rows", "step_numbers.cuh"): (
        ("a gap is not jumped", "is_before(next, first) ? first : next", "next"),
        ("a launch begins anew", "is_before(next, first) ? first : next", "first"),
        ("the number stays", "static_cast<unsigned>(step) + 1u", "static_cast<unsigned>(step)"),
    ),
}
