"""Bugs to plant in kernels/linear_stream.cuh."""

BUGS = {
    ("linear", "linear_stream.cuh"): (
        ("the bias of a unit's first column", "bias[first + place]", "bias[first]"),
        (
            "columns after the last are stored by a unit",
            "if (place < out_features - first) {",
            "{",
        ),
        ("units too few", "(out_features + Stream::kColumns - 1) /", "out_features /"),
    ),
}
