"""Bugs to plant in kernels/sample_row.cuh."""

BUGS = {
    ("sample", "sample_row.cuh"): (
        ("another word of the draw", ".w[0] >> 8", ".w[1] >> 8"),
        (
            "words of the seed swapped",
            "counter, seeds[2 * slot], seeds[2 * slot + 1]",
            "counter, seeds[2 * slot + 1], seeds[2 * slot]",
        ),
        (
            "stop ids banned a token too long",
            "position < min_position[slot]",
            "position <= min_position[slot]",
        ),
        (
            "bias of the row, not of its slot",
            "bias_values + static_cast<long long>(slot) *",
            "bias_values + static_cast<long long>(blockIdx.y) *",
        ),
        ("frequency alone is not applied", " || frequency != 0.0f;", ";"),
        ("presence alone is not applied", " || presence != 0.0f ||", " ||"),
        ("tiny temperatures are drawn", "temperature[slot] >= 1e-5f", "temperature[slot] > 0.0f"),
        ("min_p keeps a token below it", " + (rounded < threshold ? 1 : 0)", ""),
        ("min_p drops a token at it", " + (rounded < threshold ? 1 : 0)", " + 1"),
        ("min_p without temperature", "peak + t * log(", "peak + log("),
        (
            "32 bits in the low half of a share",
            "((total & 0xffffffffu) * draw >> 24)",
            "(static_cast<unsigned>(total) * draw >> 24)",
        ),
        ("weights in the power of 2, not of e", "1.4426950408889634 * inverse", "1.0 * inverse"),
        (
            "top_p is ignored below 1",
            "if (top_p < 1.0f) {\n    const Sum before",
            "if (top_p < 0.9f) {\n    const Sum before",
        ),
        (
            "top_p's part of all, not of what top_k keeps",
            "      least = ends.k_before;\n      most = ends.before;\n",
            "",
        ),
        (
            "no barrier before the sum of top_k is read",
            "    __syncthreads();\n    if (ends.k_bin < kBins) {\n      least",
            "    if (ends.k_bin < kBins) {\n      least",
        ),
        (
            "one bin in which top_p may end",
            "if (before < last && sums.reached >= last) ends.last = bin;",
            "ends.last = ends.first;",
        ),
        (
            "the floor lies in the last bin",
            "fminf((peak - logit) * scale, kBins - 1.0f)",
            "fminf((peak - logit) * scale, kBins - 2.0f)",
        ),
        (
            "a tie between bins belongs to the odd one",
            "(bin & 1) != 0 ? __int_as_float",
            "(bin & 1) == 0 ? __int_as_float",
        ),
        (
            "position and sample index swapped",
            "static_cast<unsigned>(position),\n"
            "                                    static_cast<unsigned>(sample_index[slot])",
            "static_cast<unsigned>(sample_index[slot]),\n"
            "                                    static_cast<unsigned>(position)",
        ),
        (
            "all tokens are counted",
            "count_tokens[slot] != 0 ? counts(slot) : nullptr",
            "counts(slot)",
        ),
    ),
}
