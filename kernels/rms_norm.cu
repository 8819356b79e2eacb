// rms_norm: out[t, :] = x[t, :] * rsqrt(mean(x[t, :]^2) + eps) * weight
//
// Sums and scales in float32; rounds to T once, at the store. One block per token, kWidth elements a
// load; kWidth divides hidden. The row is read twice, the second time from cache.
#include "common.cuh"

template <typename T, int kWidth, int kThreads>
__global__ void __launch_bounds__(kThreads, 1) rms_norm(
    T* __restrict__ out,           // [tokens, hidden]
    const T* __restrict__ x,       // [tokens, hidden]
    const T* __restrict__ weight,  // [hidden]
    int hidden,
    float eps) {
  using Vector = Pack<T, kWidth>;
  const long long row = static_cast<long long>(blockIdx.x) * hidden;
  const Vector* x_row = reinterpret_cast<const Vector*>(x + row);
  const Vector* weights = reinterpret_cast<const Vector*>(weight);
  Vector* out_row = reinterpret_cast<Vector*>(out + row);
  const int vectors = hidden / kWidth;

  float sum = 0.0f;
  for (int i = threadIdx.x; i < vectors; i += kThreads) {
    const Vector values = x_row[i];
    for (int k = 0; k < kWidth; ++k) {
      const float value = to_float(values.v[k]);
      sum += value * value;
    }
  }
  const float scale = rsqrtf(block_sum<kThreads>(sum) / hidden + eps);
  for (int i = threadIdx.x; i < vectors; i += kThreads) {
    const Vector values = x_row[i], gains = weights[i];
    Vector result;
    for (int k = 0; k < kWidth; ++k) {
      result.v[k] = from_float<T>(to_float(values.v[k]) * scale * to_float(gains.v[k]));
    }
    out_row[i] = result;
  }
}
