"""Bugs to plant in kernels/layer_place.cuh."""

BUGS = {
    ("decode_layer", "layer_place.cuh"): (
        (
            "no value's next place is cleared",
            "  put(here, value);\n  clear(next);",
            "  put(here, value);",
        ),
        ("the value is cleared", "  clear(next);", "  clear(here);"),
        ("act begins where mid does", "return mid() + Sizes::kHidden; }", "return mid(); }"),
        (
            "qkv begins within act",
            "return act() + Sizes::kInter; }",
            "return act() + Sizes::kInter / 2; }",
        ),
        (
            "ranks put their parts in one place",
            "(rank * Sizes::kHeads + head) * kStride",
            "head * kStride",
        ),
        ("heads' parts overlap", "* kStride;\n  }", "* Sizes::kHeadDim;\n  }"),
        ("counts begin within parts", "words + kRows + kParts + which", "words + kRows + which"),
        ("a layer's end releases nothing", "arrive_releasing(count);", "arrive(count);"),
        (
            "a layer's end acquires nothing",
            "wait_for_arrivals_acquiring(count, Sizes::kBlocks);",
            "wait_for_arrivals(count, Sizes::kBlocks);",
        ),
        (
            "a layer's end waits for one block less",
            "wait_for_arrivals_acquiring(count, Sizes::kBlocks);",
            "wait_for_arrivals_acquiring(count, Sizes::kBlocks - 1);",
        ),
        (
            "a layer's end waits for one block more",
            "wait_for_arrivals_acquiring(count, Sizes::kBlocks);",
            "wait_for_arrivals_acquiring(count, Sizes::kBlocks + 1);",
        ),
    ),
}
