// apply_changes: words[changes[i, 0]] = changes[i, 1] where the index is not negative
//
// Copies bits. A thread a change; no index occurs twice.
#include "common.cuh"
#include "ptx.cuh"

__global__ void __launch_bounds__(256) apply_changes(
    int* words,          // [words]
    const int* changes,  // [changes, 2]
    int num_changes) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= num_changes) return;
  const auto change = reinterpret_cast<const Pack<int, 2>*>(changes)[i];
  if (change.v[0] >= 0) words[change.v[0]] = change.v[1];
}
