"""Bugs to plant in kernels/attend_row.cuh."""

BUGS = {
    ("paged_decode_attention", "attend_row.cuh"): (
        (
            "a unit of tokens is left out",
            "(max(length, 1) + kUnitTokens - 1) / kUnitTokens",
            "max(1, length / kUnitTokens)",
        ),
        ("an empty row has no unit", "(max(length, 1) +", "(max(length, 0) +"),
        (
            "more parts than the workspace has room for",
            "(units + max_parts - 1) / max_parts",
            "units / max_parts",
        ),
        (
            "parts of the least size",
            "max(min_units, (units + max_parts - 1) / max_parts)",
            "min_units",
        ),
    ),
}
