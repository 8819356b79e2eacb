"""Bugs to plant in kernels/row_chunks.cuh."""

BUGS = {
    ("sample", "row_chunks.cuh"): (
        ("prompt bit counted", "counts.v[k] & (kPromptBit - 1)", "counts.v[k]"),
        (
            "presence penalty on tokens of the prompt",
            "count > 0 ? -row.presence : -0.0f",
            "-row.presence",
        ),
        (
            "no repetition penalty on tokens of the prompt",
            "if (counts.v[k] == 0) continue;",
            "if ((counts.v[k] & (kPromptBit - 1)) == 0) continue;",
        ),
        ("repetition the wrong way round", "logit > 0.0f ?", "logit < 0.0f ?"),
        ("presence added", "count > 0 ? -row.presence", "count > 0 ? row.presence"),
        (
            "no barrier before the biases",
            "to_float(vectors.packs[v].v[k]);\n  }\n  __syncthreads();\n",
            "to_float(vectors.packs[v].v[k]);\n  }\n",
        ),
        (
            "no barrier before the stop ids",
            "    }\n    __syncthreads();\n  }\n  if (row.stop_ids",
            "    }\n  }\n  if (row.stop_ids",
        ),
        (
            "no barrier before the penalties",
            "    }\n    __syncthreads();\n  }\n  if (row.token_counts",
            "    }\n  }\n  if (row.token_counts",
        ),
        (
            "a bias of another chunk is added",
            "      if (id >= begin && id < end) {\n        tile",
            "      if (id >= 0 && id < end) {\n        tile",
        ),
        (
            "a bias of a later chunk is added",
            "      if (id >= begin && id < end) {\n        tile",
            "      if (id >= begin) {\n        tile",
        ),
        (
            "frequency penalty in a fused multiply-add",
            "__fadd_rn(logit, -__fmul_rn(row.frequency, static_cast<float>(count)))",
            "fmaf(-row.frequency, static_cast<float>(count), logit)",
        ),
        (
            "multiplied by the reciprocal of repetition",
            "__fdiv_rn(logit, row.repetition)",
            "__fmul_rn(logit, __fdiv_rn(1.0f, row.repetition))",
        ),
        (
            "frequency before repetition",
            "        logit = logit > 0.0f ? __fdiv_rn(logit, row.repetition)"
            " : __fmul_rn(logit, row.repetition);\n"
            "        logit = __fadd_rn("
            "logit, -__fmul_rn(row.frequency, static_cast<float>(count)));\n",
            "        logit = __fadd_rn("
            "logit, -__fmul_rn(row.frequency, static_cast<float>(count)));\n"
            "        logit = logit > 0.0f ? __fdiv_rn(logit, row.repetition)"
            " : __fmul_rn(logit, row.repetition);\n",
        ),
        (
            "only the first of the counts that are loaded together",
            "for (int k = 0; k < kCounts; ++k) {\n        if (counts",
            "for (int k = 0; k < 1; ++k) {\n        if (counts",
        ),
        (
            "tokens after the row's end are read",
            "      if (id(chunk, v) < vocab) {\n        packs",
            "      {\n        packs",
        ),
        (
            "the chunk that is loaded ahead is the next, not the block's next",
            "next.load(row.logits, chunk.vocab, next_index)",
            "next.load(row.logits, chunk.vocab, chunk.index + 1)",
        ),
        ("the last chunk is left out", "(vocab + kChunk - 1) / kChunk", "max(vocab / kChunk, 1)"),
        (
            "the top id of any group",
            "own.top_key == top ? own.top_id : kHighestInt",
            "own.top_id",
        ),
        (
            "any of equal logits is the likeliest",
            "atomicMin(&extent.top_id, lowest_id)",
            "atomicExch(&extent.top_id, lowest_id)",
        ),
        (
            "no barrier after the extent is set",
            "extent = Extent::nothing();\n  __syncthreads();\n",
            "extent = Extent::nothing();\n",
        ),
        (
            "no barrier before the top id is searched",
            "  __syncthreads();\n  const int id = own",
            "  const int id = own",
        ),
        (
            "no barrier before the extent is read",
            "  __syncthreads();\n  return extent;",
            "  return extent;",
        ),
        (
            "no barrier after the penalties",
            "    }\n    __syncthreads();\n  }\n}\n\n// Fills the tile",
            "    }\n  }\n}\n\n// Fills the tile",
        ),
        (
            "no barrier after the row is visited",
            "visit(tile[id - begin], id);\n    __syncthreads();\n",
            "visit(tile[id - begin], id);\n",
        ),
    ),
}
