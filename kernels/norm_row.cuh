// A row that a block normalises, in its threads' registers: of every kThreads vectors of kWidth elements each
// thread has one, kHeld in all, and those of the norm's weight. No kernel lives here.
//
// kWidth divides the row; kHeld = ceil(size / kWidth / kThreads).
#pragma once
#include "common.cuh"

template <typename T, int kWidth, int kThreads, int kHeld>
struct NormRow {
  using Vector = Pack<T, kWidth>;

  Vector held[kHeld], gains[kHeld];

  // Calls each(h, i) for the thread's vectors: h of its own, i of the row.
  template <typename Each>
  static __device__ __forceinline__ void for_each(int vectors, const Each& each) {
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int i = h * kThreads + threadIdx.x;
      if (i < vectors) each(h, i);
    }
  }

  // Before the wait for the launch before: the weight is constant.
  __device__ __forceinline__ void load_gains(const T* __restrict__ weight, int vectors) {
    const Vector* from = reinterpret_cast<const Vector*>(weight);
    for_each(vectors, [&](int h, int i) { gains[h] = from[i]; });
  }

  // Stores held * rsqrt(mean square + eps) * gains, rounded once. `squares` is the sum of those that this thread
  // holds. All threads of the block call it.
  __device__ __forceinline__ void store(T* row, float squares, int size, float eps) const {
    const float scale = rsqrtf(block_sum<kThreads>(squares) / size + eps);
    Vector* to = reinterpret_cast<Vector*>(row);
    for_each(size / kWidth, [&](int h, int i) {
      Vector result;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        result.v[k] = from_float<T>(to_float(held[h].v[k]) * scale * to_float(gains[h].v[k]));
      }
      to[i] = result;
    });
  }
};
