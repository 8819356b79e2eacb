"""Bugs to plant in kernels/live_row.cuh."""

BUGS = {
    ("decode_rows", "live_row.cuh"): (
        ("slot 0 is dead", "if (slot < 0 ||", "if (slot <= 0 ||"),
        ("a sequence that is done goes on", "done[slot] != 0 ? 0 : block", "block"),
        ("a full table is read beyond its end", " || index >= max_blocks", ""),
        ("the last block counts as full", "index >= max_blocks", "index >= max_blocks - 1"),
        ("blocks are counted from 1", "position / block_size;", "position / block_size + 1;"),
        ("the first slot's table", "(slot) * max_blocks", "(0) * max_blocks"),
    ),
}
