"""Bugs to plant in kernels/stream_linear.cuh and kernels/stream_linear.py."""

BUGS = {
    ("linear", "stream_linear.cuh"): (
        (
            "weights after the last row are read",
            "return min(unit * kColumns + column, out_features - 1);",
            "return unit * kColumns + column;",
        ),
        (
            "teams of a launch counted as blocks",
            "const int teams = gridDim.x * kRowTeams, own_team = blockIdx.x * kRowTeams + team;",
            "const int teams = gridDim.x, own_team = blockIdx.x;",
        ),
        ("no wait for the launch before", "    wait_for_previous_kernel();\n", ""),
        ("the last unit of a team left out", "unit < end; first +=", "unit < end - 1; first +="),
        ("parts overlap", "part * steps * kStep + lane", "part * kStep + lane"),
        ("pieces overlap", "first_k + piece * kSegment;\n#pragma", "first_k;\n#pragma"),
        (
            "one piece of x for all",
            "row * in_features + first_k + piece * kSegment;",
            "row * in_features + first_k;",
        ),
        ("rows of x after the last are read", "min(own_row(half), tokens - 1)", "own_row(half)"),
        (
            "the second half of a fragment's rows is empty",
            "half == 0 || both",
            "half == 0",
        ),
        (
            "the second half is taken for empty a row too early",
            "both = tokens > 8 / kSegments",
            "both = tokens > 8 / kSegments + 1",
        ),
        (
            "a step of a load's elements left out",
            "for (int i = 0; i < 4; i += 2) {\n              const unsigned b",
            "for (int i = 0; i < 2; i += 2) {\n              const unsigned b",
        ),
        ("the next unit's weights come too late", "go_to(unit + 1);", "go_to(unit);"),
        (
            "weights of the same step again",
            "next[g] += kAhead * kStep;",
            "next[g] += 0;",
        ),
        ("rows after the last are finished", "if (own_row(half) < tokens) {\n", "{\n"),
        (
            "the other column's piece",
            "piece == left_piece ? left : piece == left_piece + 1 ? right : 0.0f",
            "piece == left_piece ? right : piece == left_piece + 1 ? left : 0.0f",
        ),
        (
            "pieces of a lane's own columns alone",
            "kSegments == 4 ? 13 : 4;",
            "kSegments == 4 ? 9 : 4;",
        ),
        (
            "a part left out",
            "int other = 1; other < kDepthWarps",
            "int other = 2; other < kDepthWarps",
        ),
        (
            "turns share one place",
            "add_parts(sums, has_sums, part, turn % 2)",
            "add_parts(sums, has_sums, part, 0)",
        ),
    ),
    ("linear", "stream_linear.py"): (
        ("too many pieces for three rows", "8 if tokens <= 2 else", "8 if tokens <= 3 else"),
        ("loads ahead that do not divide the row", "if steps % n == 0)", "if steps >= n)"),
    ),
    ("linear_swiglu", "stream_linear.cuh"): (
        ("the first fragment's sums for all", "results[half / 2][g]", "results[0][g]"),
        (
            "rows of the first fragment alone",
            "(lane / 4 + 8 * half) /",
            "(lane / 4 + 8 * (half % 2)) /",
        ),
    ),
    ("norm_linear", "stream_linear.cuh"): (
        ("no eps", "rsqrtf(total / in_features + eps)", "rsqrtf(total / in_features)"),
        (
            "the sum of squares, not their mean",
            "rsqrtf(total / in_features + eps)",
            "rsqrtf(total + eps)",
        ),
        (
            "a warp's squares left out",
            "int w = 0; w < kWarps; ++w) total",
            "int w = 1; w < kWarps; ++w) total",
        ),
        ("the first row's squares for all", "total += partial[row][w]", "total += partial[0][w]"),
        ("no gain", "scale * to_float(gains[h].v[k]));", "scale);"),
        (
            "rows are read before all have been normalised",
            "        }\n      }\n    }\n    __syncthreads();\n  }\n\n private:",
            "        }\n      }\n    }\n  }\n\n private:",
        ),
        (
            "squares are read before all are there",
            "if (lane == 0) partial[row][warp] = squares;\n    }\n    __syncthreads();",
            "if (lane == 0) partial[row][warp] = squares;\n    }",
        ),
        (
            "copies are read before they have ended",
            "    cp_async_wait<0>();  // a thread reads what it has copied itself\n",
            "",
        ),
    ),
}
