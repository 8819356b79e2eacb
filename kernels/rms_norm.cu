// rms_norm: out[t, :] = x[t, :] * rsqrt(mean(x[t, :]^2) + eps) * weight
//
// Sums and scales in float32; rounds to T once, at the store. One block per token, kWidth elements a
// load; kWidth divides hidden. A thread keeps its part of the row and of the weight in registers
// (norm_row.cuh): all loads are under way before the first is used.
#include "norm_row.cuh"
#include "ptx.cuh"

template <typename T, int kWidth, int kThreads, int kHeld>
__global__ void __launch_bounds__(kThreads, 1) rms_norm(
    T* __restrict__ out,           // [tokens, hidden]
    const T* x,                    // [tokens, hidden]
    const T* __restrict__ weight,  // [hidden]
    int hidden,
    float eps) {
  if (gridDim.x <= kFewRows) let_next_kernel_start();
  using Row = NormRow<T, kWidth, kThreads, kHeld>;
  using Vector = typename Row::Vector;
  const long long first = static_cast<long long>(blockIdx.x) * hidden;
  const Vector* x_row = reinterpret_cast<const Vector*>(x + first);
  const int vectors = hidden / kWidth;

  Row row;
  row.load_gains(weight, vectors);
  wait_for_previous_kernel();  // only the weight may be read earlier
  Row::for_each(vectors, [&](int h, int i) { row.held[h] = x_row[i]; });
  float squares = 0.0f;
  Row::for_each(vectors, [&](int h, int) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float value = to_float(row.held[h].v[k]);
      squares += value * value;
    }
  });
  row.store(out + first, squares, hidden, eps);
}
