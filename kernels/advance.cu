// advance: for row r of slot s = row_ids[r], whose token stands at p = sample_positions[r]:
// last_token[s] = token; num_computed[s] = p; done[s] = 1 if the token is in stop_ids[s] and
// p >= min_position[s], or p + 1 >= end_position[s] > 0, or the token is -1
// and for every row, dead or not: token_ring[step % ring_steps, r] = (token, step), the token of a dead
// row being -2
//
// Copies and compares, so it rounds nothing. A warp a row: its lanes look through the stop ids. The host
// reads the ring while the device runs on: a token and its step are one word of 64 bits, and a volatile
// store of it is one that the whole system sees whole.
#include "ptx.cuh"

__global__ void __launch_bounds__(128) advance(
    int* last_token,              // [slots]
    int* num_computed,            // [slots]
    int* done,                    // [slots]
    int* token_ring,              // [ring_steps, ring_rows, 2]
    const int* token_ids,         // [rows]
    const int* row_ids,           // [rows]
    const int* sample_positions,  // [rows]
    const int* step,              // [1]: the step that ends
    const int* stop_ids,          // [slots, stops]
    const int* min_position,      // [slots]
    const int* end_position,      // [slots]
    int rows,
    int stops,
    int ring_steps,
    int ring_rows) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;  // the same for the whole warp
  const int slot = row_ids[row], token = token_ids[row];
  if (lane == 0) {
    const auto number = static_cast<unsigned>(step[0]);
    const unsigned long long index = number % ring_steps * 1ull * ring_rows + row;
    const auto told = static_cast<unsigned>(slot < 0 ? -2 : token);
    const unsigned long long word = static_cast<unsigned long long>(number) << 32 | told;
    reinterpret_cast<volatile unsigned long long*>(token_ring)[index] = word;
  }
  if (slot < 0) return;
  const int position = sample_positions[row];
  const int earliest = min_position[slot],
            last = end_position[slot];  // with the stop ids, not after
  bool ends = false;
  for (int i = lane; i < stops; i += 32) {
    const int stop_id = stop_ids[static_cast<long long>(slot) * stops + i];
    ends |= stop_id == token && position >= earliest;
  }
  ends = __any_sync(0xffffffffu, ends) || token < 0;
  if (lane != 0) return;
  ends |= last > 0 && position + 1 >= last;
  last_token[slot] = max(token, 0);
  num_computed[slot] = position;
  if (ends) done[slot] = 1;
}
