"""Bugs to plant in kernels/linear_tiles.cuh and kernels/linear_tiles.py."""

BUGS = {
    ("linear", "linear_tiles.cuh"): (
        (
            "a chunk of one row lies where another's does",
            "(row * kChunks + (chunk ^ turn)) * kChunkBytes",
            "(row * kChunks + (chunk | turn)) * kChunkBytes",
        ),
        ("rows after the last are copied", "row < rows_ && column < columns_", "column < columns_"),
        (
            "vectors after a row's end are copied",
            "row < rows_ && column < columns_",
            "row < rows_",
        ),
        (
            "elements after a row's end are copied",
            "if (row < rows_ && column + k < columns_)",
            "if (row < rows_ && column < columns_)",
        ),
        (
            "every copy of a thread takes its first row",
            "static_cast<long long>(i * kStride) * columns_ + column",
            "column",
        ),
        (
            "halves of x fragments exchanged",
            "chunk_place(lane % 16, chunk + lane / 16)",
            "chunk_place(lane / 2, chunk + lane % 2)",
        ),
        (
            "halves of weight fragments exchanged",
            "chunk_place(lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2)",
            "chunk_place(lane % 16, chunk + lane / 16)",
        ),
        (
            "fragments are overwritten before they are used",
            "fragments[(step + 1) % 2].load",
            "fragments[step % 2].load",
        ),
        (
            "the last 16 k of a stage are left out",
            "kSteps = kChunks / 2",
            "kSteps = kChunks / 2 - 1",
        ),
        ("both 8-column tiles from the first", "[j % 2 * 2], now", "[0], now"),
        (
            "float: x of the upper row in place of the lower",
            "first_row + 16 * i + 8 * down, chunk",
            "first_row + 16 * i, chunk",
        ),
        (
            "float: the last k of a vector is left out",
            "for (int k = 0; k < 4; ++k) sum = fmaf",
            "for (int k = 0; k < 3; ++k) sum = fmaf",
        ),
        ("odd columns: a pair is stored", "if (columns % 2 == 0) {", "if (columns > 0) {"),
        (
            "odd columns: an element after the last",
            "if (column + 1 < columns) row[column + 1]",
            "row[column + 1]",
        ),
        (
            "bias of the first column for both",
            "to_float(bias[column + 1]);",
            "to_float(bias[column]);",
        ),
        (
            "bias after its end is read",
            "if (column + 1 < out_features) pair.v[1]",
            "pair.v[1]",
        ),
        (
            "a group of row tiles is as large as all of them",
            "min(row_tiles - first_row_tile, kRowTilesTogether)",
            "kRowTilesTogether",
        ),
        (
            "parts leave out what does not divide",
            "end = depths * (part + 1) / parts",
            "end = begin + depths / parts",
        ),
        ("a warp column too few", "warp % kWarpsAcross * kWarpColumns", "0"),
        (
            "fewer waits than copies",
            "cp_async_wait<kStages - 2>();",
            "cp_async_wait<kStages - 1>();",
        ),
        (
            "no barrier before a stage is read",
            "__syncthreads();  // the stage",
            "// the stage",
        ),
        (
            "a stage is filled while it is read",
            "start_x(depth + kStages - 1);",
            "start_x(depth + kStages);",
        ),
        (
            "no groups for the depths after the last",
            "cp_async_commit();  // an empty",
            "if (depth < end) cp_async_commit();  // an empty",
        ),
        (
            "a part's sums begin with those of the tile above",
            "float sums[kTilesDown][kTilesAcross][4] = {};",
            "float sums[kTilesDown][kTilesAcross][4];",
        ),
        ("a tile's rows after the last are stored", "if (row >= tokens || column", "if (column"),
        (
            "a tile's columns after the last are stored",
            "tokens || column >= out_features)",
            "tokens)",
        ),
        (
            "all parts at one place of the workspace",
            "workspace + part * (tokens * columns)",
            "workspace",
        ),
        (
            "the sums of the parts are rounded",
            "total.v[k] += next.v[k];",
            "total.v[k] = to_float(from_float<T>(total.v[k] + next.v[k]));",
        ),
        ("the last part is left out", "part < parts; ++part) {", "part < parts - 1; ++part) {"),
        (
            "no wait for the products before their sums are read",
            "  wait_for_previous_kernel();\n  if (vector",
            "  if (vector",
        ),
        ("no guard after the last vector", "if (vector >= vectors) return;", ""),
        ("bias of a column in vectors", "row_vectors) * kWidth;", "row_vectors);"),
        (
            "float: small tiles add the k of a vector in another order",
            "fmaf(values[i][down].v[k], weights.v[k], sum)",
            "kTilesDown == 1\n                         "
            "? fmaf(values[i][down].v[3 - k], weights.v[3 - k], sum)\n"
            "                         : fmaf(values[i][down].v[k], weights.v[k], sum)",
        ),
    ),
    ("linear", "linear_tiles.py"): (
        (
            "parts follow from the number of rows",
            'column_tiles = -(-axes["out_features"] // _NARROW_TILES[16].columns)',
            'column_tiles = axes["tokens"]',
        ),
        (
            "16-byte copies of rows that are not aligned",
            "aligned = vector_width",
            "aligned = True or vector_width",
        ),
        (
            "a tile row too few",
            "-(-tokens // self.rows) *",
            "max(1, tokens // self.rows) *",
        ),
        (
            "a tile column too few",
            "* -(-out_features // self.columns)",
            "* max(1, out_features // self.columns)",
        ),
        ("shared memory for x alone", "(self.rows + self.columns) *", "self.rows *"),
        ("too little workspace", "return 4 * parts *", "return 4 *"),
    ),
}
