"""Bugs to plant in kernels/attention_parts.cu, .cuh and kernels/attention_parts.py."""

BUGS = {
    ("attention_parts", "attention_parts.cu"): (
        ("does not wait for the launch before", "  wait_for_previous_kernel();\n", ""),
    ),
    ("attention_parts", "attention_parts.cuh"): (
        (
            "a thread's first row alone is counted",
            "row < rows; row += kThreads) {\n    units",
            "row < min(rows, kThreads); row += kThreads) {\n    units",
        ),
        (
            "no barrier before the sum begins",
            "all_units = 0;\n  __syncthreads();",
            "all_units = 0;",
        ),
        (
            "units are not added up atomically",
            "    atomicAdd(&all_units, static_cast<unsigned long long>(units[row]));\n",
            "    all_units += units[row];\n",
        ),
        ("KV heads are not counted", "all_units * kv_heads + shares - 1", "all_units + shares - 1"),
        (
            "shares are rounded down",
            "(all_units * kv_heads + shares - 1) / shares",
            "all_units * kv_heads / shares",
        ),
        (
            "rows of no more than a part, or two, are cut",
            "units > whole ? (units",
            "units >= whole ? (units",
        ),
        (
            "parts are as long as whole rows may be",
            "largest = share_of(part_shares)",
            "largest = longest",
        ),
        (
            "rows of more than a part are whole where multiprocessors get one",
            "lone_blocks > 0 ? size : 2 * size",
            "2 * size",
        ),
        (
            "rows of no more than two parts are cut where multiprocessors get two",
            "lone_blocks > 0 ? size : 2 * size",
            "size",
        ),
        (
            "where multiprocessors get a part each, it is not the smallest",
            "atomicMin(&size, tried)",
            "atomicMin(&size, tried + 1)",
        ),
        (
            "smaller parts than there is room for",
            "if (found * kv_heads <= lone_blocks)",
            "if (found <= lone_blocks)",
        ),
        (
            "one block less than there is room for",
            "if (found * kv_heads <= lone_blocks)",
            "if (found * kv_heads < lone_blocks)",
        ),
        (
            "no size is smaller than a share of all",
            "tried = share_of(lone_blocks) + thread",
            "tried = share_of(lone_blocks) + 1 + thread",
        ),
        (
            "no barrier before the smallest size is known",
            "atomicMin(&size, tried);\n    }\n    __syncthreads();\n",
            "atomicMin(&size, tried);\n    }\n",
        ),
        ("a part too few", "(units + size - 1) / size", "units / size"),
        ("short rows come first", "units[other] > units[row] ||", "units[other] < units[row] ||"),
        ("equal rows have one rank", " || (units[other] == units[row] && other < row);", ";"),
        ("equal rows in the other order", "other < row);", "other > row);"),
        (
            "a row too few for each lane",
            "of_lane = (rows + 31) / 32",
            "of_lane = max(1, rows / 32)",
        ),
        ("a step of the sums is missing", "offset = 1; offset < 32", "offset = 1; offset < 16"),
        (
            "the first lanes add what is not there",
            "if (lane >= offset) before",
            "if (lane >= 0) before",
        ),
        ("the first lane's parts are all", "if (lane == 31) used", "if (lane == 0) used"),
        ("a lane's own parts come before it", "    before -= own;\n", ""),
        ("the second rank of a lane where the first is", "      before += count;\n", ""),
        ("places of rows, not of ranks", "list[places[ranks[row]] + i]", "list[places[row] + i]"),
        ("the row is its slot", "Part{row, slot,", "Part{row, row,"),
        (
            "parts overlap by a unit",
            "begin = own_units * i / count",
            "begin = max(own_units * i / count - 1, 0)",
        ),
        (
            "the last part is of whole units",
            "end = min(own_units * (i + 1) / count * kUnitTokens, length)",
            "end = own_units * (i + 1) / count * kUnitTokens",
        ),
        (
            "parts beyond a warp's lanes are left out",
            "i < count; i += 32",
            "i < min(count, 32); i += 32",
        ),
        ("what is left over is not marked", "list[i] = Part{-1,", "list[i] = Part{0,"),
        ("counts begin with 1", "arrivals[i] = 0;", "arrivals[i] = 1;"),
        ("counts of KV heads alone", "i < rows * heads; i", "i < rows * kv_heads; i"),
    ),
    ("attention_parts", "attention_parts.py"): (
        ("shared memory for two numbers a row", "3 * 4 * rows", "2 * 4 * rows"),
        ("parts for the rows alone", "rows, rows + BLOCKS, heads", "rows, rows, heads"),
    ),
}
