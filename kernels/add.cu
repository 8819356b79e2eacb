// add: out = a + b
//
// Adds in float32 and rounds to T once, at the store. The arrays are taken as flat. A block adds
// kLoads * kThreads vectors of kWidth elements, a thread every kThreads-th of them, all loaded before
// the first is added; kWidth divides the number of elements.
#include "common.cuh"

template <typename T, int kWidth, int kThreads, int kLoads>
__global__ void __launch_bounds__(kThreads)
    add(T* __restrict__ out,      // [tokens, hidden]
        const T* __restrict__ a,  // [tokens, hidden]
        const T* __restrict__ b,  // [tokens, hidden]
        long long elements) {
  using Vector = Pack<T, kWidth>;
  const Vector* a_vectors = reinterpret_cast<const Vector*>(a);
  const Vector* b_vectors = reinterpret_cast<const Vector*>(b);
  const long long vectors = elements / kWidth;
  const long long first = static_cast<long long>(blockIdx.x) * (kLoads * kThreads) + threadIdx.x;

  Vector left[kLoads], right[kLoads];
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    const long long index = first + u * kThreads;
    if (index < vectors) {
      left[u] = a_vectors[index];
      right[u] = b_vectors[index];
    }
  }
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    const long long index = first + u * kThreads;
    if (index < vectors) {
      Vector result;
      for (int k = 0; k < kWidth; ++k) {
        result.v[k] = from_float<T>(to_float(left[u].v[k]) + to_float(right[u].v[k]));
      }
      reinterpret_cast<Vector*>(out)[index] = result;
    }
  }
}
