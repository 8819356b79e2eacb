// add_rms_norm: sum[t, :] = a[t, :] + b[t, :]
//               out[t, :] = sum[t, :] * rsqrt(mean(sum[t, :]^2) + eps) * weight
//
// In float32; rounds to T at the store of sum, which the norm reads rounded, and at the store of out.
// One block per token, kWidth elements a load; kWidth divides hidden. A thread keeps its part of the
// row in registers (norm_row.cuh), so every array moves once, and all loads are under way before the
// first is used. The order of the sum of squares is that of rms_norm, so out has the bits of add
// followed by rms_norm.
#include "norm_row.cuh"
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
  using Row = NormRow<T, kWidth, kThreads, kHeld>;
  using Vector = typename Row::Vector;
  const long long first = static_cast<long long>(blockIdx.x) * hidden;
  const Vector* a_row = reinterpret_cast<const Vector*>(a + first);
  const Vector* b_row = reinterpret_cast<const Vector*>(b + first);
  Vector* sum_row = reinterpret_cast<Vector*>(sum + first);
  const int vectors = hidden / kWidth;

  Row row;
  Vector right[kHeld];
  row.load_gains(weight, vectors);
  wait_for_previous_kernel();  // only the weight may be read earlier
  Row::for_each(vectors, [&](int h, int i) {
    row.held[h] = a_row[i];
    right[h] = b_row[i];
  });
  float squares = 0.0f;
  Row::for_each(vectors, [&](int h, int i) {
    Vector& held = row.held[h];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      held.v[k] = from_float<T>(to_float(held.v[k]) + to_float(right[h].v[k]));
      const float value = to_float(held.v[k]);
      squares += value * value;
    }
    sum_row[i] = held;
  });
  row.store(out + first, squares, hidden, eps);
}
