"""Bugs to plant in kernels/apply_changes.cu."""

BUGS = {
    ("apply_changes", "apply_changes.cu"): (
        ("does not wait for the launch before", "  wait_for_previous_kernel();", "  "),
        ("word 0 never changes", "change.v[0] >= 0", "change.v[0] > 0"),
        ("no change is taken for one", "if (change.v[0] >= 0) words", "words"),
        (
            "index and value swapped",
            "words[change.v[0]] = change.v[1]",
            "words[change.v[1]] = change.v[0]",
        ),
        (
            "the last change is left out",
            "if (i >= num_changes ||",
            "if (i >= num_changes - 1 ||",
        ),
        ("no guard after the last change", "if (i >= num_changes ||", "if ("),
        ("every step applies the changes", " || !is_before(step[0], launch[0])", ""),
        ("no step applies the changes", "!is_before(step[0]", "is_before(step[0]"),
        ("the second step applies them", "is_before(step[0], ", "is_before(step[0] - 1, "),
        (
            "every block does the first changes",
            "blockIdx.x * blockDim.x + threadIdx.x",
            "threadIdx.x",
        ),
    ),
}
