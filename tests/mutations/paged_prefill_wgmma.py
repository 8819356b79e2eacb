"""Bugs to plant in kernels/paged_prefill_wgmma.cuh."""

BUGS = {
    ("paged_prefill_attention", "paged_prefill_wgmma.cuh"): (
        ("a key after a row's own is seen, wgmma", "if (8 * n >= limit)", "if (8 * n > limit)"),
        (
            "of two keys the second is masked too late, wgmma",
            "if (8 * n + 1 >= limit)",
            "if (8 * n >= limit)",
        ),
        (
            "the mask begins at a later tile of keys, wgmma",
            "> work.own_key + first_row / group + 1",
            "> work.own_key + first_row / group + 1 + kKeys",
        ),
        (
            "queries that the tensor cores do not see, wgmma",
            "        fence_shared_memory();\n        hand_over(work);",
            "        hand_over(work);",
        ),
        (
            "the last keys are not seen by the tensor cores, wgmma",
            "              fence_shared_memory();\n",
            "",
        ),
        (
            "values are given back while they are multiplied, wgmma",
            "wgmma_wait<0>(sums);\n        release(values",
            "wgmma_wait<1>(sums);\n        release(values",
        ),
        ("sums keep an old origin, wgmma", "if (rescales) {", "if (false) {"),
        (
            "totals keep an old origin, wgmma",
            "fmaf(totals[half], keep[half], added)",
            "totals[half] + added",
        ),
        (
            "what lies after the last token is copied, wgmma",
            "from + (exists ? at * 8 : 0),\n                    exists);",
            "from + at * 8,\n                    true);",
        ),
        (
            "boxes after the last key are of some block, wgmma",
            "whole ? slot / 8 : kBeyond",
            "slot / 8",
        ),
        ("KV head 0 for all, wgmma", "kv_heads + work.kv_head) << block", "kv_heads) << block"),
        (
            "32-bit offset of the last keys in the cache, wgmma",
            "static_cast<long long>(part_slot) * kHeadDim",
            "part_slot * kHeadDim",
        ),
        ("vectors are not swizzled, wgmma", "(v % 8 ^ r % 8) * 16", "v % 8 * 16"),
        (
            "a warpgroup has the rows of the first, wgmma",
            "queries.tile(tile) + mine * 8 * kEightRows",
            "queries.tile(tile)",
        ),
        (
            "columns are exchanged with the wrong lane, wgmma",
            "exchange(words[0], words[2], 2);",
            "exchange(words[0], words[2], 1);",
        ),
        (
            "K and V are copied over what is in use, wgmma",
            "            ring.wait_empty(done);\n",
            "",
        ),
        (
            "V may not have arrived, wgmma",
            "      values.wait_full(step_done);\n      multiply_values(step_done, work",
            "      multiply_values(step_done, work",
        ),
        (
            "K is given back before it is multiplied, wgmma",
            "        take_turn();\n        multiply_keys(tile, step_done + 1);",
            "        take_turn();\n        release(keys.empty(step_done + 1));\n"
            "        multiply_keys(tile, step_done + 1);",
        ),
        (
            "queries of the tile before, wgmma",
            "      queries.wait_full(tile);\n",
            "",
        ),
        (
            "a sequence without tokens keeps old results, wgmma",
            "            *reinterpret_cast<Pack<T, 8>*>(out + head",
            "            if (false) *reinterpret_cast<Pack<T, 8>*>(out + head",
        ),
        (
            "a block repeats its first tile, wgmma",
            "work_of(tile_of(round));\n        if (work.steps == 0) continue;\n        const int",
            "work_of(tile_of(0));\n        if (work.steps == 0) continue;\n        const int",
        ),
    ),
}
