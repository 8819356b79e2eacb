// silu_and_mul: out[t, i] = g / (1 + exp(-g)) * x[t, inter + i] with g = x[t, i]
//
// In float32, rounded to T once, at the store. blockIdx.x is the token and blockIdx.y the part of its
// row: a block makes kLoads * kThreads vectors of kWidth elements, a thread every kThreads-th of them,
// all loaded before the first is made; kWidth divides inter.
#include "common.cuh"

// g / (1 + exp(-g)). For a T of 16 bits the fast exponential and quotient: within some 2^-19 of it.
template <typename T>
__device__ __forceinline__ float silu(float gate) {
  return __fdividef(gate, 1.0f + __expf(-gate));
}
template <>
__device__ __forceinline__ float silu<float>(float gate) {
  return gate / (1.0f + expf(-gate));
}

template <typename T, int kWidth, int kThreads, int kLoads>
__global__ void __launch_bounds__(kThreads) silu_and_mul(
    T* __restrict__ out,      // [tokens, inter]
    const T* __restrict__ x,  // [tokens, 2*inter]: the gates, then what they scale
    int inter) {
  using Vector = Pack<T, kWidth>;
  const int vectors = inter / kWidth;
  const int first = blockIdx.y * (kLoads * kThreads) + threadIdx.x;
  const long long row = blockIdx.x;
  const Vector* x_row = reinterpret_cast<const Vector*>(x) + 2 * row * vectors;
  Vector* out_row = reinterpret_cast<Vector*>(out) + row * vectors;

  Vector gates[kLoads], ups[kLoads];
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    const int column = first + u * kThreads;
    if (column < vectors) {
      gates[u] = x_row[column];
      ups[u] = x_row[vectors + column];
    }
  }
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    const int column = first + u * kThreads;
    if (column < vectors) {
      Vector result;
      for (int k = 0; k < kWidth; ++k) {
        result.v[k] = from_float<T>(silu<T>(to_float(gates[u].v[k])) * to_float(ups[u].v[k]));
      }
      out_row[column] = result;
    }
  }
}
