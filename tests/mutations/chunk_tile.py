"""Bugs to plant in kernels/chunk_tile.cuh."""

BUGS = {
    ("paged_prefill_attention", "chunk_tile.cuh"): (
        (
            "no room for tiles that are not full",
            "* group / tile_rows + segment;",
            "* group / tile_rows;",
        ),
        ("rows after the last chunk belong to a sequence", "low <= seqs ? low - 1 : -1", "low - 1"),
        (
            "rows after the last chunk are of the last sequence",
            "segment > seqs + 1 ? tokens",
            "segment > seqs ? tokens",
        ),
        (
            "rows before the first chunk are of the first sequence",
            "low <= seqs ? low - 1 : -1",
            "low <= seqs ? max(low - 1, 0) : -1",
        ),
        (
            "the first tile of a chunk is the last of the one before",
            "* step) <= index",
            "* step) < index",
        ),
        (
            "only some of more than 32 sequences are looked at",
            "count = min(step, count - last * step)",
            "count = 1",
        ),
    ),
}
