"""Bugs to plant in kernels/rope_append_attention.cu and .py."""

_WAIT = "  wait_for_previous_kernel();\n"
_TRIGGER = "  if (rows <= kEarlyRows) let_next_kernel_start();\n"

BUGS = {
    ("rope_append_attention", "rope_append_attention.cu"): (
        (
            "queries of the first KV head for all",
            "row_of(qkv) + kv_head * group * kHeadDim",
            "row_of(qkv) + 0 * group * kHeadDim",
        ),
        (
            "the key of the first KV head for all",
            "(kv_heads * group + kv_head) * kHeadDim",
            "(kv_heads * group) * kHeadDim",
        ),
        ("the key for the value", "return key(qkv) + kv_heads * kHeadDim;", "return key(qkv);"),
        (
            "rows without their values",
            "* kv_heads * (group + 2) * kHeadDim",
            "* kv_heads * (group + 1) * kHeadDim",
        ),
        (
            "the first row for all",
            "qkv + static_cast<long long>(given.row) *",
            "qkv + static_cast<long long>(0) *",
        ),
        (
            "the KV head is left out of a slot",
            "static_cast<long long>(slot / block_size) * kv_heads + kv_head;",
            "static_cast<long long>(slot / block_size) * kv_heads;",
        ),
        (
            "32-bit offset of a slot in the cache",
            "const long long head = static_cast<long long>(slot / block_size) * kv_heads",
            "const int head = slot / block_size * kv_heads",
        ),
        (
            "the place in a block is left out of a slot",
            "(head * block_size + slot % block_size)",
            "(head * block_size)",
        ),
        ("every part of a row appends", "given.index == given.parts - 1; }", "given.index >= 0; }"),
        ("the first part appends", "given.index == given.parts - 1; }", "given.index == 0; }"),
        ("nobody appends", "given.index == given.parts - 1; }", "given.index < 0; }"),
        (
            "does not wait, any architecture",
            f"{_WAIT}{_TRIGGER}  const int place",
            "  const int place",
        ),
        (
            "what is no part is taken, any architecture",
            "  if (given.row < 0) return;\n  const AppendingBlock",
            "  const AppendingBlock",
        ),
        (
            "the slot is taken for the row's, any architecture",
            "slot_mapping[given.row]",
            "slot_mapping[given.slot]",
        ),
        (
            "angles of the first position, any architecture",
            "positions[given.row]) * kHeadDim",
            "0) * kHeadDim",
        ),
        (
            "no value is appended, any architecture",
            "block.appends() ? group + 2 : group;",
            "block.appends() ? group + 1 : group;",
        ),
        ("the value is rotated, any architecture", "if (head <= group) halves", "halves"),
        (
            "the key is not rotated, any architecture",
            "if (head <= group) halves",
            "if (head < group) halves",
        ),
        (
            "the key goes where values are, any architecture",
            "to = k_cache + in_cache;",
            "to = v_cache + in_cache;",
        ),
        (
            "no barrier before queries and keys are read",
            "  __syncthreads();\n\n  const auto store",
            "  const auto store",
        ),
        (
            "the table of the row, any architecture",
            "      block_tables + static_cast<long long>(given.slot)",
            "      block_tables + static_cast<long long>(given.row)",
        ),
        (
            "does not wait, sm_90a",
            f"{_WAIT}{_TRIGGER}  if (given.row",
            "  if (given.row",
        ),
        (
            "lets the next start before its wait",
            f"{_WAIT}{_TRIGGER}  if (given.row",
            f"{_TRIGGER}{_WAIT}  if (given.row",
        ),
        (
            "angles of the first position, sm_90a",
            "cos_sin + position * kHeadDim",
            "cos_sin + 0 * position",
        ),
        ("cosines for sines", "angles[kHeadDim / 8 + at + k / 4]", "angles[at + k / 4]"),
        (
            "angles of the first vectors for all",
            "(j * 4 + threadIdx.x % 4) * 2",
            "(threadIdx.x % 4) * 2",
        ),
        (
            "halves of a head of 64 in place of 128",
            "head[j + kHalf], sizeof(Vector));\n      halves",
            "head[j ^ 1], sizeof(Vector));\n      halves",
        ),
        (
            "the first query head for all",
            "block.queries(qkv) + lane_row * kHeadDim",
            "block.queries(qkv)",
        ),
        (
            "heads that are not there are read",
            "lane_row * kHeadDim, lane_row < group)",
            "lane_row * kHeadDim, true)",
        ),
        (
            "returns without a wait",
            "  int next_row = kLone ?",
            "  if (given.row < 0) return;\n  int next_row = kLone ?",
        ),
        (
            "a dead row's position is used",
            "    if (given.row < 0 || given.end == 0) return;\n",
            "    if (given.row < 0) return;\n",
        ),
        (
            "what is no part is taken, sm_90a",
            "  if (given.row < 0) return;\n  while",
            "  while",
        ),
        ("queries are not rotated, sm_90a", "      rotate(queries);\n", ""),
        (
            "the value goes where keys are",
            "T* cache = lane_row == 0 ? k_cache : v_cache;",
            "T* cache = k_cache;",
        ),
        (
            "no barrier before lanes read what others append",
            "          }\n        }\n        __syncwarp();\n      }\n      rotate",
            "          }\n        }\n      }\n      rotate",
        ),
        (
            "a block takes one part",
            "    if (!kLone || next_row < 0) return;\n",
            "    return;\n",
        ),
        ("every block takes all later parts", "stride = gridDim.x / kv_heads", "stride = 1"),
        ("the first part again and again", "    place += stride;\n", ""),
        (
            "every warp appends",
            "if (block.appends() && pieces.has_last()) {",
            "if (block.appends()) {",
        ),
        ("the key is not rotated, sm_90a", "    if (lane_row == 0) rotate(head);\n", ""),
        (
            "the value is rotated, sm_90a",
            "    if (lane_row == 0) rotate(head);\n",
            "    rotate(head);\n",
        ),
        ("all lanes append", "    if (lane_row < 2) {\n", "    {\n"),
        (
            "key and value in one place of shared memory",
            "newest + lane_row * kHeadDim",
            "newest + 0 * lane_row",
        ),
        (
            "the key is not stored for attention",
            "to_cache[vector] = to_own[vector] = head[j];",
            "to_cache[vector] = head[j];",
        ),
        (
            "nothing is stored in the cache",
            "to_cache[vector] = to_own[vector] = head[j];",
            "to_own[vector] = head[j];",
        ),
        (
            "the row's last token is read in the cache",
            "block.appends() ? newest : nullptr};",
            "nullptr};",
        ),
        (
            "a token is left out at the end of each part",
            "block.appends() ? newest : nullptr};",
            "newest};",
        ),
    ),
    ("rope_append_attention", "rope_append_attention.py"): (
        (
            "as many parts as rows, where blocks take several",
            "np.int32(places), *head_scalars",
            "np.int32(rows), *head_scalars",
        ),
        (
            "blocks for the rows alone",
            "(most_parts(rows, kv_heads) * kv_heads, 1, 1)",
            "(rows * kv_heads, 1, 1)",
        ),
        ("workspace without the totals", '(axes["head_dim"] + 2)', 'axes["head_dim"]'),
        ("workspace for one query head", 'q_size // axes["head_dim"] *', 'axes["kv_heads"] *'),
        (
            "shared memory without the barriers",
            "shared_bytes=form.shared_bytes,",
            "shared_bytes=form.shared_bytes // 256 * 256,",
        ),
    ),
}
