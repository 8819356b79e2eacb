"""Bugs to plant in kernels/decode_rows.cu."""

BUGS = {
    ("decode_rows", "decode_rows.cu"): (
        ("does not wait for the launch before", "  wait_for_previous_kernel();", "  "),
        ("a row without a block lives", "live = block > 0", "live = slot >= 0 && done[slot] == 0"),
        ("no step begins", "if (row == 0) step[0]", "if (row < 0) step[0]"),
        ("every row begins the step", "if (row == 0) step[0]", "if (row < rows) step[0]"),
        ("the row's own token, not its slot's", "last_token[slot]", "last_token[row]"),
        (
            "positions begin at 1",
            "positions[row] = live ? position : 0",
            "positions[row] = live ? position + 1 : 0",
        ),
        (
            "the new token is not attended to",
            "seq_lens[row] = live ? position + 1 : 0",
            "seq_lens[row] = live ? position : 0",
        ),
        (
            "the sampled token takes the new one's position",
            "sample_positions[row] = live ? position + 1 : 0",
            "sample_positions[row] = live ? position : 0",
        ),
        ("dead rows write to block 0", "position % block_size : -1;", "position % block_size : 0;"),
        ("offset in a block forgotten", " + position % block_size", ""),
        ("blocks of the wrong size", "* block_size + position", "* max_blocks + position"),
        (
            "dead rows keep their slot",
            "live_row_ids[row] = live ? slot : -1",
            "live_row_ids[row] = slot",
        ),
        (
            "dead rows want log-probabilities",
            "live ? num_logprobs[slot] : -1",
            "live ? num_logprobs[slot] : 0",
        ),
        ("target is token 0", "target_ids[row] = -1", "target_ids[row] = 0"),
        ("no guard after the last row", "if (row >= rows) return;", ""),
    ),
}
