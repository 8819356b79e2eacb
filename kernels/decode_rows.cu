// decode_rows: for the sequence in slot s = row_ids[r], with n = num_computed[s] tokens in the cache,
// token last_token[s] at position n, to the cache at block_tables[s, n / size] * size + n % size
//
// Copies and counts, so it rounds nothing. A thread a row. A row without a sequence, whose sequence is
// done, or whose table has no block for the token is dead. The first thread also begins the step.
#include "live_row.cuh"
#include "ptx.cuh"
#include "step_numbers.cuh"

__global__ void __launch_bounds__(128) decode_rows(
    int* __restrict__ token_ids,         // [rows]
    int* __restrict__ positions,         // [rows]
    int* __restrict__ slot_mapping,      // [rows]
    int* __restrict__ seq_lens,          // [rows]
    int* __restrict__ live_row_ids,      // [rows]
    int* __restrict__ sample_positions,  // [rows]
    int* __restrict__ target_ids,        // [rows]
    int* __restrict__ row_logprobs,      // [rows]
    int* step,                           // [1]: the newest step that has begun
    const int* row_ids,                  // [rows]
    const int* last_token,               // [slots]
    const int* num_computed,             // [slots]
    const int* done,                     // [slots]
    const int* block_tables,             // [slots, max_blocks]
    const int* num_logprobs,             // [slots]
    const int* launch,                   // [2]: the first step, and how many there are
    int rows,
    int max_blocks,
    int block_size) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row == 0) step[0] = begun_step(step[0], launch[0]);
  if (row >= rows) return;
  const int slot = row_ids[row];
  const int position = slot >= 0 ? num_computed[slot] : 0;
  const int block = block_of(slot, position, done, block_tables, max_blocks, block_size);
  const bool live = block > 0;
  const int where = live ? block * block_size + position % block_size : -1;
  token_ids[row] = live ? last_token[slot] : 0;
  positions[row] = live ? position : 0;
  slot_mapping[row] = where;
  seq_lens[row] = live ? position + 1 : 0;
  live_row_ids[row] = live ? slot : -1;
  sample_positions[row] = live ? position + 1 : 0;
  target_ids[row] = -1;
  row_logprobs[row] = live ? num_logprobs[slot] : -1;
}
