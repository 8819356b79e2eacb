"""Bugs to plant in the kernels, one at a time: the mistakes that people really make.

`scripts/mutate_kernels.py` plants them and says which of them the declarations' cases and the
identities of `emulated_identities.py` turn red. Knows texts only, and runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One bug: ``old``, which stands once in ``kernels/<file>``, becomes ``new``.

    Args:
        kernel: the name of the kernel that is proven with it.
        file: in ``kernels/``.
        bug: what is wrong then, in a few words.
        old: the text as it is.
        new: the text with the bug.
    """

    kernel: str
    file: str
    bug: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """The text of the file with the bug.

        Raises:
            ValueError: ``old`` is not there exactly once.
        """
        found = text.count(self.old)
        if found != 1:
            raise ValueError(
                f"mutation {self.kernel} ({self.bug}): {self.old!r} stands {found} times in "
                f"kernels/{self.file}, expected once; adapt tests/mutations.py to the kernel"
            )
        return text.replace(self.old, self.new)


def _bugs(kernel: str, file: str, *bugs: tuple[str, str, str]) -> tuple[Mutation, ...]:
    return tuple(Mutation(kernel, file, *bug) for bug in bugs)


# Kernels that wait in one place; others have a bug of their own for each.
_ONE_WAIT = (
    *("add", "add_rms_norm", "advance", "apply_changes", "copy_blocks", "decode_rows", "embedding"),
    *("mixed_rows", "rms_norm", "rope_append", "silu_and_mul"),
)

MUTATIONS: tuple[Mutation, ...] = (
    *(
        Mutation(
            kernel,
            f"{kernel}.cu",
            "does not wait for the launch before",
            "  wait_for_previous_kernel();",
            "  ",
        )
        for kernel in _ONE_WAIT
    ),
    # ---------------------------------------------------------------------------- apply_changes
    *_bugs(
        "apply_changes",
        "apply_changes.cu",
        ("word 0 never changes", "change.v[0] >= 0", "change.v[0] > 0"),
        ("no change is taken for one", "if (change.v[0] >= 0) words", "words"),
        (
            "index and value swapped",
            "words[change.v[0]] = change.v[1]",
            "words[change.v[1]] = change.v[0]",
        ),
        (
            "the last change is left out",
            "if (i >= num_changes ||",
            "if (i >= num_changes - 1 ||",
        ),
        ("no guard after the last change", "if (i >= num_changes ||", "if ("),
        ("every step applies the changes", " || !is_before(step[0], launch[0])", ""),
        ("no step applies the changes", "!is_before(step[0]", "is_before(step[0]"),
        ("the second step applies them", "is_before(step[0], ", "is_before(step[0] - 1, "),
        (
            "every block does the first changes",
            "blockIdx.x * blockDim.x + threadIdx.x",
            "threadIdx.x",
        ),
    ),
    *_bugs(
        "apply_changes",
        "step_numbers.cuh",
        ("numbers do not wrap", "return static_cast<int>(", "return a < b && static_cast<int>("),
        (
            "a step is before itself",
            "static_cast<unsigned>(b)) < 0",
            "static_cast<unsigned>(b)) <= 0",
        ),
    ),
    # ------------------------------------------------------------------------------ copy_blocks
    *_bugs(
        "copy_blocks",
        "copy_blocks.cu",
        ("block 0 is no source", "if (pair.v[0] < 0 ||", "if (pair.v[0] <= 0 ||"),
        ("no pair is taken for one", "if (pair.v[0] < 0 || ", "if ("),
        ("no guard after the block's end", " || index >= vectors", ""),
        ("the last vector is left out", "index >= vectors", "index >= vectors - 1"),
        ("only the first part", "blockIdx.z * blockDim.x + threadIdx.x", "threadIdx.x"),
        ("V is left out", "blockIdx.y == 0 ? k_cache : v_cache", "k_cache"),
        ("K is left out", "blockIdx.y == 0 ? k_cache : v_cache", "v_cache"),
        (
            "the wrong way round",
            "source = pair.v[0], target = pair.v[1]",
            "source = pair.v[1], target = pair.v[0]",
        ),
        ("the first pair for all", "(pairs)[blockIdx.x]", "(pairs)[0]"),
    ),
    # ------------------------------------------------------------------------------ decode_rows
    *_bugs(
        "decode_rows",
        "live_row.cuh",
        ("slot 0 is dead", "if (slot < 0 ||", "if (slot <= 0 ||"),
        ("a sequence that is done goes on", " || done[slot] != 0", ""),
        ("a full table is read beyond its end", " || index >= max_blocks", ""),
        ("the last block counts as full", "index >= max_blocks", "index >= max_blocks - 1"),
        ("blocks are counted from 1", "position / block_size;", "position / block_size + 1;"),
        ("the first slot's table", "(slot) * max_blocks", "(0) * max_blocks"),
    ),
    *_bugs(
        "decode_rows",
        "step_numbers.cuh",
        ("a gap is not jumped", "is_before(next, first) ? first : next", "next"),
        ("a launch begins anew", "is_before(next, first) ? first : next", "first"),
        ("the number stays", "static_cast<unsigned>(step) + 1u", "static_cast<unsigned>(step)"),
    ),
    *_bugs(
        "decode_rows",
        "decode_rows.cu",
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
    # ------------------------------------------------------------------------------- mixed_rows
    *_bugs(
        "mixed_rows",
        "mixed_rows.cu",
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
    # ---------------------------------------------------------------------------------- advance
    *_bugs(
        "advance",
        "advance.cu",
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
        ("a stop token ends too early", " && position >= min_position[slot]", ""),
        (
            "a stop token ends one too late",
            "position >= min_position[slot]",
            "position > min_position[slot]",
        ),
        ("only lane 0's stop ids count", "__any_sync(0xffffffffu, ends)", "ends"),
        ("a broken row goes on", " || token < 0", ""),
        ("no limit is a limit", "end_position[slot] > 0 && ", ""),
        ("one token too many", "position + 1 >= end_position", "position >= end_position"),
        ("one token too few", "position + 1 >= end_position", "position + 2 >= end_position"),
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
    # ----------------------------------------------------------------------------- loop_control
    *_bugs(
        "loop_control",
        "loop_control.cu",
        ("one row of many is not seen", "row += blockDim.x", "row += rows"),
        ("the first rows only", "row < rows;", "row < rows && row < 256;"),
        ("the loop ends while a row lives", "if (any_live && ", "if (!any_live && "),
        ("dead rows are repeated", "any_live && !all_made", "!all_made"),
        ("one step too many", "made >= static_cast<unsigned>", "made > static_cast<unsigned>"),
        ("the number of steps is no limit", "any_live && !all_made &&", "any_live &&"),
        ("the host's word is not heard", " && is_before(stop, first_step)", ""),
        ("the loop's own number is not enough", "is_before(stop, ", "is_before(stop - 1, "),
        ("steps made are one short", "first + 1u", "first"),
        ("a step is made before the first", "begins != 0 ? 0u : ", ""),
        ("made and first swapped", "(first) << 32 | made", "(made) << 32 | first"),
        ("the end is always in one place", "[first % ring_steps]", "[0]"),
        ("only one thread looks", "__syncthreads_or(live) != 0", "live"),
        (
            "every thread tells the end",
            "if (threadIdx.x != 0) return;",
            "if (threadIdx.x != 1) return;",
        ),
    ),
    # -------------------------------------------------------------------------------- embedding
    *_bugs(
        "embedding",
        "embedding.cu",
        ("a dead row reads row -1", "if (id >= 0 && column", "if (column"),
        ("token 0 is taken for a dead row", "if (id >= 0 &&", "if (id > 0 &&"),
        ("reads after the row's end", "if (id >= 0 && column < vectors)", "if (id >= 0)"),
        ("writes after the row's end", "if (column < vectors) target", "target"),
        ("row stride in elements, not vectors", "+ id * vectors;", "+ id * hidden;"),
        (
            "the block's part of a row ignored",
            "blockIdx.y * (kLoads * kThreads) + threadIdx.x",
            "threadIdx.x",
        ),
        ("a dead row is left as it was", "    values[u] = zeros<T, kWidth>();\n", ""),
    ),
    *_bugs(
        "embedding",
        "embedding.py",
        (
            "grid rounded down: the last part of a long row is missing",
            "-(-vectors // (threads * loads))",
            "max(1, vectors // (threads * loads))",
        ),
    ),
    # -------------------------------------------------------------------------------------- add
    *_bugs(
        "add",
        "add.cu",
        ("one vector too many", "index >= elements / kWidth", "index > elements / kWidth"),
        ("a added to itself", "const Vector*>(b)[index]", "const Vector*>(a)[index]"),
        ("elements taken for vectors", "index >= elements / kWidth", "index >= elements"),
        ("the last element of a vector is not added", "k < kWidth; ++k", "k < kWidth - 1; ++k"),
        (
            "an operand is rounded to half first",
            "to_float(left.v[k]) +",
            "__half2float(__float2half_rn(to_float(left.v[k]))) +",
        ),
    ),
    *_bugs(
        "add",
        "add.py",
        (
            "grid rounded down: the last vectors are missing",
            "-(-(elements // width) // threads)",
            "max(1, elements // width // threads)",
        ),
    ),
    # --------------------------------------------------------------------------------- rms_norm
    *_bugs(
        "rms_norm",
        "rms_norm.cu",
        ("no eps", " / hidden + eps)", " / hidden)"),
        (
            "eps outside of the root",
            "rsqrtf(block_sum<kThreads>(sum) / hidden + eps)",
            "rsqrtf(block_sum<kThreads>(sum) / hidden) + eps",
        ),
        (
            "eps added to the root mean square",
            "rsqrtf(block_sum<kThreads>(sum) / hidden + eps)",
            "1.0f / (sqrtf(block_sum<kThreads>(sum) / hidden) + eps)",
        ),
        ("mean over one element fewer", "(sum) / hidden", "(sum) / max(hidden - 1, 1)"),
        ("mean over the vectors", "(sum) / hidden", "(sum) / vectors"),
        (
            "rounded before the weight, as Hugging Face does",
            "to_float(held[h].v[k]) * scale *",
            "to_float(from_float<T>(to_float(held[h].v[k]) * scale)) *",
        ),
        (
            "squares in the operands' dtype",
            "sum += value * value;",
            "sum += to_float(from_float<T>(value * value));",
        ),
        (
            "sum in the operands' dtype",
            "sum += value * value;",
            "sum = to_float(from_float<T>(sum + value * value));",
        ),
        ("weight of the thread, not of the vector", "weights[i]", "weights[threadIdx.x]"),
        (
            "the last vector is not in the sum",
            "if (h * kThreads + threadIdx.x < vectors)",
            "if (h * kThreads + threadIdx.x < vectors - 1)",
        ),
        (
            "only the first vector of a thread is written",
            "if (i < vectors) {\n      Vector result;",
            "if (i < vectors && h == 0) {\n      Vector result;",
        ),
        (
            "vectors of a thread side by side where they are loaded",
            "const int i = h * kThreads + threadIdx.x;\n    if (i < vectors) held[h]",
            "const int i = threadIdx.x * kHeld + h;\n    if (i < vectors) held[h]",
        ),
        (
            "32-bit offset of a row",
            "static_cast<long long>(blockIdx.x) * hidden",
            "blockIdx.x * hidden",
        ),
        ("only the sum of the own warp", "block_sum<kThreads>(sum)", "lanes_sum<32>(sum)"),
    ),
    *_bugs(
        "rms_norm",
        "launch_shapes.py",
        (
            "a vector too few held by a thread",
            "return threads, -(-vectors // threads)",
            "return threads, max(1, vectors // threads)",
        ),
    ),
    *_bugs(
        "rms_norm",
        "common.cuh",
        (
            "no barrier before the partial sums are read",
            "partial[threadIdx.x >> 5] = v;\n  __syncthreads();",
            "partial[threadIdx.x >> 5] = v;",
        ),
        (
            "the first warp's sum is left out",
            "for (int w = 0; w < kThreads / 32",
            "for (int w = 1; w < kThreads / 32",
        ),
        ("half of the lanes", "int offset = kLanes / 2; offset", "int offset = kLanes / 4; offset"),
        (
            "one step of the lanes' sum is missing",
            "offset > 0; offset >>= 1) {\n    v +=",
            "offset > 1; offset >>= 1) {\n    v +=",
        ),
        (
            "no barrier after the partial sums are read",
            "total += partial[w];\n  __syncthreads();",
            "total += partial[w];",
        ),
        (
            "warps added in the order of their arrival",
            "  __shared__ float partial[kThreads / 32];\n"
            "  v = lanes_sum<32>(v);\n"
            "  if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = v;\n"
            "  __syncthreads();\n"
            "  float total = 0.0f;\n"
            "  for (int w = 0; w < kThreads / 32; ++w) total += partial[w];\n",
            "  __shared__ float total;\n"
            "  if (threadIdx.x == 0) total = 0.0f;\n"
            "  v = lanes_sum<32>(v);\n"
            "  __syncthreads();\n"
            "  if ((threadIdx.x & 31) == 0) atomicAdd(&total, v);\n"
            "  __syncthreads();\n",
        ),
    ),
    # ----------------------------------------------------------------------------- add_rms_norm
    *_bugs(
        "add_rms_norm",
        "add_rms_norm.cu",
        (
            "the unrounded sum is squared",
            "held[h].v[k] = from_float<T>(to_float(held[h].v[k]) + to_float(right[h].v[k]));\n"
            "        const float value = to_float(held[h].v[k]);",
            "const float value = to_float(held[h].v[k]) + to_float(right[h].v[k]);\n"
            "        held[h].v[k] = from_float<T>(value);",
        ),
        (
            "sum stored at the thread's first vector",
            "sum_row[i] = held[h]",
            "sum_row[threadIdx.x] = held[h]",
        ),
        (
            "the first vector scaled in place of each",
            "to_float(held[h].v[k]) * scale",
            "to_float(held[0].v[k]) * scale",
        ),
        ("eps added to hidden", "/ hidden + eps)", "/ (hidden + eps))"),
        ("b left out", " + to_float(right[h].v[k]))", ")"),
        ("sum and out swapped", "      sum_row[i] = held[h];\n", "      out_row[i] = held[h];\n"),
        (
            "no guard after the row's end",
            "    if (i < vectors) {\n      held[h] = a_row[i];",
            "    {\n      held[h] = a_row[i];",
        ),
        (
            "vectors of a thread side by side",
            "    const int i = h * kThreads + threadIdx.x;\n"
            "    if (i < vectors) {\n"
            "      Vector result",
            "    const int i = threadIdx.x * kHeld + h;\n"
            "    if (i < vectors) {\n"
            "      Vector result",
        ),
    ),
    *_bugs(
        "add_rms_norm",
        "add_rms_norm.py",
        (
            "blocks of another size than rms_norm's, so another order",
            "threads, held = row_shape(hidden // width)",
            "threads, held = 64, -(-(hidden // width) // 64)",
        ),
    ),
    # ----------------------------------------------------------------------------- silu_and_mul
    *_bugs(
        "silu_and_mul",
        "silu_and_mul.cu",
        (
            "gate and up swapped",
            "gates = x_row[column], ups = x_row[vectors + column]",
            "ups = x_row[column], gates = x_row[vectors + column]",
        ),
        (
            "gate and up interleaved",
            "gates = x_row[column], ups = x_row[vectors + column]",
            "gates = x_row[2 * column], ups = x_row[2 * column + 1]",
        ),
        ("rows of half the length", "+ 2 * row * vectors", "+ row * vectors"),
        (
            "rounded before the product",
            "silu<T>(to_float(gates.v[k])) *",
            "to_float(from_float<T>(silu<T>(to_float(gates.v[k])))) *",
        ),
        ("no guard after the row's end", "if (column >= vectors) return;", ""),
        ("the block's part of a row ignored", "blockIdx.y * kThreads + threadIdx.x", "threadIdx.x"),
    ),
    *_bugs(
        "silu_and_mul",
        "silu.cuh",
        ("wrong sign in exp", "1.0f + expf(-gate)", "1.0f + expf(gate)"),
        ("wrong sign in the fast exp", "1.0f + __expf(-gate)", "1.0f + __expf(gate)"),
        (
            "overflows for large gates",
            "gate / (1.0f + expf(-gate))",
            "gate * expf(gate) / (1.0f + expf(gate))",
        ),
        (
            "overflows for large gates of 16 bits",
            "__fdividef(gate, 1.0f + __expf(-gate))",
            "__fdividef(gate * __expf(gate), 1.0f + __expf(gate))",
        ),
        ("sigmoid in place of SiLU", "return gate / ", "return 1.0f / "),
        ("sigmoid of 16 bits in place of SiLU", "__fdividef(gate,", "__fdividef(1.0f,"),
    ),
    # ------------------------------------------------------------------------------ rope_append
    *_bugs(
        "rope_append",
        "rope_append.cu",
        (
            "cosines and sines swapped",
            "cosines = angles[column], sines = angles[column + half]",
            "sines = angles[column], cosines = angles[column + half]",
        ),
        (
            "rotated the other way",
            "x * cosines.v[k] - y * sines.v[k]);\n"
            "        second.v[k] = from_float<T>(y * cosines.v[k] + x",
            "x * cosines.v[k] + y * sines.v[k]);\n"
            "        second.v[k] = from_float<T>(y * cosines.v[k] - x",
        ),
        (
            "the second half reads the rotated first one",
            "y * cosines.v[k] + x * sines",
            "y * cosines.v[k] + to_float(first.v[k]) * sines",
        ),
        (
            "pairs are neighbours, as in GPT-J",
            "a[u] = source[head * 2 * half];\n      b[u] = source[head * 2 * half + half];",
            "a[u] = source[head * 2 * half + column];\n"
            "      b[u] = source[head * 2 * half + column + 1];",
        ),
        ("v is rotated too", "if (is_rotated) {", "{"),
        (
            "k is not rotated",
            "is_rotated = head < heads + kv_heads;",
            "is_rotated = head < heads;",
        ),
        (
            "k and v stored in each other's cache",
            "is_rotated ? k_cache : v_cache",
            "is_rotated ? v_cache : k_cache",
        ),
        ("k and v of a dead row are stored", "    return;\n  }\n\n", "  }\n\n"),
        (
            "q of a dead row is left as it was",
            "        q_row[head * 2 * half] = Raw{};\n"
            "        q_row[head * 2 * half + half] = Raw{};\n",
            "",
        ),
        ("half of a dead row's q is left", "        q_row[head * 2 * half + half] = Raw{};\n", ""),
        ("slot 0 is taken for a dead row", "if (slot < 0) {", "if (slot <= 0) {"),
        (
            "heads and offsets of a block swapped",
            "(block * kv_heads + kv_head) * block_size + offset)",
            "(block * block_size + offset) * kv_heads + kv_head)",
        ),
        (
            "32-bit offset of a token in the cache",
            "const long long block = slot / block_size, offset",
            "const int block = slot / block_size, offset",
        ),
        (
            "block size 16 assumed",
            "slot / block_size, offset = slot % block_size",
            "slot / 16, offset = slot % 16",
        ),
        ("angles of the row, not of the position", "position * 2LL", "token * 2LL"),
        ("angles of half the position", "position * 2LL * half", "position * half"),
        (
            "products rounded",
            "from_float<T>(x * cosines.v[k] -",
            "from_float<T>(to_float(from_float<T>(x * cosines.v[k])) -",
        ),
        (
            "v's columns not counted in a row",
            "+ token * all_heads * 2 * half",
            "+ token * (heads + kv_heads) * 2 * half",
        ),
        (
            "half a head taken for a power of two",
            "column = threadIdx.x % half",
            "column = threadIdx.x & (half - 1)",
        ),
        ("threads after the last whole head take part", "if (place >= heads_at_once) return;", ""),
        (
            "the block's part of the heads ignored",
            "blockIdx.y * (kHeads * heads_at_once) + place",
            "place",
        ),
        ("a thread's heads side by side", "+ place;\n", "+ place * kHeads;\n"),
        (
            "the last KV head is left out",
            "if (head >= all_heads) return;",
            "if (head >= all_heads - 1) return;",
        ),
        ("heads after the last are read", "if (head < all_heads) {", "{"),
        (
            "heads of k and v taken in turns",
            "head - heads - (is_rotated ? 0 : kv_heads)",
            "(head - heads) / 2",
        ),
    ),
    *_bugs(
        "rope_append",
        "rope_append.py",
        (
            "grid rounded down: the last heads are missing",
            "-(-all_heads // (heads_at_once * heads_of_thread))",
            "max(1, all_heads // (heads_at_once * heads_of_thread))",
        ),
    ),
    # ----------------------------------------------------------------------------------- linear
    *_bugs(
        "linear",
        "linear.cu",
        (
            "every lane adds the bias",
            "lanes_sum<32>(sums[r][o]);",
            "lanes_sum<32>(\n"
            "          sums[r][o] + (bias == nullptr || first_output + o >= out_features\n"
            "                            ? 0.0f : to_float(bias[first_output + o])));",
        ),
        (
            "rounded before the bias",
            "sum += to_float(bias[output])",
            "sum = to_float(from_float<T>(sum)) + to_float(bias[output])",
        ),
        ("bias of the first column", "bias[output]", "bias[first_output]"),
        ("a missing bias is read", "if (bias != nullptr) sum", "sum"),
        ("rows after the last are stored", " && r < tokens && ", " && "),
        (
            "columns after the last are stored",
            "r < tokens && output < out_features",
            "r < tokens",
        ),
        ("rows after the last are read", "min(r, tokens - 1)", "r"),
        (
            "columns after the last are read",
            "min(first_output + o, out_features - 1)",
            "first_output + o",
        ),
        ("weights after the row's end are read", "if (first + 32 * u < vectors) loaded", "loaded"),
        ("vectors after the row's end are added", "if (first + 32 * u < vectors) {", "{"),
        ("vectors are added several times", "first += 32 * kUnroll", "first += 32"),
        (
            "the last vector is left out",
            "first < vectors; first +=",
            "first < vectors - 1; first +=",
        ),
        (
            "the order of one row differs from that of more",
            "float dot = 0.0f;\n#pragma unroll\n            for (int k = 0; k < kWidth; ++k) {\n"
            "              dot = fmaf(to_float(values.v[k]), to_float(loaded[u][o].v[k]), dot);\n"
            "            }\n            sums[r][o] += dot;",
            "float dot = kRows == 1 ? sums[r][o] : 0.0f;\n"
            "            for (int k = 0; k < kWidth; ++k) {\n"
            "              dot = fmaf(to_float(values.v[k]), to_float(loaded[u][o].v[k]), dot);\n"
            "            }\n            sums[r][o] = kRows == 1 ? dot : sums[r][o] + dot;",
        ),
        (
            "sum in the operands' dtype",
            "sums[r][o] += dot;",
            "sums[r][o] = to_float(from_float<T>(sums[r][o] + dot));",
        ),
        ("the first row in place of each", "values = rows[r][first", "values = rows[0][first"),
        ("columns of a warp not counted", " + warp) * kOutputs;", " + warp);"),
        ("the sum of half a warp", "lanes_sum<32>(sums", "lanes_sum<16>(sums"),
        (
            "the first element of a vector is left out",
            "for (int k = 0; k < kWidth; ++k) {\n              dot",
            "for (int k = kWidth > 1; k < kWidth; ++k) {\n              dot",
        ),
        (
            "out's row stride is x's",
            "static_cast<long long>(r) * out_features",
            "static_cast<long long>(r) * in_features",
        ),
    ),
    *_bugs(
        "linear",
        "linear_stream.cuh",
        ("the bias of a unit's first column", "bias[first + place]", "bias[first]"),
        (
            "columns after the last are stored by a unit",
            "if (place < out_features - first) {",
            "{",
        ),
        ("units too few", "(out_features + Stream::kColumns - 1) /", "out_features /"),
    ),
    *_bugs(
        "linear",
        "stream_linear.cuh",
        (
            "weights after the last row are read",
            "return min(unit * kColumns + column, out_features - 1);",
            "return unit * kColumns + column;",
        ),
        (
            "teams of a launch counted as blocks",
            "const int teams = gridDim.x * kRowTeams, own_team = blockIdx.x * kRowTeams + team;",
            "const int teams = gridDim.x, own_team = blockIdx.x;",
        ),
        ("no wait for the launch before", "    wait_for_previous_kernel();\n", ""),
        ("the last unit of a team left out", "unit < end; first +=", "unit < end - 1; first +="),
        ("parts overlap", "part * steps * kStep + lane", "part * kStep + lane"),
        ("pieces overlap", "first_k + piece * kSegment;\n#pragma", "first_k;\n#pragma"),
        (
            "one piece of x for all",
            "row * in_features + first_k + piece * kSegment;",
            "row * in_features + first_k;",
        ),
        ("rows of x after the last are read", "min(own_row(half), tokens - 1)", "own_row(half)"),
        (
            "the second half of a fragment's rows is empty",
            "half == 0 || both",
            "half == 0",
        ),
        (
            "the second half is taken for empty a row too early",
            "both = tokens > 8 / kSegments",
            "both = tokens > 8 / kSegments + 1",
        ),
        (
            "a step of a load's elements left out",
            "for (int i = 0; i < 4; i += 2) {\n              const unsigned b",
            "for (int i = 0; i < 2; i += 2) {\n              const unsigned b",
        ),
        ("the next unit's weights come too late", "go_to(unit + 1);", "go_to(unit);"),
        (
            "weights of the same step again",
            "next[g] += kAhead * kStep;",
            "next[g] += 0;",
        ),
        ("rows after the last are finished", "if (own_row(half) < tokens) {\n", "{\n"),
        (
            "the other column's piece",
            "piece == left_piece ? left : piece == left_piece + 1 ? right : 0.0f",
            "piece == left_piece ? right : piece == left_piece + 1 ? left : 0.0f",
        ),
        (
            "pieces of a lane's own columns alone",
            "kSegments == 4 ? 13 : 4;",
            "kSegments == 4 ? 9 : 4;",
        ),
        (
            "a part left out",
            "int other = 1; other < kDepthWarps",
            "int other = 2; other < kDepthWarps",
        ),
        (
            "turns share one place",
            "add_parts(sums, has_sums, part, turn % 2)",
            "add_parts(sums, has_sums, part, 0)",
        ),
    ),
    *_bugs(
        "linear",
        "stream_linear.py",
        ("too many pieces for three rows", "8 if tokens <= 2 else", "8 if tokens <= 3 else"),
        ("loads ahead that do not divide the row", "if steps % n == 0)", "if steps >= n)"),
    ),
    # ------------------------------------------------------------------------------- linear_add
    *_bugs(
        "linear_add",
        "linear_add.cu",
        (
            "the residual of another half",
            "from_float<T>(before[half][g] + product)",
            "from_float<T>(before[0][g] + product)",
        ),
        ("rounded once", "to_float(from_float<T>(sum))", "sum"),
        (
            "a missing bias is read",
            "(bias != nullptr ? to_float(bias[output]) : 0.0f)",
            "to_float(bias[output])",
        ),
        ("no residual", "from_float<T>(before[half][g] + product)", "from_float<T>(product)"),
        (
            "residuals after the last are read",
            "min(output_of(unit, g, column), out_features - 1)",
            "output_of(unit, g, column)",
        ),
        ("columns after the last are stored", "if (output < out_features) {", "{"),
    ),
    # ---------------------------------------------------------------------- linear_add_rms_norm
    *_bugs(
        "linear_add_rms_norm",
        "linear_add_rms_norm.cu",
        ("a part left out", "int part = 1; part < kParts", "int part = 2; part < kParts"),
        ("no bias", "if (bias != nullptr) total += to_float(bias[i * kWidth + k]);", ""),
        ("the bias of another column", "bias[i * kWidth + k]", "bias[k]"),
        (
            "a product that is not rounded",
            "total = to_float(from_float<T>(total));",
            "",
        ),
        ("no eps", " / out_features + eps)", " / out_features)"),
        ("no gain", "scale * to_float(gains[h].v[k])", "scale"),
        (
            "parts lie a row apart",
            "part * part_vectors + first",
            "part * vectors + first",
        ),
        (
            "no guard after the row's end",
            "if (i < vectors) {\n      held[h]",
            "if (true) {\n      held[h]",
        ),
    ),
    # ---------------------------------------------------------------------------- linear_swiglu
    *_bugs(
        "linear_swiglu",
        "linear_swiglu.cu",
        ("gate and up swapped", "silu<T>(gate) * up", "silu<T>(up) * gate"),
        ("products not rounded", "to_float(from_float<T>(sums[g]))", "sums[g]"),
        ("gates in place of what they scale", "gate : inter + gate", "gate : gate"),
        ("gates after the last are stored", "if (output < inter) {", "{"),
    ),
    *_bugs(
        "linear_swiglu",
        "stream_linear.cuh",
        ("the first fragment's sums for all", "results[half / 2][g]", "results[0][g]"),
        (
            "rows of the first fragment alone",
            "(lane / 4 + 8 * half) /",
            "(lane / 4 + 8 * (half % 2)) /",
        ),
    ),
    # ------------------------------------------------------------------------------ norm_linear
    *_bugs(
        "norm_linear",
        "norm_linear.cu",
        ("no bias", "sums[g] + (bias != nullptr ? to_float(bias[output]) : 0.0f)", "sums[g]"),
        ("columns after the last are stored", "if (output < out_features) {", "{"),
        (
            "out's row stride is x's",
            "static_cast<long long>(row) * out_features",
            "static_cast<long long>(row) * in_features",
        ),
    ),
    *_bugs(
        "norm_linear",
        "stream_linear.cuh",
        ("no eps", "rsqrtf(total / in_features + eps)", "rsqrtf(total / in_features)"),
        (
            "the sum of squares, not their mean",
            "rsqrtf(total / in_features + eps)",
            "rsqrtf(total + eps)",
        ),
        (
            "a warp's squares left out",
            "int w = 0; w < kWarps; ++w) total",
            "int w = 1; w < kWarps; ++w) total",
        ),
        ("the first row's squares for all", "total += partial[row][w]", "total += partial[0][w]"),
        ("no gain", "scale * to_float(gains[h].v[k]));", "scale);"),
        (
            "rows are read before all have been normalised",
            "        }\n      }\n    }\n    __syncthreads();\n  }\n\n private:",
            "        }\n      }\n    }\n  }\n\n private:",
        ),
        (
            "squares are read before all are there",
            "if (lane == 0) partial[row][warp] = squares;\n    }\n    __syncthreads();",
            "if (lane == 0) partial[row][warp] = squares;\n    }",
        ),
        (
            "copies are read before they have ended",
            "    cp_async_wait<0>();  // a thread reads what it has copied itself\n",
            "",
        ),
    ),
    # ------------------------------------------------------------------------- norm_rope_append
    *_bugs(
        "norm_rope_append",
        "norm_rope_append.cu",
        (
            "cosines and sines swapped",
            "sines[which][g] = angles[which][half + index]",
            "sines[which][g] = angles[which][index]",
        ),
        (
            "rotated the other way",
            "left * cosines[which][g] - right",
            "left * cosines[which][g] + right",
        ),
        (
            "v is rotated too",
            "head < heads + kv_heads;  // a",
            "head < heads + 2 * kv_heads;  // a",
        ),
        (
            "pairs of neighbours, not of halves",
            "pair % half + (column < kPairs ? 0 : half)",
            "pair % half + (column < kPairs ? 0 : 1)",
        ),
        (
            "pairs after the last are read",
            "min(unit * kPairs + column % kPairs, pairs - 1)",
            "unit * kPairs + column % kPairs",
        ),
        ("pairs after the last are stored", "if (pair < pairs) {", "{"),
        ("a dead row's angles are read", "slots[which] < 0 ? 0 : positions[row]", "positions[row]"),
        ("a dead row's k and v are stored", "          continue;\n", ""),
        (
            "a dead row's q is not written",
            "if (head < heads) target[0] = target[half] = from_float<T>(0.0f);",
            "",
        ),
        ("slot 0 is dead", "if (slot < 0) {", "if (slot <= 0) {"),
        ("v's head counted from k's", "(is_rotated ? 0 : kv_heads)", "0"),
        ("offset in a block forgotten", "slot % block_size;", "0;"),
        ("k and v swapped", "is_rotated ? k_cache : v_cache", "is_rotated ? v_cache : k_cache"),
        ("the first half's bias for both", "bias[first + half]", "bias[first]"),
        ("rotated before it is rounded", "left = to_float(a), right", "left = sums[g], right"),
        (
            "another row's slot",
            "slots[which] = slot_mapping[row];",
            "slots[which] = slot_mapping[0];",
        ),
    ),
    # ------------------------------------------------------------------------------ norm_swiglu
    *_bugs(
        "norm_swiglu",
        "norm_swiglu.cu",
        ("gate and up swapped", "silu<T>(gate) * up", "silu<T>(up) * gate"),
        ("products not rounded", "to_float(from_float<T>(sums[g]))", "sums[g]"),
        ("gates in place of what they scale", "gate : inter + gate", "gate : gate"),
        (
            "gates after the last are read",
            "min(unit * kGates + column % kGates, inter - 1)",
            "unit * kGates + column % kGates",
        ),
        ("gates after the last are stored", "if (output < inter) {", "{"),
    ),
    *_bugs(
        "linear",
        "linear_tiles.cuh",
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
    *_bugs(
        "linear",
        "linear_tiles.py",
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
    *_bugs(
        "linear",
        "linear.py",
        (
            "two columns a warp for one row too, in the grid only",
            "outputs_of_block = outputs *",
            "outputs_of_block = 2 *",
        ),
    ),
    # -------------------------------------------------------------------------- linear_residual
    *_bugs(
        "linear_residual",
        "linear_residual.py",
        ("nothing is added", "MatrixProduct(adds_residual=True)", "MatrixProduct()"),
        ("the residual is subtracted", "widen(residual) + product", "product - widen(residual)"),
        ("the product is added to itself", "store(widen(residual)", "store(product"),
    ),
    # -------------------------------------------------------------------------- attention_parts
    *_bugs(
        "attention_parts",
        "attention_parts.cu",
        ("does not wait for the launch before", "  wait_for_previous_kernel();\n", ""),
        (
            "a thread's first row alone is counted",
            "row < rows; row += kThreads) {\n    units",
            "row < min(rows, kThreads); row += kThreads) {\n    units",
        ),
        (
            "no barrier before the sum begins",
            "all_units = 0;\n  __syncthreads();",
            "all_units = 0;",
        ),
        (
            "units are not added up atomically",
            "    atomicAdd(&all_units, static_cast<unsigned long long>(units[row]));\n",
            "    all_units += units[row];\n",
        ),
        ("KV heads are not counted", "all_units * kv_heads + shares - 1", "all_units + shares - 1"),
        (
            "shares are rounded down",
            "(all_units * kv_heads + shares - 1) / shares",
            "all_units * kv_heads / shares",
        ),
        ("rows of one share are cut", "units > longest ?", "units >= longest ?"),
        (
            "parts are as long as whole rows may be",
            "size = share_of(part_shares)",
            "size = longest",
        ),
        ("a part too few", "(units + size - 1) / size", "units / size"),
        ("short rows come first", "units[other] > units[row] ||", "units[other] < units[row] ||"),
        ("equal rows have one rank", " || (units[other] == units[row] && other < row);", ";"),
        ("equal rows in the other order", "other < row);", "other > row);"),
        (
            "a row too few for each lane",
            "of_lane = (rows + 31) / 32",
            "of_lane = max(1, rows / 32)",
        ),
        ("a step of the sums is missing", "offset = 1; offset < 32", "offset = 1; offset < 16"),
        (
            "the first lanes add what is not there",
            "if (lane >= offset) before",
            "if (lane >= 0) before",
        ),
        ("the first lane's parts are all", "if (lane == 31) used", "if (lane == 0) used"),
        ("a lane's own parts come before it", "    before -= own;\n", ""),
        ("the second rank of a lane where the first is", "      before += count;\n", ""),
        ("places of rows, not of ranks", "list[places[ranks[row]] + i]", "list[places[row] + i]"),
        ("the row is its slot", "Part{row, slot,", "Part{row, row,"),
        (
            "parts overlap by a unit",
            "begin = own_units * i / count",
            "begin = max(own_units * i / count - 1, 0)",
        ),
        (
            "the last part is of whole units",
            "end = min(own_units * (i + 1) / count * kUnitTokens, length)",
            "end = own_units * (i + 1) / count * kUnitTokens",
        ),
        (
            "parts beyond a warp's lanes are left out",
            "i < count; i += 32",
            "i < min(count, 32); i += 32",
        ),
        ("what is left over is not marked", "list[i] = Part{-1,", "list[i] = Part{0,"),
        ("counts begin with 1", "arrivals[i] = 0;", "arrivals[i] = 1;"),
        ("counts of KV heads alone", "i < rows * heads; i", "i < rows * kv_heads; i"),
    ),
    *_bugs(
        "attention_parts",
        "attention_parts.py",
        ("shared memory for two numbers a row", "3 * 4 * rows", "2 * 4 * rows"),
        ("parts for the rows alone", "rows, rows + BLOCKS, heads", "rows, rows, heads"),
    ),
    # ------------------------------------------------------------------- paged_decode_attention
    *_bugs(
        "paged_decode_attention",
        "common.cuh",
        ("a digit of a coefficient of 2^x", "5.55041087e-2f", "5.55014087e-2f"),
        ("2^x of far below 0 is not 0", "  if (x < -126.0f) return 0.0f;\n", ""),
        (
            "exponent of 2^x not biased by 127",
            "(static_cast<int>(whole) + 127)",
            "(static_cast<int>(whole) + 126)",
        ),
    ),
    *_bugs(
        "paged_decode_attention",
        "paged_decode_attention.cu",
        (
            "query heads interleaved over KV heads",
            "((static_cast<long long>(given.row) * kv_heads + kv_head) * group + first_head) *",
            "((static_cast<long long>(given.row) * group + first_head) * kv_heads + kv_head) *",
        ),
        (
            "heads of the next KV head are written",
            "heads = min(kHeads, group - first_head);",
            "heads = kHeads;",
        ),
        ("an empty row divides by zero", "if (given.end == 0)", "if (given.end < 0)"),
        ("what is no part is taken", "  if (given.row < 0) return;\n", ""),
        (
            "a dead row is left as it was",
            "      out[at + i] = from_float<T>(0.0f);\n",
            "      ;\n",
        ),
        (
            "every block of a dead row writes, batch invariant",
            "    if (blockIdx.y > 0) return;\n",
            "",
        ),
        (
            "only the first head of a dead row is zeroed",
            "i < heads * kHeadDim; i += kThreads) {\n      out",
            "i < kHeadDim; i += kThreads) {\n      out",
        ),
        (
            "a block too few in a row of the table",
            "given.slot) * max_blocks",
            "given.slot) * (max_blocks - 1)",
        ),
        (
            "the table of the row, not of its slot",
            "(given.slot) * max_blocks",
            "(given.row) * max_blocks",
        ),
        ("the current token is not seen", "end = given.end;", "end = max(given.end - 1, 1);"),
        ("a token too many is seen", "end = given.end;", "end = given.end + 1;"),
        ("every part begins with the row", "int begin = given.begin,", "int begin = 0,"),
        (
            "every part begins with the row, batch invariant",
            "begin = part * part_units * kUnitTokens",
            "begin = 0 * part_units * kUnitTokens",
        ),
        (
            "the last part goes on after the row's end, batch invariant",
            "end = min(begin + part_units * kUnitTokens, given.end)",
            "end = begin + part_units * kUnitTokens",
        ),
        (
            "a part is as long as it can be, batch invariant",
            "end = min(begin + part_units * kUnitTokens, given.end)",
            "end = given.end",
        ),
        (
            "a row's last part is not computed, batch invariant",
            "(units + part_units - 1) / part_units",
            "max(1, units / part_units)",
        ),
        ("blocks without a part take one, batch invariant", "    if (part >= all) return;\n", ""),
        (
            "a block takes one part, batch invariant",
            "while (kByLength && part < all)",
            "while (false)",
        ),
        ("parts of a row overlap, batch invariant", "part += gridDim.y;", "part += 1;"),
        (
            "rows' results lie over each other, batch invariant",
            "static_cast<long long>(given.row) * max_parts",
            "static_cast<long long>(given.row) * (max_parts / 2)",
        ),
        ("always the first heads of a KV head", "= head_set % sets_of_kv_head * kHeads", "= 0"),
        (
            "KV heads and sets of heads swapped",
            "kv_head = head_set / sets_of_kv_head",
            "kv_head = head_set % kv_heads",
        ),
        (
            "group and KV heads swapped",
            "kv_heads, block_size, scale_log2",
            "group, block_size, scale_log2",
        ),
        (
            "sets of heads rounded down",
            "sets_of_kv_head = (group + kHeads - 1) / kHeads",
            "sets_of_kv_head = max(1, group / kHeads)",
        ),
        ("the part of the block's number", "place = blockIdx.x / head_sets", "place = blockIdx.x"),
        (
            "a part is stored as if it were the row",
            "      if (all == 1) {",
            "      if (part == 0) {",
        ),
        ("a whole row is not stored", "      if (all == 1) {", "      if (false) {"),
        (
            "highest and total swapped",
            "result[kHeadDim] = found.highest",
            "result[kHeadDim] = found.total",
        ),
        (
            "results of heads overlap",
            "min(kHeads, group) + head) * (kHeadDim + 2)",
            "min(kHeads, group) + head) * (kHeadDim + 1)",
        ),
        ("results of sets of heads overlap", "* head_sets + head_set;", "* head_sets;"),
        (
            "results of parts overlap",
            "of_set = (first_place + part) * head_sets",
            "of_set = first_place * head_sets",
        ),
        (
            "a row's results are where its last part is",
            "first_place = place - given.index",
            "first_place = place",
        ),
        ("a row that is not cut is folded", "  if (all == 1) return;\n", ""),
        ("sets of heads have one count", "kv_heads * group + head_set;", "kv_heads * group;"),
        ("rows have one count", "arrivals + static_cast<long long>(given.row) *", "arrivals + 0 *"),
        (
            "all blocks of the grid are waited for, batch invariant",
            "kByLength ? min(static_cast<int>(gridDim.y), all) : all",
            "kByLength ? static_cast<int>(gridDim.y) : all",
        ),
        (
            "a block for each part is waited for, batch invariant",
            "kByLength ? min(static_cast<int>(gridDim.y), all) : all",
            "all",
        ),
        ("the first block folds", "== blocks - 1;", "== 0;"),
        ("nobody is the last", "== blocks - 1;", "== blocks;"),
        ("every block is the last", "== blocks - 1;", ">= 0;"),
        ("the count is not set back", "    if (is_last) *count = 0;\n", ""),
        (
            "no barrier before a block says that it is there",
            "  __shared__ bool is_last;\n  __syncthreads();\n",
            "  __shared__ bool is_last;\n",
        ),
        (
            "no barrier before all know whether they are last",
            "    __threadfence();\n  }\n  __syncthreads();\n",
            "    __threadfence();\n  }\n",
        ),
        (
            "results are not there for others",
            "    __threadfence();\n    is_last = atomicAdd(count, 1) == blocks - 1;\n"
            "    if (is_last) *count = 0;\n    __threadfence();\n",
            "    is_last = atomicAdd(count, 1) == blocks - 1;\n    if (is_last) *count = 0;\n",
        ),
        (
            "two arrive as one",
            "atomicAdd(count, 1) == blocks - 1",
            "(*count += 1) == blocks",
        ),
        ("the last parts are not folded", "first < parts; first += kAhead", "first < 1; ++first"),
        ("parts after the last are folded", "if (first + i < parts) fold", "fold"),
        (
            "the last part is not folded",
            "if (first + i < parts) fold",
            "if (first + i < parts - 1) fold",
        ),
        (
            "parts are folded from the last to the first",
            "at_part(min(first + i, parts - 1))",
            "at_part(max(parts - 1 - first - i, 0))",
        ),
        ("the first head's parts for all", "const int head = i / kHeadDim;", "const int head = 0;"),
        ("the first column for all", "kHeadDim, i % kHeadDim, at_part", "kHeadDim, 0, at_part"),
        (
            "only the first head of a cut row",
            "i < heads * kHeadDim; i += kThreads) {\n    const int head",
            "i < kHeadDim; i += kThreads) {\n    const int head",
        ),
    ),
    *_bugs(
        "paged_decode_attention",
        "paged_decode_attention.py",
        ("scale not in base 2", "scale * math.log2(math.e)", "scale"),
        (
            "head_dim**-0.5 in place of the scale that is given",
            "scale * math.log2(math.e)",
            'axes["head_dim"] ** -0.5 * math.log2(math.e)',
        ),
        ("shared memory without the padding", "(head_dim + 8) * itemsize", "head_dim * itemsize"),
        ("shared memory of three warps", "stage_bytes = 4 *", "stage_bytes = 3 *"),
        ("shared memory without the barriers", "head_dim * 2 + 8)", "head_dim * 2)"),
        (
            "workspace for a part a row",
            "else most_cut_parts(rows, kv_heads)\n    group",
            "else rows\n    group",
        ),
        (
            "workspace for half the parts, batch invariant",
            "rows * PARTS_OF_ROW if",
            "rows * PARTS_OF_ROW // 2 if",
        ),
        (
            "workspace without the totals",
            '(axes["head_dim"] + 2)\n    return',
            'axes["head_dim"]\n    return',
        ),
        ("blocks for the rows alone", "parts * sets, share_a_row", "rows * sets, share_a_row"),
    ),
    *_bugs(
        "paged_decode_attention",
        "attend_pieces.cuh",
        (
            "a tile too few for the last warps",
            "(all_tiles - warp + kWarps - 1)",
            "(all_tiles - warp)",
        ),
        ("the last tile is left out", "(end - begin + kTileTokens - 1)", "(end - begin)"),
        (
            "every warp takes the first one's tiles",
            "begin + (n * kWarps + warp) * kTileTokens",
            "begin + n * kWarps * kTileTokens",
        ),
        (
            "K and V in one place",
            "ring + number % kPlaces * kTile",
            "ring + number / 2 % kPlaces * kTile",
        ),
        (
            "K and V at one barrier",
            "barriers + number % kPlaces * 8",
            "barriers + number / 2 % kPlaces * 8",
        ),
        ("waits for the round before", "number / kPlaces % 2", "(number / kPlaces + 1) % 2"),
        (
            "block size 16 assumed, pieces",
            "block_table[token_of(n) / block_size]",
            "block_table[token_of(n) / 16]",
        ),
        (
            "the place in a block is left out",
            "token_of(n) % block_size) * kHeadDim",
            "0) * kHeadDim",
        ),
        (
            "heads and offsets of a block swapped, pieces",
            "(head * block_size + token_of",
            "(head + kv_heads * token_of",
        ),
        (
            "the first KV head for all",
            "static_cast<long long>(block) * kv_heads + kv_head",
            "static_cast<long long>(block) * kv_heads",
        ),
        (
            "32-bit offset of a block in the cache",
            "static_cast<long long>(block) * kv_heads",
            "block * kv_heads",
        ),
        ("K for V", "(number % 2 ? v_cache : k_cache)", "k_cache"),
        ("the first 32 tiles' blocks for all", "        blocks = later_blocks;\n", ""),
        (
            "the second 32 tiles' blocks for all later ones",
            "block_of(n + 32 + lane)",
            "block_of(32 + lane)",
        ),
        ("the first tile's block for all", "blocks, n % 32)", "blocks, 0)"),
        ("half of each piece is copied", "from, kTile * 2, barrier_of", "from, kTile, barrier_of"),
        ("every lane begins the copy", "      if (lane != 0) return;\n", ""),
        (
            "K is copied over while others use it",
            "      __syncwarp();\n      copy(2 * n + kPlaces);",
            "      copy(2 * n + kPlaces);",
        ),
        (
            "V is copied over while others use it",
            "      __syncwarp();\n      copy(2 * n + 1 + kPlaces);",
            "      copy(2 * n + 1 + kPlaces);",
        ),
        ("V is not copied", "      copy(2 * n + 1 + kPlaces);\n", ""),
        ("heads that are not there are read", "if (lane_row < heads) queries", "queries"),
        ("tokens take queries in one order", "second = queries[j ^ 1]", "second = queries[j]"),
        ("keys in one order for all tokens", "place = j ^ lane_row % 2", "place = j"),
        ("the first 8 tokens twice", "keys + half * 8 * kHeadDim", "keys + half * 0 * kHeadDim"),
        ("odd tokens have even ones' scores", "scores[j][1] = scores[j][3];", ";"),
        (
            "tokens after the last are weighed, pieces",
            "token < end ? __fmul_rn(scores[j][i], scale_log2) : kLowest",
            "__fmul_rn(scores[j][i], scale_log2)",
        ),
        (
            "the maximum of a lane's tokens alone",
            "      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));\n",
            "",
        ),
        ("the new maximum is not kept, pieces", "      highest = best;\n", ""),
        ("sums are not rescaled", "sums[step][i] *= factor;", ";"),
        ("rescaled by another head's factor", "keep, (lane_pair + i) * 4)", "keep, lane_pair * 4)"),
        ("totals are not rescaled, pieces", "fmaf(total, keep, added)", "total + added"),
        (
            "what lies after the last token counts",
            "        const int first = (end - token_of(n)) * kHeadDim;\n",
            "        const int first = kTile;\n",
        ),
        (
            "the last token's value is zero",
            "(end - token_of(n)) * kHeadDim",
            "(end - token_of(n) - 1) * kHeadDim",
        ),
        (
            "columns in one order for all lanes",
            "(half ^ lane % 2) * kValueWidth",
            "half * kValueWidth",
        ),
        (
            "odd lanes' columns swapped",
            "lane % 2 ? loaded[half ^ 1][i]",
            "false ? loaded[half ^ 1][i]",
        ),
        ("the second 8 tokens' values left out", "i / 2 * 8 + i % 2, column", "i % 2, column"),
        ("weights rounded to T, pieces", "          mma_m16n8k16<T>(sums[step], a, low);\n", ""),
        (
            "a total of a lane's tokens alone",
            "    total += __shfl_xor_sync(0xffffffffu, total, 2);\n",
            "",
        ),
        (
            "columns of odd steps swapped",
            "of_lane[step * 2 + 1] = sums[step][i + 2]",
            "of_lane[step * 2 + 1] = sums[step][i]",
        ),
        (
            "no barrier before warps are merged",
            "    __syncthreads();\n    const float* block_sums",
            "    const float* block_sums",
        ),
        (
            "the first warp alone",
            "for (int w = 0; w < kWarps; ++w) {\n        const float scale",
            "for (int w = 0; w < 1; ++w) {\n        const float scale",
        ),
    ),
    *_bugs(
        "paged_decode_attention",
        "attend_row.cuh",
        (
            "a unit of tokens is left out",
            "(max(length, 1) + kUnitTokens - 1) / kUnitTokens",
            "max(1, length / kUnitTokens)",
        ),
        ("an empty row has no unit", "(max(length, 1) +", "(max(length, 0) +"),
        (
            "more parts than the workspace has room for",
            "(units + max_parts - 1) / max_parts",
            "units / max_parts",
        ),
        (
            "parts of the least size",
            "max(min_units, (units + max_parts - 1) / max_parts)",
            "min_units",
        ),
    ),
    *_bugs(
        "paged_decode_attention",
        "online_softmax.cuh",
        ("0 as the identity of the maximum, fold", "kLowest = -3.402823466e38f", "kLowest = 0.0f"),
        (
            "the smallest positive float as the lowest, fold",
            "kLowest = -3.402823466e38f",
            "kLowest = 1.175494351e-38f",
        ),
        (
            "sums so far are not rescaled, fold",
            "__fmul_rn(all.sum, keep)",
            "all.sum",
        ),
        (
            "totals so far are not rescaled, fold",
            "__fmul_rn(all.total, keep)",
            "all.total",
        ),
        ("what is added is not rescaled, fold", "fmaf(next.sum, scale,", "fmaf(next.sum, 1.0f,"),
        (
            "the total that is added is not rescaled, fold",
            "fmaf(next.total, scale,",
            "fmaf(next.total, 1.0f,",
        ),
        ("the new maximum is not kept, fold", "  all.highest = best;\n", ""),
        (
            "the last total in place of the sum, fold",
            "fmaf(next.total, scale, __fmul_rn(all.total, keep))",
            "next.total",
        ),
    ),
    *_bugs(
        "paged_decode_attention",
        "attend_tiles.cuh",
        (
            "tokens after the last are read",
            "return token < end ? first + token % block_size : -1ll;",
            "return first + token % block_size;",
        ),
        (
            "the block of a token after the last is looked up",
            "return token < end ? block_table[token / block_size] : 0;",
            "return block_table[token / block_size];",
        ),
        (
            "tokens after the last are weighed",
            "score = token < end ? __fmul_rn(score, scale_log2) : kLowest;",
            "score = __fmul_rn(score, scale_log2);",
        ),
        (
            "a token too many is weighed",
            "score = token < end ?",
            "score = token <= end ?",
        ),
        ("the current token is not weighed", "score = token < end ?", "score = token < end - 1 ?"),
        (
            "every warp masks as the first one",
            "token = begin + (n * kWarps + warp) * kTileTokens + j * 8",
            "token = begin + n * kWarps * kTileTokens + j * 8",
        ),
        ("block size 16 assumed", "block_table[token / block_size]", "block_table[token / 16]"),
        (
            "heads and offsets of a block swapped",
            "(static_cast<long long>(block) * kv_heads + kv_head) * block_size;\n"
            "      return token < end ? first + token % block_size : -1ll;",
            "static_cast<long long>(block) * block_size * kv_heads + kv_head;\n"
            "      return token < end ? first + token % block_size * kv_heads : -1ll;",
        ),
        (
            "K read in place of V",
            "copy_tile(tile_at(n, 1), v_cache, slot);\n      cp_async_commit();",
            "copy_tile(tile_at(n, 1), k_cache, slot);\n      cp_async_commit();",
        ),
        (
            "the first tiles of V are K's",
            "copy_tile(tile_at(n, 1), v_cache, slot);\n        cp_async_commit();",
            "copy_tile(tile_at(n, 1), k_cache, slot);\n        cp_async_commit();",
        ),
        ("one slot for all rows of a tile", "__shfl_sync(0xffffffffu, slot, row)", "slot"),
        (
            "K is used before it has arrived",
            "      cp_async_wait<2 * kStages - 1>();\n      __syncwarp();\n      float scores",
            "      cp_async_wait<2 * kStages>();\n      __syncwarp();\n      float scores",
        ),
        (
            "V is used before it has arrived",
            "      cp_async_wait<2 * kStages - 1>();\n      __syncwarp();\n      const T* values",
            "      cp_async_wait<2 * kStages>();\n      __syncwarp();\n      const T* values",
        ),
        (
            "no barrier before K is used",
            "      cp_async_wait<2 * kStages - 1>();\n      __syncwarp();\n      float scores",
            "      cp_async_wait<2 * kStages - 1>();\n      float scores",
        ),
        (
            "no barrier before V is used",
            "      cp_async_wait<2 * kStages - 1>();\n      __syncwarp();\n      const T* values",
            "      cp_async_wait<2 * kStages - 1>();\n      const T* values",
        ),
        (
            "no barrier before the next K replaces this one",
            "      __syncwarp();\n      const long long slot",
            "      const long long slot",
        ),
        (
            "no barrier before the next V replaces this one",
            "      __syncwarp();\n      if (n + kStages < tiles) copy_tile(tile_at(n, 1)",
            "      if (n + kStages < tiles) copy_tile(tile_at(n, 1)",
        ),
        (
            "the next tile's blocks are those of this one",
            "block = block_of(n + kStages + 1);",
            "block = block_of(n + kStages);",
        ),
        (
            "blocks are looked up for the first tiles only",
            "      block = block_of(n + kStages + 1);\n",
            "",
        ),
        (
            "the ring has a stage too few",
            "n % kStages * 2 + which",
            "n % max(1, kStages - 1) * 2 + which",
        ),
        (
            "a tile too few for each warp",
            "(all_tiles - warp + kWarps - 1) / kWarps",
            "(all_tiles - warp) / kWarps",
        ),
        (
            "the last tile is not copied",
            "if (n < tiles) copy_tile(tile_at(n, 0)",
            "if (n < tiles - 1) copy_tile(tile_at(n, 0)",
        ),
        (
            "queries of the next heads are read",
            "head < heads ? *reinterpret",
            "head < kHeads ? *reinterpret",
        ),
        (
            "halves of a query swapped",
            "step * 16 + half * 8 + lane_pair",
            "step * 16 + (1 - half) * 8 + lane_pair",
        ),
        (
            "the second tile of heads is the first",
            "const int head = h * 8 + lane_row;",
            "const int head = lane_row;",
        ),
        (
            "operands of the second tokens swapped",
            "b_second[2] = {b[2], b[3]}",
            "b_second[2] = {b[3], b[2]}",
        ),
        (
            "scores of the first tokens for all",
            "b_second[2] = {b[2], b[3]}",
            "b_second[2] = {b[0], b[1]}",
        ),
        ("scores are not scaled", "__fmul_rn(score, scale_log2)", "score"),
        ("the maximum of one lane", "__shfl_xor_sync(0xffffffffu, best, 1)", "best"),
        ("the maximum of half the lanes", "__shfl_xor_sync(0xffffffffu, best, 2)", "best"),
        (
            "the maximum of earlier tokens is forgotten",
            "float best = highest[h];",
            "float best = kLowest;",
        ),
        ("the new maximum is not kept", "        highest[h] = best;\n", ""),
        ("totals are not rescaled", "fmaf(totals[h], keep[h], added)", "totals[h] + added"),
        ("sums are never rescaled", "if (__any_sync(0xffffffffu, rescale)) {", "if (false) {"),
        (
            "sums are rescaled where the first lane's head needs it",
            "if (__any_sync(0xffffffffu, rescale)) {",
            "if (__shfl_sync(0xffffffffu, rescale ? 1 : 0, 0)) {",
        ),
        ("sums are rescaled as other heads", "keep[h], (lane_pair + i) * 4)", "keep[h], lane)"),
        ("half of the sums is not rescaled", "              sums[step][h][i + 2] *= factor;\n", ""),
        (
            "weights rounded to T",
            "          mma_m16n8k16<T>(sums[step][h], a, low[h]);\n",
            "",
        ),
        (
            "the weights' lower parts are taken twice",
            "mma_m16n8k16<T>(sums[step][h], a, high[h])",
            "mma_m16n8k16<T>(sums[step][h], a, low[h])",
        ),
        (
            "weights of the first tile of heads for all",
            "mma_m16n8k16<T>(sums[step][h], a, high[h])",
            "mma_m16n8k16<T>(sums[step][h], a, high[0])",
        ),
        ("V is not transposed", "ldmatrix_x4_trans(a, values", "ldmatrix_x4(a, values"),
        ("totals of one lane", "__shfl_xor_sync(0xffffffffu, total, 1)", "0.0f"),
        ("totals of half the lanes", "__shfl_xor_sync(0xffffffffu, total, 2)", "0.0f"),
        (
            "columns of sums swapped",
            "column = lane_row + i / 2 * 8",
            "column = lane_row + i % 2 * 8",
        ),
        (
            "heads of sums swapped",
            "head = h * 8 + lane_pair + i % 2,",
            "head = h * 8 + lane_pair + i / 2,",
        ),
        (
            "no barrier before the warps are merged",
            "    __syncthreads();\n    const float* block_sums",
            "    const float* block_sums",
        ),
        (
            "no barrier before the next tiles",
            "    __syncthreads();  // before the sums give way to the next tiles\n",
            "",
        ),
        ("the first warp's sums for all", "block_sums[w * (kRing / 2) +", "block_sums["),
        (
            "the last warp's maximum is not taken",
            "w < kWarps; ++w) all.highest",
            "w < kWarps - 1; ++w) all.highest",
        ),
        ("the last warp is not merged", "w < kWarps; ++w) {", "w < kWarps - 1; ++w) {"),
        ("warps are not rescaled in the merge", "fmaf(sum, scale, all.sum)", "all.sum + sum"),
        (
            "divides by the last warp's total",
            "fmaf(warp_totals[w][head], scale, all.total)",
            "warp_totals[w][head] * scale",
        ),
        (
            "32-bit offset of a token in the cache",
            "cache + (valid ? from * kHeadDim",
            "cache + (valid ? static_cast<int>(from * kHeadDim)",
        ),
    ),
    *_bugs(
        "paged_decode_attention",
        "attend_vectors.cuh",
        (
            "tokens after the last enter the maximum, vectors",
            "if (first + n * kStreams + stream < end) best",
            "best",
        ),
        (
            "tokens after the last are weighed, vectors",
            "live ? exp2_for<T>(scores[n] - best) : 0.0f",
            "exp2_for<T>(scores[n] - best)",
        ),
        (
            "tokens after the last are read, vectors",
            "if (token < end && vector < kVectors) {",
            "if (vector < kVectors) {",
        ),
        (
            "a token too many is weighed, vectors",
            "live = first + n * kStreams + stream < end",
            "live = first + n * kStreams + stream <= end",
        ),
        (
            "block size 16 assumed, vectors",
            "block_table[token / block_size]",
            "block_table[token / 16]",
        ),
        (
            "heads and offsets of a block swapped, vectors",
            "(block * kv_heads + kv_head) * block_size + token % block_size",
            "(block * block_size + token % block_size) * kv_heads + kv_head",
        ),
        (
            "K read in place of V, vectors",
            "const Vector*>(v_cache)[row",
            "const Vector*>(k_cache)[row",
        ),
        (
            "sums are not rescaled, vectors",
            "sum = __fmul_rn(sums[h][j][k], keep);",
            "sum = sums[h][j][k];",
        ),
        ("totals are not rescaled, vectors", "fmaf(totals[h], keep, added)", "totals[h] + added"),
        (
            "the maximum of earlier tokens is forgotten, vectors",
            "best = highest[h];\n#pragma unroll\n        for (int n = 0",
            "best = kLowest;\n#pragma unroll\n        for (int n = 0",
        ),
        (
            "the new maximum is not kept, vectors",
            "highest[h] = best;\n        float added",
            "float added",
        ),
        (
            "streams of a warp merged halfway, vectors",
            "best = highest[h];\n#pragma unroll\n      for (int offset = kLanes; offset < 32",
            "best = highest[h];\n#pragma unroll\n      for (int offset = kLanes; offset < 16",
        ),
        (
            "the last step of a stream's sum is missing, vectors",
            "offset = kLanes; offset < 32; offset *= 2) {\n    v +=",
            "offset = kLanes; offset < 16; offset *= 2) {\n    v +=",
        ),
        (
            "no barrier before the warps are merged, vectors",
            "      __syncthreads();\n      for (int column",
            "      for (int column",
        ),
        (
            "no barrier before the next head's numbers, vectors",
            "result(h, column, all);\n      }\n      __syncthreads();\n",
            "result(h, column, all);\n      }\n",
        ),
        (
            "barriers of one warp only, vectors",
            "result(h, column, all);\n      }\n      __syncthreads();\n",
            "result(h, column, all);\n      }\n      __syncwarp();\n",
        ),
        (
            "a head is read beyond its end, vectors",
            "if (token < end && vector < kVectors) {",
            "if (token < end) {",
        ),
        (
            "queries of the next heads are read, vectors",
            "if (vector < kVectors && h < heads) {",
            "if (vector < kVectors) {",
        ),
        ("heads of the next KV head are stored, vectors", "if (h < heads) result", "result"),
        (
            "queries are not scaled, vectors",
            "to_float(loaded.v[k]) * scale_log2",
            "to_float(loaded.v[k])",
        ),
        (
            "the last round of tokens is left out, vectors",
            "< end; first += kTokens",
            "+ kTokens * kStreams <= end; first += kTokens",
        ),
        (
            "tokens are seen in several rounds, vectors",
            "first += kTokens * kStreams)",
            "first += kStreams)",
        ),
        (
            "loads of a lane rounded down, vectors",
            "(kVectors + kLanes - 1) / kLanes",
            "(kVectors < kLanes ? 1 : kVectors / kLanes)",
        ),
        (
            "only the first load of a lane is in the score, vectors",
            "for (int j = 0; j < kLoads; ++j) {\n"
            "#pragma unroll\n"
            "            for (int k = 0; k < kWidth; ++k) {\n"
            "              dot",
            "for (int j = 0; j < 1; ++j) {\n"
            "#pragma unroll\n"
            "            for (int k = 0; k < kWidth; ++k) {\n"
            "              dot",
        ),
        (
            "only as many columns as threads are stored, vectors",
            "column < kHeadDim; column += kThreads",
            "column < min(kHeadDim, 128); column += kThreads",
        ),
        ("the first query head in place of each, vectors", "[h * kVectors + vector]", "[vector]"),
        (
            "the score of the first query head for all, vectors",
            "fmaf(queries[h][j][k]",
            "fmaf(queries[0][j][k]",
        ),
        ("32-bit offset of a token in the cache, vectors", "long long row = 0;", "int row = 0;"),
        (
            "weights rounded to T, vectors",
            "live ? exp2_for<T>(scores[n] - best)",
            "live ? to_float(from_float<T>(exp2_for<T>(scores[n] - best)))",
        ),
    ),
    # ------------------------------------------------------------------ paged_prefill_attention
    *_bugs(
        "paged_prefill_attention",
        "paged_prefill_attention.cu",
        ("a token does not see itself", "after / group + 1)", "after / group)"),
        ("a token sees the next one", "after / group + 1)", "after / group + 2)"),
        (
            "no causal mask",
            "if (first_key + kKeys > unmasked_keys) {",
            "if (false) {",
        ),
        (
            "keys that only a warp's first rows do not see are not masked",
            "(tile.first_row + first_row) / group + 1;",
            "(tile.first_row + first_row + kWarpRows - 1) / group + 1;",
        ),
        (
            "mask of the first tile of keys for all",
            "row - (first_key - own_key) * group",
            "row + own_key * group",
        ),
        (
            "mask of the first tile of rows for all",
            "const int row = tile.first_row + first_row + 16",
            "const int row = first_row + 16",
        ),
        (
            "mask of the first warp for all",
            "tile.first_row + first_row + 16 * i",
            "tile.first_row + 16 * i",
        ),
        (
            "mask of a fragment's first 8 rows for all",
            "16 * i + 8 * half + lane / 4;\n          const int after",
            "16 * i + lane / 4;\n          const int after",
        ),
        (
            "mask of a lane's first column for both",
            "if (8 * n + 1 >= limit)",
            "if (8 * n >= limit)",
        ),
        (
            "mask of the first lane for all",
            "(after < 0 ? 0 : after / group + 1) - lane % 4 * 2",
            "(after < 0 ? 0 : after / group + 1)",
        ),
        ("keys after the last are read", "k < num_keys - key - lane_key", "true"),
        (
            "the last key is not read",
            "k < num_keys - key - lane_key",
            "k < num_keys - key - lane_key - 1",
        ),
        (
            "blocks after the last are looked up",
            "key < num_keys ? block_tables[table + (key >> block_shift)] : 0",
            "block_tables[table + (key >> block_shift)]",
        ),
        (
            "no wait for K",
            "    cp_async_wait<0>();\n    __syncthreads();  // K has",
            "    __syncthreads();  // K has",
        ),
        (
            "no barrier before K is read",
            "    __syncthreads();  // K has arrived, and V is no longer in use\n",
            "",
        ),
        (
            "no wait for V",
            "    cp_async_wait<0>();\n    __syncthreads();  // V has",
            "    __syncthreads();  // V has",
        ),
        (
            "no barrier before V is read",
            "    __syncthreads();  // V has arrived, and K is no longer in use\n",
            "",
        ),
        ("K used in place of V", "copy_cached(values, v_cache", "copy_cached(values, k_cache"),
        (
            "keys of the tile before are read again",
            "    find_slots(first_key + kKeys);\n",
            "    find_slots(first_key);\n",
        ),
        (
            "32-bit offset of a key in the cache",
            "static_cast<long long>(slots[j] + lane_key) * kHeadDim",
            "(slots[j] + lane_key) * kHeadDim",
        ),
        ("place in the block forgotten", "<< block_shift) | (key & block_mask)", "<< block_shift)"),
        ("block size 16 assumed", "table + (key >> block_shift)", "table + (key >> 4)"),
        (
            "table of another slot",
            "slot_ids[tile.seq] * max_blocks;  // where",
            "tile.seq * max_blocks;  // where",
        ),
        (
            "query heads interleaved over KV heads",
            "(token * kv_heads + kv_head) * group + row % group : -1",
            "(token * group + row % group) * kv_heads + kv_head : -1",
        ),
        (
            "rows after the chunk's last are stored",
            "heads[r] = r < rows ?",
            "heads[r] = r <= rows ?",
        ),
        (
            "rows of no sequence are left as they were",
            "  if (length <= 0) {\n    for (int i = threadIdx.x; i < rows * kVectors",
            "  if (length <= 0) {\n    return;\n    for (int i = threadIdx.x; i < rows * kVectors",
        ),
        (
            "no barrier before the rows' places are read",
            "  __syncthreads();\n  using Vector",
            "  using Vector",
        ),
        (
            "the largest score of half the lanes",
            "        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));\n",
            "",
        ),
        ("the largest score is not scaled", "best, 2)) * scale_log2;", "best, 2));"),
        ("totals are not rescaled", "totals[i][half] *= keep[i][half];", ""),
        ("sums are not rescaled", "sums[i][n][2 * half] *= keep[i][half];", ""),
        (
            "rescaled only where all rows grow",
            "__any_sync(0xffffffffu, rescales)",
            "__all_sync(0xffffffffu, rescales)",
        ),
        ("rescaled only where the last row grows", "rescales |= grown;", "rescales = grown;"),
        ("the origin stays where it begins", "if (grown) origin[i][half] = best;", ""),
        (
            "the origin of the first keys is kept",
            "best > origin[i][half] + kMaxExponent",
            "origin[i][half] == kLowest",
        ),
        ("weights may be as large as 2^100", "kMaxExponent = 8.0f", "kMaxExponent = 100.0f"),
        ("each lane's own total", "lanes_sum<4>(totals[i][half])", "totals[i][half]"),
        (
            "quarters of the weights' fragments in another order",
            "half + n % 2 * 2]",
            "half * 2 + n % 2]",
        ),
        ("V is not transposed", "ldmatrix_x4_trans(b,", "ldmatrix_x4(b,"),
        (
            "quarters of K's fragments in another order",
            "(lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8",
            "lane % 16 * kStride + lane / 16 * 8",
        ),
        (
            "every other fragment of the score is left out",
            "d < kHeadDim; d += 16) {\n      unsigned a",
            "d < kHeadDim; d += 32) {\n      unsigned a",
        ),
        ("weights of the first keys for all", "weights[i][n], b", "weights[i][0], b"),
        (
            "V of the first keys for all",
            "own_values + 16 * n * kStride + 16 * d",
            "own_values + 16 * d",
        ),
        (
            "queries of a warp's first fragment for all",
            "own_queries + 16 * i * kStride + d",
            "own_queries + d",
        ),
        (
            "a pair of floats the other way round",
            "pair.v[0] = from_float<T>(low);\n  pair.v[1] = from_float<T>(high);",
            "pair.v[0] = from_float<T>(high);\n  pair.v[1] = from_float<T>(low);",
        ),
        (
            "the second fragment multiplies the first columns",
            "mma_m16n8k16<T>(c1, a, right);",
            "mma_m16n8k16<T>(c1, a, left);",
        ),
        (
            "results of all warps in one place",
            "T* results = queries + first_row * kStride;",
            "T* results = queries;",
        ),
        (
            "no barrier before the results are read",
            "  __syncwarp();\n  for (int i = lane; i < kWarpRows",
            "  for (int i = lane; i < kWarpRows",
        ),
        ("rows of the first warp's place", "head = heads[first_row + r];", "head = heads[r];"),
        (
            "chunks of two tokens are taken for one",
            "- token != 1) return;",
            "- token > 2) return;",
        ),
        (
            "a chunk of one token is computed as a tile too",
            " || (tile.seq >= 0 && tile.chunk == 1)",
            "",
        ),
        (
            "table of another slot, one token",
            "static_cast<long long>(slot_ids[seq]) * max_blocks",
            "static_cast<long long>(seq) * max_blocks",
        ),
        (
            "heads of the next KV head are written, one token",
            "min(Form::kHeads, group - first_head);\n  const long long head =",
            "Form::kHeads;\n  const long long head =",
        ),
        (
            "a dead sequence of one token is left as it was",
            "  const long long at = head * Form::kHeadDim;\n",
            "  const long long at = head * Form::kHeadDim;\n  if (length <= 0) return;\n",
        ),
        (
            "the last key is left out, one token",
            "table, 0, length, heads",
            "table, 0, max(length - 1, 1), heads",
        ),
        (
            "results are rounded twice",
            "packed<T>(sums[i][n][2 * half] * factor,",
            "packed<T>(to_float(from_float<T>(sums[i][n][2 * half])) * factor,",
        ),
        (
            "the search for a chunk stops at empty ones, alone",
            "if (query_start_loc[middle + 1] <= token) {",
            "if (query_start_loc[middle + 1] < token) {",
        ),
        (
            "rows before the first chunk belong to it, alone",
            "low < seqs && query_start_loc[low] <= token",
            "low < seqs",
        ),
        (
            "rows after the last chunk belong to a sequence, alone",
            "low < seqs && query_start_loc[low] <= token",
            "query_start_loc[low] <= token",
        ),
        (
            "table of the sequence after, alone",
            "block_tables + static_cast<long long>(slot_ids[low]) * max_blocks",
            "block_tables + static_cast<long long>(low) * max_blocks",
        ),
        ("the first part only, alone", "part < parts; ++part", "part < 1; ++part"),
        ("earlier parts are forgotten, alone", "if (part > 0) {", "if (part > 1) {"),
        (
            "highest and totals are read and written at once, alone",
            "highest[2][kHeads], totals[2][kHeads]",
            "highest[1][kHeads], totals[1][kHeads]",
        ),
        (
            "cut by other lengths than decode's, alone",
            "units_of_part(units, max_parts, min_units)",
            "units_of_part(units, max_parts / 2, min_units)",
        ),
        (
            "all rows of a chunk see all of it, alone",
            "seq_lens[low] - (query_start_loc[low + 1] - token) + 1",
            "seq_lens[low]",
        ),
        (
            "a token does not see itself, alone",
            "seq_lens[low] - (query_start_loc[low + 1] - token) + 1",
            "max(seq_lens[low] - (query_start_loc[low + 1] - token), 1)",
        ),
        (
            "heads of the next KV head are written, alone",
            "min(kHeads, group - first_head)",
            "kHeads",
        ),
    ),
    *_bugs(
        "paged_prefill_attention",
        "paged_prefill_simple.cuh",
        (
            "a token does not see itself, simple form",
            "(tile.first_row + r) / group + 1;",
            "(tile.first_row + r) / group;",
        ),
        (
            "a token sees the next one, simple form",
            "(tile.first_row + r) / group + 1;",
            "(tile.first_row + r) / group + 2;",
        ),
        (
            "no causal mask, simple form",
            "column + 8 * j < limit ? exp2_for<T>(scores[i][j] - best) : 0.0f",
            "exp2_for<T>(scores[i][j] - best)",
        ),
        (
            "hidden tokens enter the maximum, simple form",
            "if (column + 8 * j < limit) best",
            "best",
        ),
        (
            "only the last 32 columns are in the score, simple form",
            "scores[1][j] += part[1][j];",
            "scores[1][j] = part[1][j];",
        ),
        (
            "parts of a score overlap, simple form",
            "first < kPadded; first += 32",
            "first < kPadded; first += 16",
        ),
        (
            "mask of the first tile of keys for all, simple form",
            "visible(row0 + i) - first_key;",
            "visible(row0 + i);",
        ),
        (
            "mask of the first tile of rows for all, simple form",
            "(tile.first_row + r) / group + 1",
            "r / group + 1",
        ),
        (
            "no barrier before K is read, simple form",
            "    fill_cached(k_cache, first_key);\n    __syncthreads();\n",
            "    fill_cached(k_cache, first_key);\n",
        ),
        (
            "no barrier before V replaces K, simple form",
            "    __syncthreads();  // before V replaces K\n",
            "",
        ),
        (
            "no barrier before V is read, simple form",
            "    __syncthreads();\n#pragma unroll 2\n",
            "#pragma unroll 2\n",
        ),
        (
            "no barrier before the next K, simple form",
            "    __syncthreads();  // before the next K replaces V\n",
            "",
        ),
        (
            "keys after the last are read, simple form",
            "fill_tile<T, kWidth, kVectors>(cached, keys - first_key,",
            "fill_tile<T, kWidth, kVectors>(cached, kTileKeys,",
        ),
        (
            "the last key is not loaded, simple form",
            "cached, keys - first_key,",
            "cached, keys - first_key - 1,",
        ),
        (
            "query heads interleaved over KV heads, simple form",
            "((token * kv_heads + kv_head) * group + row % group)",
            "((token * group + row % group) * kv_heads + kv_head)",
        ),
        (
            "rows of no sequence are left as they were, simple form",
            "  const int length = tile.seq < 0 ? 0 : seq_lens[tile.seq];\n  if (length <= 0) {\n",
            "  const int length = tile.seq < 0 ? 0 : seq_lens[tile.seq];\n"
            "  if (length <= 0) {\n    return;\n",
        ),
        (
            "rows of a tile are not padded, simple form",
            "target[r * (kPadded + 4) +",
            "target[r * kPadded +",
        ),
        (
            "a head is read beyond its end, simple form",
            "if (r < count && vector < kVectors)",
            "if (r < count)",
        ),
        (
            "columns after the head's end are stored, simple form",
            "if (at < kHeadDim) target",
            "target",
        ),
        (
            "K used in place of V, simple form",
            "fill_cached(v_cache, first_key)",
            "fill_cached(k_cache, first_key)",
        ),
        (
            "totals are not rescaled, simple form",
            "totals[i] * keep + lanes_sum",
            "totals[i] + lanes_sum",
        ),
        ("sums are not rescaled, simple form", "sums[i][part][k] *= keep;", ";"),
        ("each lane sums its own keys only, simple form", "lanes_sum<8>(added)", "added"),
        (
            "the maximum of half the lanes, simple form",
            "offset < 8; offset *= 2",
            "offset < 4; offset *= 2",
        ),
        (
            "the second row stores the first one's, simple form",
            "sums[1][part][k] = fmaf(p1.v[n]",
            "sums[1][part][k] = fmaf(p0.v[n]",
        ),
        (
            "only the first 32 output columns, simple form",
            "for (int part = 0; part < kParts; ++part) {\n        const int at",
            "for (int part = 0; part < 1; ++part) {\n        const int at",
        ),
        (
            "only the first rows of a tile are stored, simple form",
            "if (row0 + i < rows)",
            "if (row0 + i < rows - 1)",
        ),
        (
            "keys of the tile before are weighed again, simple form",
            "row0 * kProbsStride + key);",
            "row0 * kProbsStride);",
        ),
        (
            "weights rounded to T, simple form",
            "probs[(row0 + i) * kProbsStride + column + 8 * j] = prob;",
            "probs[(row0 + i) * kProbsStride + column + 8 * j] = to_float(from_float<T>(prob));",
        ),
        (
            "32-bit offset of a token in the cache, simple form",
            "const long long slot = (block",
            "const int slot = (block",
        ),
        (
            "table of the sequence after, simple form",
            "static_cast<long long>(slot_ids[tile.seq]) * max_blocks;\n  // How",
            "static_cast<long long>(slot_ids[tile.seq] + 1) * max_blocks;\n  // How",
        ),
        ("block size 16 assumed, simple form", "table[key / block_size]", "table[key / 16]"),
    ),
    *_bugs(
        "paged_prefill_attention",
        "paged_prefill_wgmma.cuh",
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
    *_bugs(
        "paged_prefill_attention",
        "chunk_tile.cuh",
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
    *_bugs(
        "paged_prefill_attention",
        "paged_prefill_attention.py",
        ("no tile for the tokens after all chunks", 'axes["seqs"] + 2', 'axes["seqs"]'),
        (
            "no room for the rows' places in shared memory",
            "* (head_dim + 8) + 4 * rows\n",
            "* (head_dim + 8)\n",
        ),
        (
            "tensor cores for blocks that are no power of two",
            "block_size & (block_size - 1) == 0",
            "block_size > 0",
        ),
        (
            "shared memory without the padding, simple form",
            "stride = -(-head_dim // 4) * 4 + 4",
            "stride = -(-head_dim // 4) * 4",
        ),
        (
            "no blocks for chunks of one token",
            'axes["seqs"] * head_sets(axes, form) + tiles * kv_heads',
            "tiles * kv_heads",
        ),
        (
            "shared memory for tiles only",
            "max(tile_bytes, form.shared_bytes)",
            "tile_bytes",
        ),
        (
            "too few tiles where a tile has more rows",
            "tiles = tokens * group // rows + segments",
            "tiles = tokens // rows + segments",
        ),
        (
            "rows alone are cut into other parts than decode's",
            "*cut_scalars(batch_invariant))",
            "np.int32(32), np.int32(2))",
        ),
    ),
    # ----------------------------------------------------------------------------------- sample
    *_bugs(
        "sample",
        "row_chunks.cuh",
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
            "    }\n    __syncthreads();\n  }\n}\n\n// A chunk as",
            "    }\n  }\n}\n\n// A chunk as",
        ),
        (
            "no barrier after the row is visited",
            "visit(tile[id - begin], id);\n    __syncthreads();\n",
            "visit(tile[id - begin], id);\n",
        ),
    ),
    *_bugs(
        "sample",
        "sample.cu",
        ("another word of the draw", ".w[0] >> 8", ".w[1] >> 8"),
        (
            "position and sample index swapped",
            "static_cast<unsigned>(position),\n                                      "
            "static_cast<unsigned>(sample_index[slot])",
            "static_cast<unsigned>(sample_index[slot]),\n                                      "
            "static_cast<unsigned>(position)",
        ),
        (
            "words of the seed swapped",
            "counter, seeds[2 * slot], seeds[2 * slot + 1]",
            "counter, seeds[2 * slot + 1], seeds[2 * slot]",
        ),
        (
            "position of the slot, not of the row",
            "sample_positions[blockIdx.y]",
            "sample_positions[slot]",
        ),
        (
            "stop ids banned a token too long",
            "position < min_position[slot]",
            "position <= min_position[slot]",
        ),
        (
            "bias of the row, not of its slot",
            "bias_values + static_cast<long long>(slot) *",
            "bias_values + static_cast<long long>(blockIdx.y) *",
        ),
        ("frequency alone is not applied", " || frequency != 0.0f;", ";"),
        ("presence alone is not applied", " || presence != 0.0f ||", " ||"),
        ("tiny temperatures are drawn", "temperature[slot] >= 1e-5f", "temperature[slot] > 0.0f"),
        ("min_p keeps a token below it", " + (rounded < threshold ? 1 : 0)", ""),
        ("min_p drops a token at it", " + (rounded < threshold ? 1 : 0)", " + 1"),
        ("min_p without temperature", "peak + t * log(", "peak + log("),
        ("all tokens are counted", "count_tokens[slot] != 0 ? counts : nullptr", "counts"),
        (
            "a broken row is counted",
            "if (token >= 0 && counted != nullptr)",
            "if (counted != nullptr)",
        ),
        ("a dead row gives -1", "token_ids[blockIdx.x] = 0;", "token_ids[blockIdx.x] = -1;"),
        ("a dead row is sampled", "  if (slot < 0) {\n", "  if (slot < -1) {\n"),
        (
            "32 bits in the low half of a share",
            "((total & 0xffffffffu) * draw >> 24)",
            "(static_cast<unsigned>(total) * draw >> 24)",
        ),
        ("weights in the power of 2, not of e", "1.4426950408889634 * inverse", "1.0 * inverse"),
        (
            "top_p is ignored below 1",
            "if (top_p < 1.0f) {\n    const Sum before",
            "if (top_p < 0.9f) {\n    const Sum before",
        ),
        (
            "every thread writes the count",
            "  if (threadIdx.x == 0) {\n    token_ids[blockIdx.x] = token;",
            "  {\n    token_ids[blockIdx.x] = token;",
        ),
        ("sums of bins are not reset", "      work.bin_weights[threadIdx.x] = 0;\n", ""),
        ("counts of bins are not reset", "      work.bin_counts[threadIdx.x] = 0;\n", ""),
        ("the number of candidates is not reset", "      work.num_candidates = 0;\n", ""),
        (
            "only the first warp adds to the last bin",
            "if (lane_index() == 0) {\n      weights.add(kBins - 1, rest);",
            "if (threadIdx.x == 0) {\n      weights.add(kBins - 1, rest);",
        ),
        (
            "no barrier before the bins are cleared",
            "    __syncthreads();\n    if (threadIdx.x < kBins) bin_weight",
            "    if (threadIdx.x < kBins) bin_weight",
        ),
        (
            "no barrier after the bins are cleared",
            "bin_weight += weights.take(threadIdx.x);\n    __syncthreads();\n",
            "bin_weight += weights.take(threadIdx.x);\n",
        ),
        (
            "sums of a block replace those of others",
            "atomicAdd(&work.bin_weights[threadIdx.x], bin_weight)",
            "atomicExch(&work.bin_weights[threadIdx.x], bin_weight)",
        ),
        (
            "top_p's part of all, not of what top_k keeps",
            "      least = ends.k_before;\n      most = ends.before;\n",
            "",
        ),
        (
            "no barrier before the sum of top_k is read",
            "    __syncthreads();\n    if (ends.k_bin < kBins) {\n      least",
            "    if (ends.k_bin < kBins) {\n      least",
        ),
        (
            "tokens of top_k's last bin are no candidates",
            "place < top_p_end || (place >= k_begin && place < k_end)",
            "place < top_p_end",
        ),
        (
            "one bin in which top_p may end",
            "if (before < last && sums.reached >= last) ends.last = bin;",
            "ends.last = ends.first;",
        ),
        (
            "a token of top_k too many",
            "first + static_cast<int>(ends.k_left) - 1",
            "first + static_cast<int>(ends.k_left)",
        ),
        (
            "candidates are weighed although they are cut off",
            "    if (kept.holds(candidate_key(candidate), id)) {\n",
            "    {\n",
        ),
        (
            "more candidates than there is room for",
            "work.num_candidates > kMaxCandidates",
            "work.num_candidates > 2 * kMaxCandidates",
        ),
        (
            "kept tokens below min_p",
            "      if (logit < draw.min_logit) return;\n      const float place",
            "      const float place",
        ),
        (
            "the second launch does not wait for the first",
            "  let_next_kernel_start();\n  wait_for_previous_kernel();\n"
            "  RowWork<T>& work = work_of<T>(workspace, blockIdx.y);\n  const Request",
            "  let_next_kernel_start();\n"
            "  RowWork<T>& work = work_of<T>(workspace, blockIdx.y);\n  const Request",
        ),
    ),
    *_bugs(
        "sample",
        "sample.cu",
        (
            "the floor lies in the last bin",
            "fminf((peak - logit) * scale, kBins - 1.0f)",
            "fminf((peak - logit) * scale, kBins - 2.0f)",
        ),
        (
            "a tie between bins belongs to the odd one",
            "(bin & 1) != 0 ? __int_as_float",
            "(bin & 1) == 0 ? __int_as_float",
        ),
        (
            "candidates up to the bin before top_p's last",
            "Places::edge(ends.last + 1)",
            "Places::edge(ends.last)",
        ),
        (
            "weights of half the groups of a chunk",
            "int offset = kGroups / 2; offset",
            "int offset = kGroups / 4; offset",
        ),
        (
            "the sums of chunks are not reset",
            "s.chunk_high[chunk] = s.chunk_low[chunk] = 0;",
            "s.chunk_high[chunk] = 0;",
        ),
        (
            "candidates count for the first chunk",
            "atomicAdd(&s.chunk_high[id / kChunk], term.high);",
            "atomicAdd(&s.chunk_high[0], term.high);",
        ),
    ),
    *_bugs(
        "sample",
        "row_order.cuh",
        (
            "the low half taken for positive",
            "static_cast<Sum>(static_cast<long long>(low))",
            "static_cast<unsigned>(low)",
        ),
        (
            "the part of a weight below 2^-19 lost",
            "(scaled - (shifted - kWhole)) * kUnit + kSigned",
            "kSigned",
        ),
    ),
    *_bugs(
        "sample",
        "philox.cuh",
        ("nine rounds", "round < 10", "round < 9"),
        ("the key is not advanced", "    key0 += 0x9E3779B9u;\n", ""),
    ),
    *_bugs(
        "sample",
        "row_order.cuh",
        (
            "the last of equal logits is the likeliest",
            "if (key > top_key)",
            "if (key >= top_key)",
        ),
        ("+inf is taken for a logit", "top_key >= kInfinityKey", "top_key > kInfinityKey"),
        ("a negative NaN is not seen", " || bottom_key < -kInfinityKey", ""),
        (
            "negative logits in the wrong order",
            "return bits >= 0 ? bits : kLowestInt - bits;",
            "return bits;",
        ),
        (
            "a scan without its last step",
            "offset = 1; offset < 32; offset <<= 1",
            "offset = 1; offset < 16; offset <<= 1",
        ),
        (
            "the scan adds to every lane",
            "if (lane_index() >= offset) reached += left;",
            "reached += left;",
        ),
        (
            "no barrier before the warps' sums are read",
            "warps[warp_index()] = reached;\n  __syncthreads();",
            "warps[warp_index()] = reached;",
        ),
        (
            "no barrier after the warps' sums are read",
            "  __syncthreads();\n  return {reached, total};",
            "  return {reached, total};",
        ),
    ),
    *_bugs(
        "sample",
        "shortest_prefix.cuh",
        (
            "tokens filtered before are weighed again",
            "key <= top_key && kept.holds(key, id);\n    };",
            "key <= top_key;\n    };",
        ),
        (
            "all of many ties are kept",
            "return {top_key, lowest_id_above<T, kWidth>(row, tied, target, s)};",
            "return {top_key, kHighestInt};",
        ),
        (
            "more candidates than there is room for, of a prefix",
            "if (count <= kMaxCandidates) {\n",
            "if (count <= 2 * kMaxCandidates) {\n",
        ),
        (
            "no barrier while the scratch is read",
            "    __syncthreads();  // the scratch may still be read\n",
            "",
        ),
        (
            "the sum of earlier rounds is lost",
            "      s.before = reached - own;",
            "      s.before = reached - own - before;",
        ),
        ("sorted the wrong way", "== ((left & size) == 0)", "== ((left & size) != 0)"),
        (
            "a bin after the last",
            "return static_cast<int>((static_cast<unsigned>(top_key)",
            "return 1 + static_cast<int>((static_cast<unsigned>(top_key)",
        ),
        (
            "a prefix that ends with a candidate is a token longer",
            "if (reached >= wanted && reached - own < wanted) s.end = i;",
            "if (reached > wanted && reached - own <= wanted) s.end = i;",
        ),
        (
            "no barrier in the sort",
            "      }\n      __syncthreads();\n    }\n  }\n}",
            "      }\n    }\n  }\n}",
        ),
        (
            "padding sorts before the candidates",
            "s.candidates[i] = ~Sum(0);",
            "s.candidates[i] = 0;",
        ),
        (
            "the bins keep what they held",
            "high[0][bin] = high[1][bin] = low[0][bin] = low[1][bin] = 0;",
            "high[0][bin] = high[1][bin] = low[0][bin] = 0;",
        ),
        (
            "a bin is not emptied when its sum is taken",
            "      high[copy][bin] = low[copy][bin] = 0;\n",
            "",
        ),
        (
            "candidates of a warp overwrite each other",
            "atomicAdd(num_candidates, index)",
            "*num_candidates, *num_candidates += index",
        ),
        (
            "a chunk's sum without the chunks before it",
            "Sum before = __shfl_sync(kAllLanes, reached - own_chunk, chunk);",
            "Sum before = 0;",
        ),
        (
            "an edge belongs to the token before it",
            "      if (passed > goal) break;\n",
            "      if (passed >= goal) break;\n",
        ),
        (
            "the first token of a thread is found",
            "for (; i < end - 1; ++i) {",
            "for (; i < begin; ++i) {",
        ),
    ),
    # --------------------------------------------------------------------------------- logprobs
    *_bugs(
        "logprobs",
        "logprobs.cu",
        (
            "the peak is not subtracted",
            "to_float(row.logits[wanted.target]) - peak - log_sum;",
            "to_float(row.logits[wanted.target]) - log_sum;",
        ),
        (
            "rank counted from 0",
            "block_scan<kThreads>(before).total)",
            "block_scan<kThreads>(before).total - 1)",
        ),
        (
            "more tokens listed than there are",
            "min(min(num_logprobs[row], max_logprobs), vocab)",
            "min(num_logprobs[row], max_logprobs)",
        ),
        (
            "a row that wants nothing writes before its list",
            "int i = listed + threadIdx.x",
            "int i = wanted.count + threadIdx.x",
        ),
        ("a target of id 0 is ignored", "target_ids[row] >= 0 ?", "target_ids[row] > 0 ?"),
        (
            "the number of candidates is not reset",
            "threadIdx.x == 0) work.num_candidates = 0;",
            "false) work.num_candidates = 0;",
        ),
        ("a row without a target reads before the row", "    if (target < 0) count = -1;\n", ""),
        (
            "overflows for large logits",
            "sum += expf(logit - peak);",
            "sum += expf(logit) * expf(-peak);",
        ),
        (
            "the sampled token in place of the target",
            "target_ids[row] >= 0 ? target_ids[row] : token_ids[row]",
            "token_ids[row]",
        ),
        (
            "the list of the first row for all",
            "top_ids[at] = candidate_id(candidate);",
            "top_ids[i] = candidate_id(candidate);",
        ),
        (
            "a token too few in the list",
            "return static_cast<Sum>(count);",
            "return static_cast<Sum>(count - 1);",
        ),
        (
            "fewer candidates than are listed",
            "if (num_candidates < count || num_candidates > kMaxCandidates)",
            "if (num_candidates > kMaxCandidates)",
        ),
        (
            "more candidates than there is room for",
            "if (num_candidates < count || num_candidates > kMaxCandidates)",
            "if (num_candidates < count)",
        ),
        (
            "only one warp's sum of a chunk",
            "group_sums[chunk.index * kGroups + warp_index()] = sum;",
            "group_sums[chunk.index * kGroups] = sum;",
        ),
    ),
    *_bugs(
        "logprobs",
        "row_order.cuh",
        (
            "equal logits of lower id are not before",
            "token_key == key && id <= last_id",
            "token_key == key && id < last_id",
        ),
        (
            "-0 is below 0",
            "return bits >= 0 ? bits : kLowestInt - bits;",
            "return bits >= 0 ? bits : kHighestInt - bits;",
        ),
    ),
)
