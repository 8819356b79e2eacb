// loop_control: whether there is another step of the loop over decode steps, before its first one
// (begins) or after each, `step`. It ends if no row is live in a next step, if launch[1] steps are made,
// or if the host has set stop_at to launch[0] or a later step; then
// loop_ends[launch[0] % ring_steps] = (steps made, launch[0])
//
// Compares only. One block. What no kernel writes is read before the wait: the host's word among it, which
// takes a microsecond from its memory. The word that tells the end is volatile, as in advance.
#include "live_row.cuh"
#include "ptx.cuh"
#include "step_numbers.cuh"

#ifdef CPU_EMU
static inline void cudaGraphSetConditional(unsigned long long, unsigned) {}  // there is no graph
#else
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned value);
#endif

__global__ void __launch_bounds__(256, 1) loop_control(
    int* loop_ends,           // [ring_steps, 2]
    const int* row_ids,       // [rows]
    const int* num_computed,  // [slots]
    const int* done,          // [slots]
    const int* block_tables,  // [slots, max_blocks]
    const int* launch,        // [2]: the first step, and how many there are at most
    const int* step,          // [1]: the newest step that has begun
    const int* stop_at,       // [1]: loops that began with this step or before it end
    int rows,
    int max_blocks,
    int block_size,
    int ring_steps,
    int begins,  // 1: this is before the first step
    unsigned long long condition) {
  let_next_kernel_start();
  const int stop = threadIdx.x == 0 ? *static_cast<const volatile int*>(stop_at) : 0;
  const int first_step = launch[0], num_steps = launch[1];
  int slot = threadIdx.x < rows ? row_ids[threadIdx.x] : -1;
  wait_for_previous_kernel();
  bool live = false;
  for (int row = threadIdx.x; row < rows; row += blockDim.x) {
    if (row != threadIdx.x) slot = row_ids[row];
    const int position = slot >= 0 ? num_computed[slot] : 0;
    live |= block_of(slot, position, done, block_tables, max_blocks, block_size) > 0;
  }
  const bool any_live = __syncthreads_or(live) != 0;
  if (threadIdx.x != 0) return;
  const auto first = static_cast<unsigned>(first_step);
  const unsigned made = begins != 0 ? 0u : static_cast<unsigned>(step[0]) - first + 1u;
  const bool all_made = made >= static_cast<unsigned>(num_steps);
  if (any_live && !all_made && is_before(stop, first_step)) {
    if (begins != 0 && condition != 0) cudaGraphSetConditional(condition, 1);
    return;
  }
  const unsigned long long word = static_cast<unsigned long long>(first) << 32 | made;
  reinterpret_cast<volatile unsigned long long*>(loop_ends)[first % ring_steps] = word;
  if (begins == 0 && condition != 0) cudaGraphSetConditional(condition, 0);
}
