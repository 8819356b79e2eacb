"""Bugs to plant in kernels/decode_layer.cu."""

BUGS = {
    ("decode_layer", "decode_layer.cu"): (
        (
            "does not wait for the launch before",
            "  worker.load_gains(layers.of[0].gain);\n  wait_for_previous_kernel();\n",
            "  worker.load_gains(layers.of[0].gain);\n",
        ),
        ("the end of a phase is not noted", "    worker.leave(layer, kOPhase);\n", ""),
        (
            "phases are noted one too high",
            "note_phase_end(layer * kPhases + phase);",
            "note_phase_end(layer * kPhases + phase + 1);",
        ),
        ("phases begin unnoted", "    note_phase_begin(layer * kPhases + phase);\n", ""),
        (
            "the second norm has the first one's gain",
            "worker.load_gains(own.gain2);",
            "worker.load_gains(own.gain);",
        ),
        (
            "the next layer has this one's gain",
            "worker.load_gains(layers.of[layer + 1].gain);",
            "worker.load_gains(layers.of[layer].gain);",
        ),
        (
            "the first norm has the second one's gain",
            "    if (!is_last) worker.load_gains(layers.of[layer + 1].gain);\n",
            "",
        ),
        (
            "each layer begins with x",
            "is_first ? x : Place{layers.of[layer - 1].here}.out();",
            "x;",
        ),
        (
            "a layer begins with its own result",
            "Place{layers.of[layer - 1].here}.out()",
            "here.out()",
        ),
        (
            "the row before attention is added at a layer's end",
            "add_product<Sizes::kInter>(of_hidden, worker.mid,",
            "add_product<Sizes::kInter>(of_hidden, worker.row,",
        ),
        (
            "counts of the next layer are not cleared",
            "clear_count(next.count(i));",
            "{}",
        ),
        (
            "a layer clears its own counts",
            "clear_count(next.count(i))",
            "clear_count(here.count(i))",
        ),
        (
            "the last count is not cleared",
            "i < Place::kCounts;",
            "i < Place::kCounts - 1;",
        ),
        ("the result's place is not cleared", "      clear(next.out() + column);\n", ""),
        ("every layer is the last", "is_last = layer == count - 1;", "is_last = true;"),
        ("no layer is the last", "is_last = layer == count - 1;", "is_last = layer == count;"),
        ("layers do not meet", "    meet_at<Sizes>(here.count(Place::kOutCount));\n", ""),
        ("gate and up swapped", "gated<T>(sums[0], sums[1])", "gated<T>(sums[1], sums[0])"),
        (
            "gates are put two apart",
            "const int at = share.first + begun / 2;",
            "const int at = share.first + begun;",
        ),
        (
            "the residual is left out",
            "from_float<T>(to_float(raw[column]) + to_float(product))",
            "product",
        ),
        (
            "the row is taken before it is there",
            "        look_until_there(found[i], from + at * kVector);\n",
            "",
        ),
        (
            "the row is normalised before it is there",
            "      if (!is_x) look_until_there(held[i], from + at * kVector);\n",
            "",
        ),
        (
            "no barrier after a row is taken",
            "found[i].v);\n      }\n    }\n    sync_block<Sizes>();",
            "found[i].v);\n      }\n    }",
        ),
        (
            "no barrier before partial sums are read",
            "partial[threadIdx.x / 32] = squares;\n    sync_block<Sizes>();",
            "partial[threadIdx.x / 32] = squares;",
        ),
        (
            "no barrier after a row is normalised",
            "held[i].v);\n    }\n    sync_block<Sizes>();",
            "held[i].v);\n    }",
        ),
        ("eps left out", "rsqrtf(total / kHidden + eps)", "rsqrtf(total / kHidden)"),
        (
            "the mean is of inter elements",
            "rsqrtf(total / kHidden + eps)",
            "rsqrtf(total / kInter + eps)",
        ),
        (
            "one warp's squares are left out",
            "for (int w = 0; w < Sizes::kWarps; ++w) total += partial[w];",
            "for (int w = 1; w < Sizes::kWarps; ++w) total += partial[w];",
        ),
        (
            "vectors of a row are taken for one another",
            "        Ring::store_x(values, at, found[i].v);",
            "        Ring::store_x(values, at ^ 1, found[i].v);",
        ),
        (
            "only rows that all threads have equally many of are whole",
            "return i * Sizes::kThreads + threadIdx.x < kVectors;",
            "return i < kVectors / Sizes::kThreads;",
        ),
        (
            "the raw row is not kept",
            "      reinterpret_cast<Looked<T, kVector>*>(raw)[at] = held[i];\n",
            "",
        ),
        (
            "one row of qkv of each warp is left out",
            "if (lane < Sizes::kQkvAtOnce) {",
            "if (lane < Sizes::kQkvAtOnce - 1) {",
        ),
    ),
}
