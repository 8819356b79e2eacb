"""Bugs to plant in kernels/loop_control.cu."""

BUGS = {
    ("loop_control", "loop_control.cu"): (
        ("one row of many is not seen", "row += blockDim.x", "row += rows"),
        ("the first rows only", "row < rows;", "row < rows && row < 256;"),
        ("the loop ends while a row lives", "if (any_live && ", "if (!any_live && "),
        ("dead rows are repeated", "any_live && !all_made", "!all_made"),
        ("one step too many", "made >= static_cast<unsigned>", "made > static_cast<unsigned>"),
        ("the number of steps is no limit", "any_live && !all_made &&", "any_live &&"),
        ("the host's word is not heard", " && is_before(stop, first_step)", ""),
        ("the loop's own number is not enough", "is_before(stop, ", "is_before(stop - 1, "),
        ("steps made are one short", "first + 1u", "first"),
        ("a step is made before the first", "begins != 0 ? 0u : ", ""),
        ("made and first swapped", "(first) << 32 | made", "(made) << 32 | first"),
        ("the end is always in one place", "[first % ring_steps]", "[0]"),
        ("only one thread looks", "__syncthreads_or(live) != 0", "live"),
        (
            "every thread tells the end",
            "if (threadIdx.x != 0) return;",
            "if (threadIdx.x != 1) return;",
        ),
    ),
}
