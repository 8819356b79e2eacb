// begin_rows: apply_changes, decode_rows, embedding and attention_parts for a step of few rows, in one
// launch: what those files say, one after the other.
//
// Copies and counts, so it rounds nothing. One block: a thread a change, then a thread a row, then all
// threads cut the rows and copy vectors of kWidth elements of their embeddings; kWidth divides hidden. The
// words that change are those of the sequences, by another name.
#include "attention_parts.cuh"
#include "common.cuh"
#include "live_row.cuh"
#include "ptx.cuh"
#include "step_numbers.cuh"

constexpr int kMaxRows = 16;

template <typename T, int kWidth, int kThreads>
__global__ void __launch_bounds__(kThreads, 1) begin_rows(
    int* token_ids,               // [rows]
    int* positions,               // [rows]
    int* slot_mapping,            // [rows]
    int* seq_lens,                // [rows]
    int* live_row_ids,            // [rows]
    int* sample_positions,        // [rows]
    int* target_ids,              // [rows]
    int* row_logprobs,            // [rows]
    T* out,                       // [rows, hidden]
    int* parts,                   // [rows+spare, words]
    int* arrivals,                // [rows, heads]
    int* words,                   // [words]
    int* step,                    // [1]: the newest step that has begun
    const int* changes,           // [changes, 2]
    const int* launch,            // [2]: the first step, and how many there are
    const int* row_ids,           // [rows]
    const int* last_token,        // [slots]
    const int* num_computed,      // [slots]
    const int* done,              // [slots]
    const int* block_tables,      // [slots, max_blocks]
    const int* num_logprobs,      // [slots]
    const T* __restrict__ table,  // [vocab, hidden]
    int rows,
    int num_changes,
    int max_blocks,
    int block_size,
    int hidden,
    int all_parts,  // rows + spare
    int heads,
    int kv_heads,
    int whole_shares,
    int part_shares,
    int lone_blocks) {
  __shared__ int tokens[kMaxRows], lengths[kMaxRows], slots[kMaxRows], scratch[3 * kMaxRows];
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int row = threadIdx.x, slot = row < rows ? row_ids[row] : -1;
  const int newest = step[0], first_step = launch[0];
  if (is_before(newest, first_step)) {
    for (int i = threadIdx.x; i < num_changes; i += kThreads) {
      const auto change = reinterpret_cast<const Pack<int, 2>*>(changes)[i];
      if (change.v[0] >= 0) words[change.v[0]] = change.v[1];
    }
  }
  __syncthreads();  // all have read the step, and all words are written
  if (threadIdx.x == 0) step[0] = begun_step(newest, first_step);
  if (row < rows) {
    const int position = slot >= 0 ? num_computed[slot] : 0;
    const int token = slot >= 0 ? last_token[slot] : 0;
    const int wanted = slot >= 0 ? num_logprobs[slot] : -1;
    const int block = block_of(slot, position, done, block_tables, max_blocks, block_size);
    const bool live = block > 0;
    tokens[row] = token_ids[row] = live ? token : 0;
    positions[row] = live ? position : 0;
    slot_mapping[row] = live ? block * block_size + position % block_size : -1;
    lengths[row] = seq_lens[row] = live ? position + 1 : 0;
    slots[row] = live_row_ids[row] = live ? slot : -1;
    sample_positions[row] = live ? position + 1 : 0;
    target_ids[row] = -1;
    row_logprobs[row] = live ? wanted : -1;
  }
  __syncthreads();
  using Vector = Pack<T, kWidth>;
  const int vectors = hidden / kWidth;
  const auto embedded = [&](int i) {
    const long long token = tokens[i / vectors];
    return reinterpret_cast<const Vector*>(table)[token * vectors + i % vectors];
  };
  Vector first;  // is on its way while rows are cut
  if (threadIdx.x < rows * vectors) first = embedded(threadIdx.x);
  cut_rows<kThreads>(
      parts, arrivals, slots, lengths, rows, all_parts, heads, kv_heads, whole_shares, part_shares,
      lone_blocks, scratch);
  if (threadIdx.x < rows * vectors) reinterpret_cast<Vector*>(out)[threadIdx.x] = first;
  for (int i = threadIdx.x + kThreads; i < rows * vectors; i += kThreads) {
    reinterpret_cast<Vector*>(out)[i] = embedded(i);
  }
}
