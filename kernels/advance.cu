// advance: for row r of slot s = row_ids[r], whose token stands at p = sample_positions[r]:
// last_token[s] = token; num_computed[s] = p; done[s] = 1 if the token is in stop_ids[s] and
// p >= min_position[s], or p + 1 >= end_position[s] > 0, or the token is -1
//
// Copies and compares, so it rounds nothing. A warp a row: its lanes look through the stop ids.
#include "ptx.cuh"

__global__ void __launch_bounds__(128) advance(
    int* last_token,              // [slots]
    int* num_computed,            // [slots]
    int* done,                    // [slots]
    const int* token_ids,         // [rows]
    const int* row_ids,           // [rows]
    const int* sample_positions,  // [rows]
    const int* stop_ids,          // [slots, stops]
    const int* min_position,      // [slots]
    const int* end_position,      // [slots]
    int rows,
    int stops) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows || row_ids[row] < 0) return;  // the same for the whole warp
  const int slot = row_ids[row], token = token_ids[row], position = sample_positions[row];
  bool ends = false;
  for (int i = lane; i < stops; i += 32) {
    const int stop_id = stop_ids[static_cast<long long>(slot) * stops + i];
    ends |= stop_id == token && position >= min_position[slot];
  }
  ends = __any_sync(0xffffffffu, ends) || token < 0;
  if (lane != 0) return;
  ends |= end_position[slot] > 0 && position + 1 >= end_position[slot];
  last_token[slot] = max(token, 0);
  num_computed[slot] = position;
  if (ends) done[slot] = 1;
}
