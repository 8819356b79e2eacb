"""Bugs to plant in kernels/launch_shapes.py."""

BUGS = {
    ("rms_norm", "launch_shapes.py"): (
        (
            "a vector too few held by a thread",
            "return threads, -(-vectors // threads)",
            "return threads, max(1, vectors // threads)",
        ),
    ),
}
