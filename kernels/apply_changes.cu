// apply_changes: words[changes[i, 0]] = changes[i, 1] where the index is not negative, unless the first
// of the steps that were launched together has begun already
//
// Copies bits. A thread a change; no index occurs twice.
#include "common.cuh"
#include "ptx.cuh"
#include "step_numbers.cuh"

__global__ void __launch_bounds__(256) apply_changes(
    int* words,          // [words]
    const int* changes,  // [changes, 2]
    const int* launch,   // [2]: the first step, and how many there are
    const int* step,     // [1]: the newest step that has begun
    int num_changes) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= num_changes || !is_before(step[0], launch[0])) return;
  const auto change = reinterpret_cast<const Pack<int, 2>*>(changes)[i];
  if (change.v[0] >= 0) words[change.v[0]] = change.v[1];
}
