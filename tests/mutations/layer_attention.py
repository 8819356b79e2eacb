"""Bugs to plant in kernels/layer_attention.cuh."""

BUGS = {
    ("decode_layer", "layer_attention.cuh"): (
        (
            "angles of the position after",
            "position = tokens.length - 1;",
            "position = tokens.length;",
        ),
        (
            "the newest token is stored in another place of its piece",
            "last) + token * Sizes::kHeadDim;",
            "last);",
        ),
        ("queries are not rotated", "    rotate(queries);\n", ""),
        ("the key is not rotated", "      if (lane_row == 0) rotate(own);\n", ""),
        ("the value is rotated", "      if (lane_row == 0) rotate(own);\n", "      rotate(own);\n"),
        (
            "sines for cosines",
            "halves.rotate(cosines, cosines + kHeadDim / 2);",
            "halves.rotate(cosines + kHeadDim / 2, cosines);",
        ),
        ("q is read before it is there", "    if (is_query) look_for(queries, q);\n", ""),
        ("the newest token is read before it is there", "      look_for(own, k_or_v);\n", ""),
        (
            "queries of the first KV head for all",
            "(kv_head * kGroup + lane_row) * kHeadDim;",
            "lane_row * kHeadDim;",
        ),
        (
            "the newest token of the first KV head for all",
            "(lane_row * Sizes::kKvHeads + kv_head) * kHeadDim;",
            "(lane_row * Sizes::kKvHeads) * kHeadDim;",
        ),
        (
            "the newest token is not attended to",
            "        *reinterpret_cast<Vector*>(piece + token * kHeadDim + column_of(j)) = own;\n",
            "",
        ),
        (
            "the newest token is not stored in the cache",
            "        *reinterpret_cast<Vector*>(cache + newest.in_cache + column_of(j)) = own;\n",
            "",
        ),
        (
            "no barrier after the newest token is put",
            "      }\n    }\n    __syncwarp();\n  }",
            "      }\n    }\n  }",
        ),
        ("every piece gets the newest token", "if (piece == last) append(0,", "append(0,"),
        (
            "the value is stored where keys are",
            "append(1, values, layer.v_cache, last);",
            "append(1, values, layer.k_cache, last);",
        ),
        (
            "the key's place in the ring is not given back",
            "        ring.give_back();\n        T* const values",
            "        T* const values",
        ),
        (
            "all of the last piece counts",
            "const int count = tokens.length - piece * kTokens;",
            "const int count = kTokens;",
        ),
        (
            "no barrier before what warps found is folded",
            "    sync_block<Sizes>();\n    fold(here, next, found, warp);",
            "    fold(here, next, found, warp);",
        ),
        ("only the first warp counts", "          ++warps;\n", "          warps = 1;\n"),
        ("only one part counts", "if (tokens.parts > 1) {", "if (false) {"),
        (
            "parts that are not there are folded",
            "all.add(each, tokens.parts - begin);",
            "all.add(each, kBatch);",
        ),
        (
            "sums of a part are folded before they are there",
            "        look_until_there(sums[k], part_of(k) + column);\n",
            "",
        ),
        (
            "totals of a part are folded before they are there",
            "        look_until_there(rest[k], part_of(k) + kHeadDim);\n",
            "",
        ),
        ("every block puts the head's columns", "    if (rank != 0) return;\n", ""),
        (
            "a dead row is divided by its total",
            "tokens.all > 0 ? 1.0f / all.total : 0.0f",
            "1.0f / all.total",
        ),
        (
            "parts are not cleared",
            "    if (column < kHeadDim) clear_four(part + column);\n",
            "",
        ),
        (
            "totals of parts are not cleared",
            "if (threadIdx.x % 32 < 2) clear(part",
            "if (threadIdx.x % 32 < 1) clear(part",
        ),
        (
            "parts of this layer are cleared",
            "float* const part = next.part(",
            "float* const part = next.part(0 *",
        ),
        (
            "the total is put where the highest score is",
            "put(part + kHeadDim + 1, found.total);",
            "put(part + kHeadDim, found.total);",
        ),
    ),
}
