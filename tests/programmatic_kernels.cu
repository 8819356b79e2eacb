// Two launches of which the second begins early: one that waits for the first, one that does not.
#include "ptx.cuh"

__global__ void one_more(int* out, const int* x) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  out[threadIdx.x] = x[threadIdx.x] + 1;
}

__global__ void copies(int* out, const int* x) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  out[threadIdx.x] = x[threadIdx.x];
}

__global__ void copies_without_waiting(int* out, const int* x) {
  let_next_kernel_start();
  out[threadIdx.x] = x[threadIdx.x];
}
