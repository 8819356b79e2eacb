"""Bugs to plant in kernels/add.cu and kernels/add.py."""

BUGS = {
    ("add", "add.cu"): (
        ("does not wait for the launch before", "  wait_for_previous_kernel();", "  "),
        ("one vector too many", "index >= elements / kWidth", "index > elements / kWidth"),
        ("a added to itself", "const Vector*>(b)[index]", "const Vector*>(a)[index]"),
        ("elements taken for vectors", "index >= elements / kWidth", "index >= elements"),
        ("the last element of a vector is not added", "k < kWidth; ++k", "k < kWidth - 1; ++k"),
        (
            "an operand is rounded to half first",
            "to_float(left.v[k]) +",
            "__half2float(__float2half_rn(to_float(left.v[k]))) +",
        ),
    ),
    ("add", "add.py"): (
        (
            "grid rounded down: the last vectors are missing",
            "-(-(elements // width) // threads)",
            "max(1, elements // width // threads)",
        ),
    ),
}
