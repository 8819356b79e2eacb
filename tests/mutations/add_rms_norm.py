"""Bugs to plant in kernels/add_rms_norm.cu and kernels/add_rms_norm.py."""

BUGS = {
    ("add_rms_norm", "add_rms_norm.cu"): (
        ("does not wait for the launch before", "  wait_for_previous_kernel();", "  "),
        (
            "the unrounded sum is squared",
            "held[h].v[k] = from_float<T>(to_float(held[h].v[k]) + to_float(right[h].v[k]));\n"
            "        const float value = to_float(held[h].v[k]);",
            "const float value = to_float(held[h].v[k]) + to_float(right[h].v[k]);\n"
            "        held[h].v[k] = from_float<T>(value);",
        ),
        (
            "sum stored at the thread's first vector",
            "sum_row[i] = held[h]",
            "sum_row[threadIdx.x] = held[h]",
        ),
        (
            "the first vector scaled in place of each",
            "to_float(held[h].v[k]) * scale",
            "to_float(held[0].v[k]) * scale",
        ),
        ("eps added to hidden", "/ hidden + eps)", "/ (hidden + eps))"),
        ("b left out", " + to_float(right[h].v[k]))", ")"),
        ("sum and out swapped", "      sum_row[i] = held[h];\n", "      out_row[i] = held[h];\n"),
        (
            "no guard after the row's end",
            "    if (i < vectors) {\n      held[h] = a_row[i];",
            "    {\n      held[h] = a_row[i];",
        ),
        (
            "vectors of a thread side by side",
            "    const int i = h * kThreads + threadIdx.x;\n"
            "    if (i < vectors) {\n"
            "      Vector result",
            "    const int i = threadIdx.x * kHeld + h;\n"
            "    if (i < vectors) {\n"
            "      Vector result",
        ),
    ),
    ("add_rms_norm", "add_rms_norm.py"): (
        (
            "blocks of another size than rms_norm's, so another order",
            "threads, held = row_shape(hidden // width)",
            "threads, held = 64, -(-(hidden // width) // 64)",
        ),
    ),
}
