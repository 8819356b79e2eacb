"""Bugs to plant in kernels/add_rms_norm.cu and kernels/add_rms_norm.py."""

BUGS = {
    ("add_rms_norm", "add_rms_norm.cu"): (
        ("does not wait for the launch before", "  wait_for_previous_kernel();", "  "),
        (
            "the unrounded sum is squared",
            "held.v[k] = from_float<T>(to_float(held.v[k]) + to_float(right[h].v[k]));\n"
            "      const float value = to_float(held.v[k]);",
            "const float value = to_float(held.v[k]) + to_float(right[h].v[k]);\n"
            "      held.v[k] = from_float<T>(value);",
        ),
        (
            "sum stored at the thread's first vector",
            "sum_row[i] = held",
            "sum_row[threadIdx.x] = held",
        ),
        ("b left out", " + to_float(right[h].v[k]))", ")"),
        ("sum and out swapped", "(sum + first);", "(out + first);"),
        (
            "one vector too many is loaded",
            "for_each(vectors, [&](int h, int i) {\n    row.held[h]",
            "for_each(vectors + 1, [&](int h, int i) {\n    row.held[h]",
        ),
        (
            "vectors of a thread side by side",
            "row.held[h] = a_row[i];",
            "row.held[h] = a_row[min(static_cast<int>(threadIdx.x) * kHeld + h, vectors - 1)];",
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
