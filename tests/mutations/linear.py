"""Bugs to plant in kernels/linear.cu and kernels/linear.py."""

BUGS = {
    ("linear", "linear.cu"): (
        (
            "every lane adds the bias",
            "lanes_sum<32>(sums[r][o]);",
            "lanes_sum<32>(\n"
            "          sums[r][o] + (bias == nullptr || first_output + o >= out_features\n"
            "                            ? 0.0f : to_float(bias[first_output + o])));",
        ),
        (
            "rounded before the bias",
            "sum += to_float(bias[output])",
            "sum = to_float(from_float<T>(sum)) + to_float(bias[output])",
        ),
        ("bias of the first column", "bias[output]", "bias[first_output]"),
        ("a missing bias is read", "if (bias != nullptr) sum", "sum"),
        ("rows after the last are stored", " && r < tokens && ", " && "),
        (
            "columns after the last are stored",
            "r < tokens && output < out_features",
            "r < tokens",
        ),
        ("rows after the last are read", "min(r, tokens - 1)", "r"),
        (
            "columns after the last are read",
            "min(first_output + o, out_features - 1)",
            "first_output + o",
        ),
        ("weights after the row's end are read", "if (first + 32 * u < vectors) loaded", "loaded"),
        ("vectors after the row's end are added", "if (first + 32 * u < vectors) {", "{"),
        ("vectors are added several times", "first += 32 * kUnroll", "first += 32"),
        (
            "the last vector is left out",
            "first < vectors; first +=",
            "first < vectors - 1; first +=",
        ),
        (
            "the order of one row differs from that of more",
            "float dot = 0.0f;\n#pragma unroll\n            for (int k = 0; k < kWidth; ++k) {\n"
            "              dot = fmaf(to_float(values.v[k]), to_float(loaded[u][o].v[k]), dot);\n"
            "            }\n            sums[r][o] += dot;",
            "float dot = kRows == 1 ? sums[r][o] : 0.0f;\n"
            "            for (int k = 0; k < kWidth; ++k) {\n"
            "              dot = fmaf(to_float(values.v[k]), to_float(loaded[u][o].v[k]), dot);\n"
            "            }\n            sums[r][o] = kRows == 1 ? dot : sums[r][o] + dot;",
        ),
        (
            "sum in the operands' dtype",
            "sums[r][o] += dot;",
            "sums[r][o] = to_float(from_float<T>(sums[r][o] + dot));",
        ),
        ("the first row in place of each", "values = rows[r][first", "values = rows[0][first"),
        ("columns of a warp not counted", " + warp) * kOutputs;", " + warp);"),
        ("the sum of half a warp", "lanes_sum<32>(sums", "lanes_sum<16>(sums"),
        (
            "the first element of a vector is left out",
            "for (int k = 0; k < kWidth; ++k) {\n              dot",
            "for (int k = kWidth > 1; k < kWidth; ++k) {\n              dot",
        ),
        (
            "out's row stride is x's",
            "static_cast<long long>(r) * out_features",
            "static_cast<long long>(r) * in_features",
        ),
    ),
    ("linear", "linear.py"): (
        (
            "two columns a warp for one row too, in the grid only",
            "outputs_of_block = outputs *",
            "outputs_of_block = 2 *",
        ),
    ),
}
