"""Bugs to plant in kernels/mixed_rows.cu."""

BUGS = {
    ("mixed_rows", "mixed_rows.cu"): (
        ("does not wait for the launch before", "  wait_for_previous_kernel();", "  "),
        ("slot 0 is dead", "return slot >= 0 &&", "return slot > 0 &&"),
        (
            "a sequence that is done goes on",
            "return slot >= 0 && done[slot] == 0",
            "return slot >= 0",
        ),
        ("lengths leave the cached tokens out", "num_computed[slot] + count", "count"),
        ("lengths leave the new tokens out", "num_computed[slot] + count", "num_computed[slot]"),
        ("no step begins", "if (t == 0) step[0]", "if (t < 0) step[0]"),
        ("padding tokens belong to the last sequence", "if (t < query_start_loc[seqs]) {", "{"),
        (
            "a token before its sequence's first",
            "query_start_loc[middle] <= t",
            "query_start_loc[middle] < t",
        ),
        (
            "search ends one sequence early",
            "(low + high + 1) / 2",
            "(low + high) / 2 + (high - low > 1)",
        ),
        ("search leaves the last sequence out", "high = seqs - 1", "high = seqs - 2"),
        (
            "positions begin at 0 in every chunk",
            "num_computed[slot] + t - query_start_loc[low]",
            "t - query_start_loc[low]",
        ),
        (
            "positions count over the whole step",
            "num_computed[slot] + t - query_start_loc[low]",
            "num_computed[slot] + t",
        ),
        ("token 0 is taken for the newest one", "given < 0 ?", "given <= 0 ?"),
        ("given tokens are not used", "given < 0 ? last_token[slot] : given", "last_token[slot]"),
        (
            "the sequence's table, not its slot's",
            "static_cast<long long>(slot) * max_blocks",
            "static_cast<long long>(low) * max_blocks",
        ),
        ("one block too late", "position / block_size;", "(position + 1) / block_size;"),
        ("offset in a block forgotten", " + position % block_size", ""),
        ("dead tokens write to block 0", "where = -1;", "where = 0;"),
        (
            "rows of logits keep a slot that is done",
            "is_live(row_ids[t], done) ? row_ids[t] : -1",
            "row_ids[t]",
        ),
        ("no guard after the last row of logits", "if (t < logits) live", "live"),
        ("no guard after the last sequence", "if (t < seqs) {", "{"),
        ("no guard after the last token", "if (t >= tokens) return;", ""),
    ),
}
