"""Bugs to plant in kernels/linear_add_rms_norm.cu."""

BUGS = {
    ("linear_add_rms_norm", "linear_add_rms_norm.cu"): (
        (
            "a part left out",
            "int part = 1; part < kParts; ++part) total",
            "int part = 2; part < kParts; ++part) total",
        ),
        ("no bias", "if (bias != nullptr) total += to_float(bias[i * kWidth + k]);", ""),
        ("the bias of another column", "bias[i * kWidth + k]", "bias[k]"),
        (
            "a product that is not rounded",
            "total = to_float(from_float<T>(total));",
            "",
        ),
        ("no eps", "squares, out_features, eps);", "squares, out_features, 0.0f);"),
        (
            "staged: a part left out",
            "int part = 1; part < kParts; ++part) {",
            "int part = 2; part < kParts; ++part) {",
        ),
        (
            "staged: a missing bias is read",
            "bias != nullptr ? to_float(bias[4 * i + k]) : 0.0f",
            "to_float(bias[4 * i + k])",
        ),
        ("staged: the bias of another column", "bias[4 * i + k]", "bias[k]"),
        ("staged: a product that is not rounded", "to_float(from_float<T>(biased))", "biased"),
        (
            "staged: no eps",
            " / out_features + eps);\n#pragma unroll 1",
            " / out_features);\n#pragma unroll 1",
        ),
        ("staged: no gain", "scale * to_float(factors.v[k])", "scale"),
        ("staged: parts lie a row apart", "static_cast<long long>(gridDim.x) * quads", "quads"),
        (
            "staged: others' copies are read too early",
            "  cp_async_wait<0>();\n  __syncthreads();\n",
            "  cp_async_wait<0>();\n",
        ),
        (
            "staged: copies are read before they have ended",
            "  cp_async_wait<0>();\n  __syncthreads();\n",
            "  __syncthreads();\n",
        ),
        ("staged: the residual of the first row", "residual + row * out_features", "residual"),
        ("staged: not normalised but the residual", "    values[i] = quad;\n", ""),
        (
            "parts lie a row apart",
            "part * part_vectors + first",
            "part * vectors + first",
        ),
        (
            "all parts are the first",
            "const int first_k = blockIdx.y * Stream::kPart;",
            "const int first_k = 0;",
        ),
        ("held parts in one place", "workspace + blockIdx.y * (tokens * columns)", "workspace"),
        (
            "columns after the last are stored",
            "if (output < out_features) sums_of_part",
            "sums_of_part",
        ),
    ),
}
