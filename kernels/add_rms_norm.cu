// add_rms_norm: sum[t, :] = a[t, :] + b[t, :]
//               out[t, :] = sum[t, :] * rsqrt(mean(sum[t, :]^2) + eps) * weight
//
// In float32; rounds to T at the store of sum, which the norm reads rounded, and at the store of out.
// One block per token, kWidth elements a load; kWidth divides hidden. A thread keeps its part of the
// row in registers, kHeld = ceil(hidden / kWidth / kThreads) vectors, so every array moves once, and
// all loads are under way before the first is used. The order of the sum of squares is that of
// rms_norm, so out has the bits of add followed by rms_norm.
#include "common.cuh"
#include "ptx.cuh"

template <typename T, int kWidth, int kThreads, int kHeld>
__global__ void __launch_bounds__(kThreads, 1) add_rms_norm(
    T* __restrict__ sum,           // [tokens, hidden]
    T* __restrict__ out,           // [tokens, hidden]
    const T* a,                    // [tokens, hidden]
    const T* b,                    // [tokens, hidden]
    const T* __restrict__ weight,  // [hidden]
    int hidden,
    float eps) {
  let_next_kernel_start();
  using Vector = Pack<T, kWidth>;
  const long long row = static_cast<long long>(blockIdx.x) * hidden;
  const Vector* a_row = reinterpret_cast<const Vector*>(a + row);
  const Vector* b_row = reinterpret_cast<const Vector*>(b + row);
  const Vector* weights = reinterpret_cast<const Vector*>(weight);
  Vector* sum_row = reinterpret_cast<Vector*>(sum + row);
  Vector* out_row = reinterpret_cast<Vector*>(out + row);
  const int vectors = hidden / kWidth;

  Vector held[kHeld], right[kHeld], gains[kHeld];
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = h * kThreads + threadIdx.x;
    if (i < vectors) gains[h] = weights[i];
  }
  wait_for_previous_kernel();  // only the weight may be read earlier
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = h * kThreads + threadIdx.x;
    if (i < vectors) {
      held[h] = a_row[i];
      right[h] = b_row[i];
    }
  }
  float squares = 0.0f;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = h * kThreads + threadIdx.x;
    if (i < vectors) {
      for (int k = 0; k < kWidth; ++k) {
        held[h].v[k] = from_float<T>(to_float(held[h].v[k]) + to_float(right[h].v[k]));
        const float value = to_float(held[h].v[k]);
        squares += value * value;
      }
      sum_row[i] = held[h];
    }
  }
  const float scale = rsqrtf(block_sum<kThreads>(squares) / hidden + eps);
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
