"""Bugs to plant in kernels/philox.cuh."""

BUGS = {
    ("sample", "philox.cuh"): (
        ("nine rounds", "round < 10", "round < 9"),
        ("the key is not advanced", "    key0 += 0x9E3779B9u;\n", ""),
    ),
}
