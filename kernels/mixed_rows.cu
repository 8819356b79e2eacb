// mixed_rows: for row i of the step's sequence q in slot s = slot_ids[q], with n = num_computed[s]:
// token new_token_ids (or last_token[s] where that is -1) at position n + i, to the cache at
// block_tables[s, (n + i) / size] * size + (n + i) % size
//
// Copies and counts, so it rounds nothing. Thread t does token t, sequence t and row of logits t. A
// token finds its sequence by binary search; tokens after the last sequence, and all of a sequence that
// is done or has no slot, are dead. The first thread also begins the step.
#include "ptx.cuh"
#include "step_numbers.cuh"

__device__ __forceinline__ bool is_live(int slot, const int* done) {
  return slot >= 0 && done[slot] == 0;
}

__global__ void __launch_bounds__(128) mixed_rows(
    int* __restrict__ token_ids,     // [tokens]
    int* __restrict__ positions,     // [tokens]
    int* __restrict__ slot_mapping,  // [tokens]
    int* __restrict__ seq_lens,      // [seqs]
    int* __restrict__ live_row_ids,  // [logits]
    int* step,                       // [1]: the newest step that has begun
    const int* new_token_ids,        // [tokens]
    const int* slot_ids,             // [seqs]
    const int* query_start_loc,      // [seqs + 1]
    const int* row_ids,              // [logits]
    const int* last_token,           // [slots]
    const int* num_computed,         // [slots]
    const int* done,                 // [slots]
    const int* block_tables,         // [slots, max_blocks]
    const int* launch,               // [2]: the first step, and how many there are
    int tokens,
    int seqs,
    int logits,
    int max_blocks,
    int block_size) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t == 0) step[0] = begun_step(step[0], launch[0]);
  if (t < seqs) {
    const int slot = slot_ids[t], count = query_start_loc[t + 1] - query_start_loc[t];
    seq_lens[t] = is_live(slot, done) ? num_computed[slot] + count : 0;
  }
  if (t < logits) live_row_ids[t] = is_live(row_ids[t], done) ? row_ids[t] : -1;
  if (t >= tokens) return;

  int token = 0, position = 0, where = -1;
  if (t < query_start_loc[seqs]) {
    int low = 0, high = seqs - 1;  // the last sequence that begins at or before t, which owns t
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (query_start_loc[middle] <= t) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    const int slot = slot_ids[low];
    if (is_live(slot, done)) {
      position = num_computed[slot] + t - query_start_loc[low];
      const int given = new_token_ids[t];
      token = given < 0 ? last_token[slot] : given;
      const long long entry = static_cast<long long>(slot) * max_blocks + position / block_size;
      where = block_tables[entry] * block_size + position % block_size;
    }
  }
  token_ids[t] = token;
  positions[t] = position;
  slot_mapping[t] = where;
}
