"""Bugs to plant in kernels/row_order.cuh."""

BUGS = {
    ("sample", "row_order.cuh"): (
        (
            "the low half taken for positive",
            "static_cast<Sum>(static_cast<long long>(low))",
            "static_cast<unsigned>(low)",
        ),
        (
            "the part of a weight below 2^-19 lost",
            "(scaled - (shifted - kWhole)) * kUnit + kSigned",
            "kSigned",
        ),
        (
            "the last of equal logits is the likeliest",
            "key > top_key ? id",
            "key >= top_key ? id",
        ),
        ("+inf is taken for a logit", "top_key >= kInfinityKey", "top_key > kInfinityKey"),
        ("a negative NaN is not seen", " || bottom_key < -kInfinityKey", ""),
        (
            "negative logits in the wrong order",
            "return bits >= 0 ? bits : kLowestInt - bits;",
            "return bits;",
        ),
        (
            "a scan without its last step",
            "offset = 1; offset < 32; offset <<= 1",
            "offset = 1; offset < 16; offset <<= 1",
        ),
        (
            "the scan adds to every lane",
            "if (lane_index() >= offset) reached += left;",
            "reached += left;",
        ),
        (
            "no barrier before the warps' sums are read",
            "warps[warp_index()] = reached;\n  __syncthreads();",
            "warps[warp_index()] = reached;",
        ),
        (
            "no barrier after the warps' sums are read",
            "  __syncthreads();\n  return {reached, total};",
            "  return {reached, total};",
        ),
    ),
    ("logprobs", "row_order.cuh"): (
        (
            "equal logits of lower id are not before",
            "(token_key == key) & (id <= last_id)",
            "(token_key == key) & (id < last_id)",
        ),
        (
            "-0 is below 0",
            "return bits >= 0 ? bits : kLowestInt - bits;",
            "return bits >= 0 ? bits : kHighestInt - bits;",
        ),
    ),
}
