// The kernels of step_kernels.py: what a user of `cugraphs.compile` might bring.
#include "common.cuh"

// total[slot] += x[row]; out[row] is the new total, for the slot that row_ids names. A dead row
// (row id -1) leaves the totals alone and is zero. Each slot is named once at most. One block a row.
template <typename T>
__global__ void __launch_bounds__(256) slot_totals(
    T* __restrict__ out,              // T [rows, width]
    T* __restrict__ total,            // T [slots, width]
    const T* __restrict__ x,          // T [rows, width]
    const int* __restrict__ row_ids,  // int32 [rows]
    int width) {
  const long long row = blockIdx.x;
  const long long slot = row_ids[row];
  for (int i = threadIdx.x; i < width; i += 256) {
    float value = 0.0f;
    if (slot >= 0) {
      value = to_float(total[slot * width + i]) + to_float(x[row * width + i]);
      total[slot * width + i] = from_float<T>(value);
    }
    out[row * width + i] = from_float<T>(value);
  }
}

// out = 2 x, by a function of its own for every row count.
template <typename T, int kRows>
__global__ void __launch_bounds__(256) doubled_by_rows(
    T* __restrict__ out,      // T [rows, width]
    const T* __restrict__ x,  // T [rows, width]
    int width) {
  for (int i = threadIdx.x; i < kRows * width; i += 256) {
    out[i] = from_float<T>(2.0f * to_float(x[i]));
  }
}
