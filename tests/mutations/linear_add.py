"""Bugs to plant in kernels/linear_add.cu."""

BUGS = {
    ("linear_add", "linear_add.cu"): (
        (
            "the residual of another half",
            "from_float<T>(before[half][g] + product)",
            "from_float<T>(before[0][g] + product)",
        ),
        ("rounded once", "to_float(from_float<T>(sum))", "sum"),
        (
            "a missing bias is read",
            "(bias != nullptr ? to_float(bias[output]) : 0.0f)",
            "to_float(bias[output])",
        ),
        ("no residual", "from_float<T>(before[half][g] + product)", "from_float<T>(product)"),
        (
            "residuals after the last are read",
            "min(output_of(unit, g, column), out_features - 1)",
            "output_of(unit, g, column)",
        ),
        ("columns after the last are stored", "if (output < out_features) {", "{"),
    ),
}
