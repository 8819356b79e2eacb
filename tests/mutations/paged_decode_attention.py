"""Bugs to plant in kernels/paged_decode_attention.cu and kernels/paged_decode_attention.py."""

BUGS = {
    ("paged_decode_attention", "paged_decode_attention.cu"): (
        (
            "query heads interleaved over KV heads",
            "((static_cast<long long>(given.row) * kv_heads + kv_head) * group + first_head) *",
            "((static_cast<long long>(given.row) * group + first_head) * kv_heads + kv_head) *",
        ),
        (
            "heads of the next KV head are written",
            "heads = min(kHeads, group - first_head);",
            "heads = kHeads;",
        ),
        ("an empty row divides by zero", "if (given.end == 0)", "if (given.end < 0)"),
        (
            "what is no part is taken",
            "  if (given.row < 0) return;\n\n",
            "\n",
        ),
        (
            "a dead row is left as it was",
            "      out[at + i] = from_float<T>(0.0f);\n",
            "      ;\n",
        ),
        (
            "every block of a dead row writes, batch invariant",
            "    if (blockIdx.y > 0) return;\n",
            "",
        ),
        (
            "only the first head of a dead row is zeroed",
            "i < heads * kHeadDim; i += kThreads) {\n      out",
            "i < kHeadDim; i += kThreads) {\n      out",
        ),
        (
            "a block too few in a row of the table",
            "given.slot) * max_blocks, begin",
            "given.slot) * (max_blocks - 1), begin",
        ),
        (
            "the table of the row, not of its slot",
            "(given.slot) * max_blocks, begin",
            "(given.row) * max_blocks, begin",
        ),
        ("the current token is not seen", "end = given.end;", "end = max(given.end - 1, 1);"),
        ("a token too many is seen", "end = given.end;", "end = given.end + 1;"),
        ("every part begins with the row", "int begin = given.begin,", "int begin = 0,"),
        (
            "every part begins with the row, batch invariant",
            "begin = part * part_units * kUnitTokens",
            "begin = 0 * part_units * kUnitTokens",
        ),
        (
            "the last part goes on after the row's end, batch invariant",
            "end = min(begin + part_units * kUnitTokens, given.end)",
            "end = begin + part_units * kUnitTokens",
        ),
        (
            "a part is as long as it can be, batch invariant",
            "end = min(begin + part_units * kUnitTokens, given.end)",
            "end = given.end",
        ),
        (
            "a row's last part is not computed, batch invariant",
            "(units + part_units - 1) / part_units",
            "max(1, units / part_units)",
        ),
        ("blocks without a part take one, batch invariant", "    if (part >= all) return;\n", ""),
        (
            "a block takes one part, batch invariant",
            "while (kByLength && part < all)",
            "while (false)",
        ),
        ("parts of a row overlap, batch invariant", "part += gridDim.y;", "part += 1;"),
        (
            "rows' results lie over each other, batch invariant",
            "static_cast<long long>(given.row) * max_parts",
            "static_cast<long long>(given.row) * (max_parts / 2)",
        ),
        ("always the first heads of a KV head", "= head_set % sets_of_kv_head * kHeads", "= 0"),
        (
            "KV heads and sets of heads swapped",
            "kv_head = head_set / sets_of_kv_head",
            "kv_head = head_set % kv_heads",
        ),
        (
            "group and KV heads swapped",
            "kv_heads, block_size, scale_log2",
            "group, block_size, scale_log2",
        ),
        (
            "sets of heads rounded down",
            "sets_of_kv_head = (group + kHeads - 1) / kHeads",
            "sets_of_kv_head = max(1, group / kHeads)",
        ),
        ("the part of the block's number", "place = blockIdx.x / head_sets", "place = blockIdx.x"),
        (
            "a part is stored as if it were the row",
            "      if (all == 1) {",
            "      if (part == 0) {",
        ),
        ("a whole row is not stored", "      if (all == 1) {", "      if (false) {"),
        (
            "highest and total swapped",
            "result[kHeadDim] = found.highest",
            "result[kHeadDim] = found.total",
        ),
        (
            "results of heads overlap",
            "min(kHeads, group) + head) * (kHeadDim + 2)",
            "min(kHeads, group) + head) * (kHeadDim + 1)",
        ),
        ("results of sets of heads overlap", "* head_sets + head_set;", "* head_sets;"),
        (
            "results of parts overlap",
            "of_set = (first_place + part) * head_sets",
            "of_set = first_place * head_sets",
        ),
        (
            "a row's results are where its last part is",
            "first_place = place - given.index",
            "first_place = place",
        ),
        ("a row that is not cut is folded", "  if (all == 1) return;\n", ""),
        ("sets of heads have one count", "kv_heads * group + head_set;", "kv_heads * group;"),
        ("rows have one count", "arrivals + static_cast<long long>(given.row) *", "arrivals + 0 *"),
        (
            "all blocks of the grid are waited for, batch invariant",
            "kByLength ? min(static_cast<int>(gridDim.y), all) : all",
            "kByLength ? static_cast<int>(gridDim.y) : all",
        ),
        (
            "a block for each part is waited for, batch invariant",
            "kByLength ? min(static_cast<int>(gridDim.y), all) : all",
            "all",
        ),
        ("the first head's parts for all", "const int head = i / kHeadDim;", "const int head = 0;"),
        ("the first column for all", "kHeadDim, i % kHeadDim, at_part", "kHeadDim, 0, at_part"),
        (
            "heads that are not there are read, pieces",
            "of_lane, lane_row < group);",
            "of_lane, true);",
        ),
        (
            "queries of the first head for all, pieces",
            "block.first_element() + lane_row * Form::kHeadDim",
            "block.first_element() + 0 * lane_row",
        ),
        (
            "queries of the first row for all, pieces",
            "q + block.first_element() +",
            "q + kv_head * group * Form::kHeadDim +",
        ),
        (
            "the table of the row, not of its slot, pieces",
            "(given.slot) * max_blocks,\n      given.begin",
            "(given.row) * max_blocks,\n      given.begin",
        ),
        (
            "every part begins with the row, pieces",
            "      given.begin, given.end,",
            "      0,           given.end,",
        ),
        (
            "a token too many is seen, pieces",
            "      given.begin, given.end,",
            "      given.begin, given.end + 1,",
        ),
        (
            "what is no part is taken, pieces",
            "  if (given.row < 0) return;\n  if (!is_live)",
            "  if (!is_live)",
        ),
        (
            "returns without a wait, pieces",
            "  if (is_live) pieces.begin_copies();\n",
            "  if (given.row < 0) return;\n  if (is_live) pieces.begin_copies();\n",
        ),
        (
            "does not wait, pieces",
            "pieces.begin_copies();\n  wait_for_previous_kernel();\n",
            "pieces.begin_copies();\n",
        ),
        (
            "everything is copied before the wait, pieces",
            "  wait_for_previous_kernel();\n  if (rows <= kEarlyRows) let_next_kernel_start();\n"
            "  if (given.row < 0) return;\n  if (!is_live) {\n    block.store_zeros(out);\n"
            "    return;\n  }\n  pieces.begin_late_copies();\n",
            "  if (is_live) pieces.begin_late_copies();\n  wait_for_previous_kernel();\n"
            "  if (given.row < 0) return;\n  if (!is_live) {\n    block.store_zeros(out);\n"
            "    return;\n  }\n",
        ),
        (
            "a dead row is left as it was, pieces",
            "    block.store_zeros(out);\n",
            "    ;\n",
        ),
        (
            "a cut row is not folded, pieces",
            "  kept.fold_if_last(out, workspace, arrivals);\n",
            "",
        ),
        (
            "nobody keeps the block",
            "  if (threadIdx.x == 0) kept = block;\n",
            "",
        ),
        (
            "only the first head of a cut row",
            "i < heads * kHeadDim; i += kThreads) {\n    const int head",
            "i < kHeadDim; i += kThreads) {\n    const int head",
        ),
    ),
    ("paged_decode_attention", "paged_decode_attention.py"): (
        ("scale not in base 2", "scale * math.log2(math.e)", "scale"),
        (
            "head_dim**-0.5 in place of the scale that is given",
            "scale * math.log2(math.e)",
            'axes["head_dim"] ** -0.5 * math.log2(math.e)',
        ),
        ("shared memory without the padding", "(head_dim + 8) * itemsize", "head_dim * itemsize"),
        ("shared memory of three warps", "stage_bytes = 4 *", "stage_bytes = 3 *"),
        ("shared memory without the barriers", "head_dim * 2 + 8)", "head_dim * 2)"),
        (
            "workspace for a part a row",
            "else most_cut_parts(rows, kv_heads)\n    group",
            "else rows\n    group",
        ),
        (
            "workspace for half the parts, batch invariant",
            "rows * PARTS_OF_ROW if",
            "rows * PARTS_OF_ROW // 2 if",
        ),
        (
            "workspace without the totals",
            '(axes["head_dim"] + 2)\n    of_few',
            'axes["head_dim"]\n    of_few',
        ),
        ("blocks for the rows alone", "parts * sets, share_a_row", "rows * sets, share_a_row"),
    ),
}
