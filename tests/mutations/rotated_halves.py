"""Bugs to plant in kernels/rotated_halves.cuh."""

BUGS = {
    ("rope_append_attention", "rotated_halves.cuh"): (
        (
            "the sine's sign",
            "from_float<T>(a * cosines[k] - b * sines[k])",
            "from_float<T>(a * cosines[k] + b * sines[k])",
        ),
        (
            "the second half rotated by the rotated first",
            "second.v[k] = from_float<T>(b * cosines[k] + a * sines[k])",
            "second.v[k] = from_float<T>(b * cosines[k] + to_float(first.v[k]) * sines[k])",
        ),
    ),
}
