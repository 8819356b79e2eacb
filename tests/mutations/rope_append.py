"""Bugs to plant in kernels/rope_append.cu and kernels/rope_append.py."""

BUGS = {
    ("rope_append", "rope_append.cu"): (
        ("does not wait for the launch before", "  wait_for_previous_kernel();", "  "),
        (
            "cosines and sines swapped",
            "cosines = angles[column], sines = angles[column + half]",
            "sines = angles[column], cosines = angles[column + half]",
        ),
        (
            "rotated the other way",
            "x * cosines.v[k] - y * sines.v[k]);\n"
            "        second.v[k] = from_float<T>(y * cosines.v[k] + x",
            "x * cosines.v[k] + y * sines.v[k]);\n"
            "        second.v[k] = from_float<T>(y * cosines.v[k] - x",
        ),
        (
            "the second half reads the rotated first one",
            "y * cosines.v[k] + x * sines",
            "y * cosines.v[k] + to_float(first.v[k]) * sines",
        ),
        (
            "pairs are neighbours, as in GPT-J",
            "a[u] = source[head * 2 * half];\n      b[u] = source[head * 2 * half + half];",
            "a[u] = source[head * 2 * half + column];\n"
            "      b[u] = source[head * 2 * half + column + 1];",
        ),
        ("v is rotated too", "if (is_rotated) {", "{"),
        (
            "k is not rotated",
            "is_rotated = head < heads + kv_heads;",
            "is_rotated = head < heads;",
        ),
        (
            "k and v stored in each other's cache",
            "is_rotated ? k_cache : v_cache",
            "is_rotated ? v_cache : k_cache",
        ),
        ("k and v of a dead row are stored", "    return;\n  }\n\n", "  }\n\n"),
        (
            "q of a dead row is left as it was",
            "        q_row[head * 2 * half] = Raw{};\n"
            "        q_row[head * 2 * half + half] = Raw{};\n",
            "",
        ),
        ("half of a dead row's q is left", "        q_row[head * 2 * half + half] = Raw{};\n", ""),
        ("slot 0 is taken for a dead row", "if (slot < 0) {", "if (slot <= 0) {"),
        (
            "heads and offsets of a block swapped",
            "(block * kv_heads + kv_head) * block_size + offset)",
            "(block * block_size + offset) * kv_heads + kv_head)",
        ),
        (
            "32-bit offset of a token in the cache",
            "const long long block = slot / block_size, offset",
            "const int block = slot / block_size, offset",
        ),
        (
            "block size 16 assumed",
            "slot / block_size, offset = slot % block_size",
            "slot / 16, offset = slot % 16",
        ),
        ("angles of the row, not of the position", "position * 2LL", "token * 2LL"),
        ("angles of half the position", "position * 2LL * half", "position * half"),
        (
            "products rounded",
            "from_float<T>(x * cosines.v[k] -",
            "from_float<T>(to_float(from_float<T>(x * cosines.v[k])) -",
        ),
        (
            "v's columns not counted in a row",
            "+ token * all_heads * 2 * half",
            "+ token * (heads + kv_heads) * 2 * half",
        ),
        (
            "half a head taken for a power of two",
            "column = threadIdx.x % half",
            "column = threadIdx.x & (half - 1)",
        ),
        ("threads after the last whole head take part", "if (place >= heads_at_once) return;", ""),
        (
            "the block's part of the heads ignored",
            "blockIdx.y * (kHeads * heads_at_once) + place",
            "place",
        ),
        ("a thread's heads side by side", "+ place;\n", "+ place * kHeads;\n"),
        (
            "the last KV head is left out",
            "if (head >= all_heads) return;",
            "if (head >= all_heads - 1) return;",
        ),
        ("heads after the last are read", "if (head < all_heads) {", "{"),
        (
            "heads of k and v taken in turns",
            "head - heads - (is_rotated ? 0 : kv_heads)",
            "(head - heads) / 2",
        ),
    ),
    ("rope_append", "rope_append.py"): (
        (
            "grid rounded down: the last heads are missing",
            "-(-all_heads // (heads_at_once * heads_of_thread))",
            "max(1, all_heads // (heads_at_once * heads_of_thread))",
        ),
    ),
}
