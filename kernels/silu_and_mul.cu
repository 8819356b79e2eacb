// silu_and_mul: out[t, i] = g / (1 + exp(-g)) * x[t, inter + i] with g = x[t, i]
//
// In float32, rounded to T once, at the store. A thread makes kWidth elements, which divides inter;
// blockIdx.x is the token and blockIdx.y the part of its row.
#include "common.cuh"
#include "ptx.cuh"
#include "silu.cuh"

template <typename T, int kWidth, int kThreads>
__global__ void __launch_bounds__(kThreads) silu_and_mul(
    T* __restrict__ out,  // [tokens, inter]
    const T* x,           // [tokens, 2*inter]: the gates, then what they scale
    int inter) {
  wait_for_previous_kernel();
  using Vector = Pack<T, kWidth>;
  const int vectors = inter / kWidth;
  const int column = blockIdx.y * kThreads + threadIdx.x;
  if (column >= vectors) return;
  const long long row = blockIdx.x;
  const Vector* x_row = reinterpret_cast<const Vector*>(x) + 2 * row * vectors;
  const Vector gates = x_row[column], ups = x_row[vectors + column];
  Vector result;
  for (int k = 0; k < kWidth; ++k) {
    result.v[k] = from_float<T>(silu<T>(to_float(gates.v[k])) * to_float(ups.v[k]));
  }
  reinterpret_cast<Vector*>(out)[row * vectors + column] = result;
}
