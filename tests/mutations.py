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


MUTATIONS: tuple[Mutation, ...] = (
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
            "if (i >= num_changes) return;",
            "if (i >= num_changes - 1) return;",
        ),
        ("no guard after the last change", "if (i >= num_changes) return;", ""),
        (
            "every block does the first changes",
            "blockIdx.x * blockDim.x + threadIdx.x",
            "threadIdx.x",
        ),
    ),
    # ------------------------------------------------------------------------------ decode_rows
    *_bugs(
        "decode_rows",
        "decode_rows.cu",
        ("slot 0 is dead", "slot >= 0 && done[slot] == 0", "slot > 0 && done[slot] == 0"),
        ("a sequence that is done goes on", " && done[slot] == 0", ""),
        ("a full table is read beyond its end", " && block < max_blocks", ""),
        ("the last block counts as full", "block < max_blocks", "block < max_blocks - 1"),
        (
            "the row's own table, not its slot's",
            "static_cast<long long>(slot) * max_blocks",
            "static_cast<long long>(row) * max_blocks",
        ),
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
        ("dead rows write to block 0", "int where = -1", "int where = 0"),
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
        ("dead rows move slot -1", " || row_ids[row] < 0", ""),
        ("slot 0 never moves", "row_ids[row] < 0", "row_ids[row] <= 0"),
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
    # -------------------------------------------------------------------------------- embedding
    *_bugs(
        "embedding",
        "embedding.cu",
        ("a dead row reads row -1", "if (id >= 0) values", "values"),
        ("token 0 is taken for a dead row", "if (id >= 0)", "if (id > 0)"),
        ("no guard after the row's end", "if (column >= vectors) return;", ""),
        (
            "row stride in elements, not vectors",
            "[id * vectors + column]",
            "[id * hidden + column]",
        ),
        ("the block's part of a row ignored", "blockIdx.y * kThreads + threadIdx.x", "threadIdx.x"),
        (
            "a dead row is left as it was",
            "Vector values = zeros<T, kWidth>();\n",
            "Vector values;\n",
        ),
    ),
    *_bugs(
        "embedding",
        "embedding.py",
        (
            "grid rounded down: the last part of a long row is missing",
            "-(-(hidden // width) // threads)",
            "max(1, hidden // width // threads)",
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
            "to_float(values.v[k]) * scale *",
            "to_float(from_float<T>(to_float(values.v[k]) * scale)) *",
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
            "i < vectors; i += kThreads) {\n    const Vector values = x_row[i];",
            "i < vectors - 1; i += kThreads) {\n    const Vector values = x_row[i];",
        ),
        (
            "only the first vector of a thread is written",
            "gains = weights[i];\n",
            "gains = weights[i];\n    if (i >= kThreads) break;\n",
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
            "const float value = to_float(held[h].v[k]);",
            "const float value = to_float(left.v[k]) + to_float(right.v[k]);",
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
        ("b left out", "to_float(left.v[k]) + to_float(right.v[k])", "to_float(left.v[k])"),
        ("sum and out swapped", "      sum_row[i] = held[h];\n", "      out_row[i] = held[h];\n"),
        (
            "no guard after the row's end",
            "    if (i < vectors) {\n      const Vector left",
            "    {\n      const Vector left",
        ),
        (
            "vectors of a thread side by side",
            "    const int i = h * kThreads + threadIdx.x;\n"
            "    if (i < vectors) {\n"
            "      const Vector gains",
            "    const int i = threadIdx.x * kHeld + h;\n"
            "    if (i < vectors) {\n"
            "      const Vector gains",
        ),
    ),
    *_bugs(
        "add_rms_norm",
        "add_rms_norm.py",
        (
            "a vector too few held by a thread",
            "held = -(-(hidden // width) // threads)",
            "held = max(1, hidden // width // threads)",
        ),
        (
            "blocks of another size than rms_norm's, so another order",
            "threads = block_threads(hidden // width)",
            "threads = block_threads(hidden // width, 64)",
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
        ("wrong sign in exp", "expf(-gate)", "expf(gate)"),
        (
            "overflows for large gates",
            "gate / (1.0f + expf(-gate))",
            "gate * expf(gate) / (1.0f + expf(gate))",
        ),
        (
            "rounded before the product",
            "gate / (1.0f + expf(-gate)) *",
            "to_float(from_float<T>(gate / (1.0f + expf(-gate)))) *",
        ),
        ("sigmoid in place of SiLU", "from_float<T>(gate / ", "from_float<T>(1.0f / "),
        ("no guard after the row's end", "if (column >= vectors) return;", ""),
        ("the block's part of a row ignored", "blockIdx.y * kThreads + threadIdx.x", "threadIdx.x"),
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
            "      b.v[k] = from_float<T>(y * cosines.v[k] + x",
            "x * cosines.v[k] + y * sines.v[k]);\n"
            "      b.v[k] = from_float<T>(y * cosines.v[k] - x",
        ),
        (
            "the second half reads the rotated first one",
            "y * cosines.v[k] + x * sines",
            "y * cosines.v[k] + to_float(a.v[k]) * sines",
        ),
        (
            "pairs are neighbours, as in GPT-J",
            "a = source[column], b = source[column + half]",
            "a = source[2 * column], b = source[2 * column + 1]",
        ),
        ("v is rotated too", "if (head < heads + kv_heads) {", "{"),
        ("k is not rotated", "if (head < heads + kv_heads) {", "if (head < heads) {"),
        (
            "k and v stored in each other's cache",
            "is_key ? k_cache : v_cache",
            "is_key ? v_cache : k_cache",
        ),
        ("v of a dead row is stored", "if (slot < 0) return;", ""),
        (
            "q of a dead row is left as it was",
            "target[column] = target[column + half] = zeros<T, kWidth>();\n",
            "",
        ),
        (
            "half of a dead row's q is left",
            "target[column] = target[column + half] = zeros",
            "target[column] = zeros",
        ),
        (
            "slot 0 is taken for a dead row",
            "    if (slot < 0) return;",
            "    if (slot <= 0) return;",
        ),
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
        ("angles of the row, not of the position", "positions[token] * 2LL", "token * 2LL"),
        ("angles of half the position", "positions[token] * 2LL * half", "positions[token] * half"),
        (
            "products rounded",
            "from_float<T>(x * cosines.v[k] -",
            "from_float<T>(to_float(from_float<T>(x * cosines.v[k])) -",
        ),
        (
            "v's columns not counted in a row",
            "(token * (heads + 2 * kv_heads) + head)",
            "(token * (heads + kv_heads) + head)",
        ),
        (
            "half a head taken for a power of two",
            "column = item % half",
            "column = item & (half - 1)",
        ),
        (
            "the block's part of the heads ignored",
            "blockIdx.y * kThreads + threadIdx.x",
            "threadIdx.x",
        ),
        (
            "the last KV head is left out",
            "if (head >= heads + 2 * kv_heads) return;",
            "if (head >= heads + 2 * kv_heads - 1) return;",
        ),
        (
            "heads of k and v taken in turns",
            "head - heads - (is_key ? 0 : kv_heads)",
            "(head - heads) / 2",
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
        ("rows after the last are stored", " && row < tokens && ", " && "),
        (
            "columns after the last are stored",
            "row < tokens && output < out_features",
            "row < tokens",
        ),
        ("rows after the last are read", "min(first_row + r, tokens - 1)", "first_row + r"),
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
            "static_cast<long long>(row) * out_features",
            "static_cast<long long>(row) * in_features",
        ),
        (
            "32-bit offset of a result",
            "static_cast<long long>(row) * out_features",
            "row * out_features",
        ),
    ),
    *_bugs(
        "linear",
        "linear.py",
        (
            "grid rounded down: the last rows are missing",
            "-(-tokens // rows)",
            "max(1, tokens // rows)",
        ),
        (
            "two columns a warp for one row too, in the grid only",
            "outputs_of_block = outputs *",
            "outputs_of_block = 2 *",
        ),
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
            "((row * kv_heads + kv_head) * group + first_head)",
            "((row * group + first_head) * kv_heads + kv_head)",
        ),
        ("heads of the next KV head are written", "min(kHeads, group - first_head)", "kHeads"),
        ("an empty row divides by zero", "if (length <= 0)", "if (length < 0)"),
        ("a dead row is left as it was", "      out[at + i] = from_float<T>(0.0f);\n", "      ;\n"),
        ("only the first head of a dead row is zeroed", "i < heads * kHeadDim", "i < kHeadDim"),
        ("a block too few in a row of the table", "row * max_blocks", "row * (max_blocks - 1)"),
        (
            "the current token is not seen",
            "length = seq_lens[row];",
            "length = max(seq_lens[row] - 1, min(seq_lens[row], 1));",
        ),
        (
            "a token too many is seen",
            "length = seq_lens[row];",
            "length = seq_lens[row] + (seq_lens[row] > 0);",
        ),
        (
            "always the first part of the heads",
            "first_head = blockIdx.z * kHeads",
            "first_head = 0",
        ),
        (
            "group and KV heads swapped",
            "heads, kv_head,\n      kv_heads, block_size",
            "heads, kv_head,\n      group, block_size",
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
        (
            "heads of a part rounded down",
            "heads = -(-group // parts)",
            "heads = group // parts",
        ),
    ),
    *_bugs(
        "paged_decode_attention",
        "attend_row.cuh",
        (
            "tokens after the last enter the maximum",
            "if (first + n * kStreams + stream < length) best",
            "best",
        ),
        (
            "tokens after the last are weighed",
            "live ? exp2_for<T>(scores[n] - best) : 0.0f",
            "exp2_for<T>(scores[n] - best)",
        ),
        (
            "tokens after the last are read",
            "if (token < length && vector < kVectors) {",
            "if (vector < kVectors) {",
        ),
        (
            "a token too many is weighed",
            "live = first + n * kStreams + stream < length",
            "live = first + n * kStreams + stream <= length",
        ),
        ("block size 16 assumed", "block_table[token / block_size]", "block_table[token / 16]"),
        (
            "heads and offsets of a block swapped",
            "(block * kv_heads + kv_head) * block_size + token % block_size",
            "(block * block_size + token % block_size) * kv_heads + kv_head",
        ),
        ("K read in place of V", "const Vector*>(v_cache)[row", "const Vector*>(k_cache)[row"),
        ("sums are not rescaled", "sum = __fmul_rn(sums[h][j][k], keep);", "sum = sums[h][j][k];"),
        ("totals are not rescaled", "fmaf(totals[h], keep, added)", "totals[h] + added"),
        (
            "the maximum of earlier tokens is forgotten",
            "best = highest[h];\n#pragma unroll\n      for (int n = 0",
            "best = kLowest;\n#pragma unroll\n      for (int n = 0",
        ),
        ("the new maximum is not kept", "highest[h] = best;\n      float added", "float added"),
        ("0 as the identity of the maximum", "kLowest = -3.402823466e38f", "kLowest = 0.0f"),
        (
            "the smallest positive float as the lowest",
            "kLowest = -3.402823466e38f",
            "kLowest = 1.175494351e-38f",
        ),
        (
            "streams of a warp merged halfway",
            "best = highest[h];\n#pragma unroll\n    for (int offset = kLanes; offset < 32",
            "best = highest[h];\n#pragma unroll\n    for (int offset = kLanes; offset < 16",
        ),
        (
            "the last step of a stream's sum is missing",
            "offset = kLanes; offset < 32; offset *= 2) {\n    v +=",
            "offset = kLanes; offset < 16; offset *= 2) {\n    v +=",
        ),
        (
            "no barrier before the warps are merged",
            "      }\n    }\n    __syncthreads();\n    float best = kLowest;",
            "      }\n    }\n    float best = kLowest;",
        ),
        (
            "no barrier before the next head's numbers",
            "from_float<T>(sum / total);\n    }\n    __syncthreads();\n",
            "from_float<T>(sum / total);\n    }\n",
        ),
        (
            "barriers of one warp only",
            "from_float<T>(sum / total);\n    }\n    __syncthreads();\n",
            "from_float<T>(sum / total);\n    }\n    __syncwarp();\n",
        ),
        (
            "a head is read beyond its end",
            "if (token < length && vector < kVectors) {",
            "if (token < length) {",
        ),
        (
            "queries of the next heads are read",
            "if (vector < kVectors && h < heads) {",
            "if (vector < kVectors) {",
        ),
        ("queries are not scaled", "to_float(loaded.v[k]) * scale_log2", "to_float(loaded.v[k])"),
        (
            "warps are not rescaled in the merge",
            "sum = fmaf(warp_sums[w][column], keep, sum);",
            "sum += warp_sums[w][column];",
        ),
        (
            "the last round of tokens is left out",
            "< length; first += kTokens",
            "+ kTokens * kStreams <= length; first += kTokens",
        ),
        ("tokens are seen in several rounds", "first += kTokens * kStreams)", "first += kStreams)"),
        (
            "loads of a lane rounded down",
            "(kVectors + kLanes - 1) / kLanes",
            "(kVectors < kLanes ? 1 : kVectors / kLanes)",
        ),
        (
            "only the first load of a lane is in the score",
            "for (int j = 0; j < kLoads; ++j) {\n"
            "#pragma unroll\n"
            "          for (int k = 0; k < kWidth; ++k) {\n"
            "            dot",
            "for (int j = 0; j < 1; ++j) {\n"
            "#pragma unroll\n"
            "          for (int k = 0; k < kWidth; ++k) {\n"
            "            dot",
        ),
        (
            "only as many columns as threads are stored",
            "column < kHeadDim; column += kThreads",
            "column < min(kHeadDim, 128); column += kThreads",
        ),
        ("the first query head in place of each", "[h * kVectors + vector]", "[vector]"),
        (
            "the score of the first query head for all",
            "fmaf(queries[h][j][k]",
            "fmaf(queries[0][j][k]",
        ),
        ("32-bit offset of a token in the cache", "long long row = 0;", "int row = 0;"),
        (
            "weights rounded to T",
            "live ? exp2_for<T>(scores[n] - best)",
            "live ? to_float(from_float<T>(exp2_for<T>(scores[n] - best)))",
        ),
        (
            "divides by the last warp's total",
            "total = fmaf(warp_totals[w], keep, total);",
            "total = warp_totals[w] * keep;",
        ),
    ),
    # ------------------------------------------------------------------ paged_prefill_attention
    *_bugs(
        "paged_prefill_attention",
        "paged_prefill_attention.cu",
        (
            "a token does not see itself",
            "(tile.first_row + r) / group + 1;",
            "(tile.first_row + r) / group;",
        ),
        (
            "a token sees the next one",
            "(tile.first_row + r) / group + 1;",
            "(tile.first_row + r) / group + 2;",
        ),
        (
            "no causal mask",
            "column + 8 * j < limit ? exp2_for<T>(scores[i][j] - best) : 0.0f",
            "exp2_for<T>(scores[i][j] - best)",
        ),
        ("hidden tokens enter the maximum", "if (column + 8 * j < limit) best", "best"),
        (
            "only the last 32 columns are in the score",
            "scores[1][j] += part[1][j];",
            "scores[1][j] = part[1][j];",
        ),
        (
            "parts of a score overlap",
            "first < kPadded; first += 32",
            "first < kPadded; first += 16",
        ),
        (
            "mask of the first tile of keys for all",
            "visible(row0 + i) - first_key;",
            "visible(row0 + i);",
        ),
        (
            "mask of the first tile of rows for all",
            "(tile.first_row + r) / group + 1",
            "r / group + 1",
        ),
        (
            "no barrier before K is read",
            "    fill_cached(k_cache, first_key);\n    __syncthreads();\n",
            "    fill_cached(k_cache, first_key);\n",
        ),
        ("no barrier before V replaces K", "    __syncthreads();  // before V replaces K\n", ""),
        (
            "no barrier before V is read",
            "    __syncthreads();\n#pragma unroll 2\n",
            "#pragma unroll 2\n",
        ),
        (
            "no barrier before the next K",
            "    __syncthreads();  // before the next K replaces V\n",
            "",
        ),
        (
            "keys after the last are read",
            "fill_tile<T, kWidth, kVectors>(cached, keys - first_key,",
            "fill_tile<T, kWidth, kVectors>(cached, kTileKeys,",
        ),
        (
            "the last key is not loaded",
            "cached, keys - first_key,",
            "cached, keys - first_key - 1,",
        ),
        (
            "query heads interleaved over KV heads",
            "((token * kv_heads + kv_head) * group + row % group)",
            "((token * group + row % group) * kv_heads + kv_head)",
        ),
        ("the search for a tile does not end", "(low + high + 1) / 2", "(low + high) / 2"),
        (
            "the first tile of a chunk is the last of the one before",
            "if (first_tile(middle) <= index)",
            "if (first_tile(middle) < index)",
        ),
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
            "rows of no sequence are left as they were",
            "  const int length = tile.seq < 0 ? 0 : seq_lens[tile.seq];\n  if (length <= 0) {\n",
            "  const int length = tile.seq < 0 ? 0 : seq_lens[tile.seq];\n"
            "  if (length <= 0) {\n"
            "    return;\n",
        ),
        ("rows of a tile are not padded", "target[r * (kPadded + 4) +", "target[r * kPadded +"),
        ("a head is read beyond its end", "if (r < count && vector < kVectors)", "if (r < count)"),
        ("columns after the head's end are stored", "if (at < kHeadDim) target", "target"),
        (
            "K used in place of V",
            "fill_cached(v_cache, first_key)",
            "fill_cached(k_cache, first_key)",
        ),
        ("totals are not rescaled", "totals[i] * keep + lanes_sum", "totals[i] + lanes_sum"),
        ("sums are not rescaled", "sums[i][part][k] *= keep;", ";"),
        ("each lane sums its own keys only", "lanes_sum<8>(added)", "added"),
        ("the maximum of half the lanes", "offset < 8; offset *= 2", "offset < 4; offset *= 2"),
        (
            "the second row stores the first one's",
            "sums[1][part][k] = fmaf(p1.v[n]",
            "sums[1][part][k] = fmaf(p0.v[n]",
        ),
        (
            "only the first 32 output columns",
            "for (int part = 0; part < kParts; ++part) {\n        const int at",
            "for (int part = 0; part < 1; ++part) {\n        const int at",
        ),
        (
            "only the first rows of a tile are stored",
            "if (row0 + i < rows)",
            "if (row0 + i < rows - 1)",
        ),
        (
            "keys of the tile before are weighed again",
            "row0 * kProbsStride + key);",
            "row0 * kProbsStride);",
        ),
        (
            "weights rounded to T",
            "probs[(row0 + i) * kProbsStride + column + 8 * j] = prob;",
            "probs[(row0 + i) * kProbsStride + column + 8 * j] = to_float(from_float<T>(prob));",
        ),
        (
            "32-bit offset of a token in the cache",
            "const long long slot = (block",
            "const int slot = (block",
        ),
        (
            "table of the sequence after",
            "static_cast<long long>(tile.seq) * max_blocks;\n  // How",
            "static_cast<long long>(tile.seq + 1) * max_blocks;\n  // How",
        ),
        ("block size 16 assumed", "table[key / block_size]", "table[key / 16]"),
        (
            "all rows of a chunk see all of it, alone",
            "seq_lens[tile.seq] - tile.chunk + tile.first_row + 1",
            "seq_lens[tile.seq]",
        ),
        (
            "a token does not see itself, alone",
            "seq_lens[tile.seq] - tile.chunk + tile.first_row + 1",
            "max(seq_lens[tile.seq] - tile.chunk + tile.first_row, 1)",
        ),
        (
            "a token after the chunk is computed",
            "if (tile.first_row >= tile.chunk) return;",
            "if (tile.first_row > tile.chunk) return;",
        ),
        (
            "heads of the next KV head are written, alone",
            "min(kHeads, group - first_head)",
            "kHeads",
        ),
    ),
    *_bugs(
        "paged_prefill_attention",
        "paged_prefill_attention.py",
        ("no tile for the tokens after all chunks", 'axes["seqs"] + 2', 'axes["seqs"]'),
        (
            "shared memory without the padding",
            "stride = -(-head_dim // 4) * 4 + 4",
            "stride = -(-head_dim // 4) * 4",
        ),
        (
            "rows alone differ from decode in the heads of a block",
            "        template, parts = row_template(axes, dtype)\n",
            "        template, parts = row_template(axes, dtype)\n"
            '        template = template.replace(", 4, 256", ", 2, 256")\n',
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
            "no barrier before the tile is filled again",
            "  __syncthreads();  // the tile may still be read\n",
            "",
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
            "        logit = logit > 0.0f ? __fdiv_rn(logit, row.repetition) : __fmul_rn(logit, row.repetition);\n        logit = __fadd_rn(logit, -__fmul_rn(row.frequency, static_cast<float>(count)));\n",
            "        logit = __fadd_rn(logit, -__fmul_rn(row.frequency, static_cast<float>(count)));\n        logit = logit > 0.0f ? __fdiv_rn(logit, row.repetition) : __fmul_rn(logit, row.repetition);\n",
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
            "more candidates than there is room for",
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
