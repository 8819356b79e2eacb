// stamp: stamps[count % steps, which] = the GPU's clock in ns; the last stamp of a step also counts it
//
// One thread. Only for benchmarks, and only on a GPU.
#include "ptx.cuh"

__global__ void stamp(
    unsigned* stamps,  // [steps, 2, 2]: 64 bits each
    unsigned* count,   // [1]
    int steps,
    int which) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  const unsigned index = count[0] % steps;
  reinterpret_cast<unsigned long long*>(stamps)[2 * index + which] = now;
  if (which == 1) count[0] += 1;
}
