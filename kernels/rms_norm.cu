// rms_norm: out[t, :] = x[t, :] * rsqrt(mean(x[t, :]^2) + eps) * weight
//
// Sums and scales in float32; rounds to T once, at the store. One block per token, kWidth elements a
// load; kWidth divides hidden. A thread keeps its part of the row and of the weight in registers,
// kHeld = ceil(hidden / kWidth / kThreads) vectors: all loads are under way before the first is used.
#include "common.cuh"
#include "ptx.cuh"

template <typename T, int kWidth, int kThreads, int kHeld>
__global__ void __launch_bounds__(kThreads, 1) rms_norm(
    T* __restrict__ out,           // [tokens, hidden]
    const T* x,                    // [tokens, hidden]
    const T* __restrict__ weight,  // [hidden]
    int hidden,
    float eps) {
  if (gridDim.x <= kFewRows) let_next_kernel_start();
  using Vector = Pack<T, kWidth>;
  const long long row = static_cast<long long>(blockIdx.x) * hidden;
  const Vector* x_row = reinterpret_cast<const Vector*>(x + row);
  const Vector* weights = reinterpret_cast<const Vector*>(weight);
  Vector* out_row = reinterpret_cast<Vector*>(out + row);
  const int vectors = hidden / kWidth;

  Vector held[kHeld], gains[kHeld];
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = h * kThreads + threadIdx.x;
    if (i < vectors) gains[h] = weights[i];
  }
  wait_for_previous_kernel();  // only the weight may be read earlier
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = h * kThreads + threadIdx.x;
    if (i < vectors) held[h] = x_row[i];
  }
  float sum = 0.0f;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    if (h * kThreads + threadIdx.x < vectors) {
      for (int k = 0; k < kWidth; ++k) {
        const float value = to_float(held[h].v[k]);
        sum += value * value;
      }
    }
  }
  const float scale = rsqrtf(block_sum<kThreads>(sum) / hidden + eps);
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = h * kThreads + threadIdx.x;
    if (i < vectors) {
      Vector result;
      for (int k = 0; k < kWidth; ++k) {
        result.v[k] = from_float<T>(to_float(held[h].v[k]) * scale * to_float(gains[h].v[k]));
      }
      out_row[i] = result;
    }
  }
}
