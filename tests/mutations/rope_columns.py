"""Bugs to plant in kernels/rope_columns.cuh."""

BUGS = {
    ("linear_rope_append", "rope_columns.cuh"): (
        (
            "cosines and sines swapped",
            "sines[which][g] = angles[which][half + index]",
            "sines[which][g] = angles[which][index]",
        ),
        (
            "rotated the other way",
            "left * cosines[which][g] - right",
            "left * cosines[which][g] + right",
        ),
        (
            "v is rotated too",
            "head < heads + kv_heads;  // a",
            "head < heads + 2 * kv_heads;  // a",
        ),
        (
            "pairs of neighbours, not of halves",
            "pair % half + (column < kPairs ? 0 : half)",
            "pair % half + (column < kPairs ? 0 : 1)",
        ),
        (
            "pairs after the last are read",
            "min(unit * kPairs + column % kPairs, pairs - 1)",
            "unit * kPairs + column % kPairs",
        ),
        ("pairs after the last are stored", "if (pair < pairs) {", "{"),
        ("a dead row's angles are read", "slots[which] < 0 ? 0 : positions[row]", "positions[row]"),
        ("a dead row's k and v are stored", "          continue;\n", ""),
        (
            "a dead row's q is not written",
            "if (head < heads) target[0] = target[half] = from_float<T>(0.0f);",
            "",
        ),
        ("slot 0 is dead", "if (slot < 0) {", "if (slot <= 0) {"),
        ("v's head counted from k's", "(is_rotated ? 0 : kv_heads)", "0"),
        ("offset in a block forgotten", "slot % block_size;", "0;"),
        ("k and v swapped", "is_rotated ? k_cache : v_cache", "is_rotated ? v_cache : k_cache"),
        ("the first half's bias for both", "bias[first + half]", "bias[first]"),
        ("rotated before it is rounded", "left = to_float(a), right", "left = sums[g], right"),
        (
            "another row's slot",
            "slots[which] = slot_mapping[row];",
            "slots[which] = slot_mapping[0];",
        ),
        ("angles of the first pairs for all", "index = (unit * kPairs + g", "index = (g"),
    ),
}
