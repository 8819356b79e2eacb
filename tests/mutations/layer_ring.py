"""Bugs to plant in kernels/layer_ring.cuh."""

BUGS = {
    ("decode_layer", "layer_ring.cuh"): (
        ("keys' rows of qkv for values", "own < kQueries + kHeadDim ? 0 :", "true ? 0 :"),
        ("one head's rows of q for all", "return head * kQueries + own;", "return own;"),
        (
            "blocks of a head have the same rows",
            "(rank * Sizes::kWarps + warp) * Sizes::kQkvRows",
            "warp * Sizes::kQkvRows",
        ),
        (
            "pieces of a row are rounded down",
            "(length + Sizes::kTokens - 1) / Sizes::kTokens;",
            "length / Sizes::kTokens;",
        ),
        (
            "all blocks of a head attend to all pieces",
            "return warp * parts + rank_in_head<Sizes>();",
            "return warp;",
        ),
        (
            "the table of the first slot",
            "static_cast<long long>(load_early(row_ids)) * max_blocks",
            "0 * static_cast<long long>(load_early(row_ids)) * max_blocks",
        ),
        (
            "the KV head is left out of a block",
            "* Sizes::kKvHeads + kv_head_of_block<Sizes>();\n    const int place",
            "* Sizes::kKvHeads;\n    const int place",
        ),
        (
            "the place in a block is left out",
            "((head << block_shift) + place)",
            "(head << block_shift)",
        ),
        ("o's weight for down", "weight = phase == kOPhase ? own.o : own.down;", "weight = own.o;"),
        ("up is where gates are", "own / 2 + own % 2 * Sizes::kInter", "own / 2"),
        (
            "the next layer's weights are this one's",
            "const DecodeLayer<T>& own = layers.of[layer];\n    Share",
            "const DecodeLayer<T>& own = layers.of[0];\n    Share",
        ),
        (
            "the cache of the first layer for all",
            "const DecodeLayer<T>& own = layers.of[layer];\n    return",
            "const DecodeLayer<T>& own = layers.of[0];\n    return",
        ),
        ("K for V", "(begun % 2 ? own.v_cache : own.k_cache)", "own.k_cache"),
        (
            "pieces of a row of the weight in another order",
            "* depth + part) * Sizes::kPiece",
            "* depth + depth - 1 - part) * Sizes::kPiece",
        ),
        ("the block of two pieces later", "block = next_block;\n      next_block", "next_block"),
        ("reads the table behind its end", "return piece < all ?", "return piece <= all ?"),
        (
            "reads the table before its wait",
            "  wait_for_previous_kernel();\n  const TokenPieces<Sizes> tokens = tokens_of_row();",
            "  const TokenPieces<Sizes> tokens = tokens_of_row();\n  wait_for_previous_kernel();",
        ),
        ("a ring never turns", "      slot = 0;\n      parity ^= 1;", "      slot = 0;"),
        (
            "a place is filled while it is used",
            "if (may && mbarrier_has_ended(empty, next.parity ^ 1)) {",
            "if (may) {",
        ),
        (
            "a place is not given back",
            "      mbarrier_arrive(full + Rings::kEmptyAfterFull + 8 * place.slot);\n",
            "",
        ),
        (
            "warps have one ring",
            "return begin + warp * Sizes::kPieces * kPlaceBytes;",
            "return begin;",
        ),
        (
            "a place is given back before all lanes have read it",
            "    fence_shared_memory();\n    __syncwarp();\n",
            "    fence_shared_memory();\n",
        ),
        (
            "a copy may come before reads of what was there, ring",
            "    fence_shared_memory();\n    __syncwarp();\n",
            "    __syncwarp();\n",
        ),
        (
            "weights are used before they are there",
            "    mbarrier_wait(full + 8 * place.slot, place.parity);\n",
            "",
        ),
        (
            "words of a fragment in another order",
            "    to[2] = words[1];",
            "    to[1] = words[1];",
        ),
    ),
}
