"""Bugs to plant in kernels/piece_sums.cuh."""

BUGS = {
    ("paged_decode_attention", "piece_sums.cuh"): (
        (
            "a token after the last counts, few rows",
            "(scores, 0, tokens, scale_log2",
            "(scores, 0, tokens + 1, scale_log2",
        ),
        (
            "what lies after the last token is added, few rows",
            "if (tokens < kTokens) {",
            "if (false) {",
        ),
        (
            "sums keep an old maximum, few rows",
            "    if (__any_sync(0xffffffffu, highest > before)) rescale(sums, keep);\n",
            "",
        ),
        ("weights rounded to T, few rows", "        mma_m16n8k16<T>(sums[step], a, low);\n", ""),
        (
            "columns of K are those of Q no more, few rows",
            "const int place = kKeysSwap ? j ^ lane_row % 2 : j;",
            "const int place = j;",
        ),
        ("queries of other heads are read, few rows", "if (lane_row < heads) queries", "queries"),
        (
            "columns of sums swapped, few rows",
            "sums[step][i], sums[step][i + 2], sums[step + 1][i]",
            "sums[step][i], sums[step + 1][i], sums[step][i + 2]",
        ),
        ("what was folded keeps an old maximum, few rows", "sums[i] *= keep;", "sums[i] *= 1.0f;"),
        ("the total that was folded keeps an old maximum, few rows", "    total *= keep;\n", ""),
        (
            "what is no part is folded, few rows",
            "k < count ? exp2_for<T>(found[k].highest - best) : 0.0f",
            "exp2_for<T>(found[k].highest - best)",
        ),
    ),
}
