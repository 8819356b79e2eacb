"""Bugs to plant in kernels/advance.cu."""

BUGS = {
    ("advance", "advance.cu"): (
        ("does not wait for the launch before", "  wait_for_previous_kernel();", "  "),
        ("dead rows move slot -1", "if (slot < 0) return;", ""),
        ("slot 0 never moves", "if (slot < 0) return;", "if (slot <= 0) return;"),
        ("a dead row tells a token", "slot < 0 ? -2 : token", "token"),
        ("a dead row is told as broken", "slot < 0 ? -2 : token", "slot < 0 ? -1 : token"),
        ("only live rows tell", "if (lane == 0) {", "if (lane == 0 && slot >= 0) {"),
        ("the ring has one step", "number % ring_steps * 1ull", "0 * 1ull"),
        ("numbers below 0 leave the ring", "static_cast<unsigned>(step[0])", "step[0]"),
        ("the ring is as wide as the step", "* 1ull * ring_rows + row", "* 1ull * rows + row"),
        ("token and step swapped", "(number) << 32 | told", "(told) << 32 | number"),
        ("only the first 32 stop ids are looked at", "i += 32", "i += stops"),
        (
            "stop ids of the row, not the slot",
            "static_cast<long long>(slot) * stops",
            "static_cast<long long>(row) * stops",
        ),
        ("a stop token ends too early", " && position >= earliest", ""),
        (
            "a stop token ends one too late",
            "position >= earliest",
            "position > earliest",
        ),
        ("only lane 0's stop ids count", "__any_sync(0xffffffffu, ends)", "ends"),
        ("a broken row goes on", " || token < 0", ""),
        ("no limit is a limit", "last > 0 && ", ""),
        ("one token too many", "position + 1 >= last", "position >= last"),
        ("one token too few", "position + 1 >= last", "position + 2 >= last"),
        ("a broken token is kept", "max(token, 0)", "token"),
        (
            "the position stays",
            "num_computed[slot] = position",
            "num_computed[slot] = position - 1",
        ),
        ("done is cleared", "if (ends) done[slot] = 1", "done[slot] = ends"),
        ("the row's own state, not its slot's", "last_token[slot] = max", "last_token[row] = max"),
        ("a thread, not a warp, a row", "if (lane != 0) return;", "if (lane == 0) return;"),
    ),
}
