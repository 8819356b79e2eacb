// add: out = a + b
//
// Adds in float32 and rounds to T once, at the store. A thread adds kWidth elements; kWidth divides
// their number. The arrays are taken as flat.
#include "common.cuh"
#include "ptx.cuh"

template <typename T, int kWidth, int kThreads>
__global__ void __launch_bounds__(kThreads)
    add(T* __restrict__ out,  // [tokens, hidden]
        const T* a,           // [tokens, hidden]
        const T* b,           // [tokens, hidden]
        long long elements) {
  wait_for_previous_kernel();
  using Vector = Pack<T, kWidth>;
  const long long index = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= elements / kWidth) return;
  const Vector left = reinterpret_cast<const Vector*>(a)[index];
  const Vector right = reinterpret_cast<const Vector*>(b)[index];
  Vector result;
  for (int k = 0; k < kWidth; ++k) {
    result.v[k] = from_float<T>(to_float(left.v[k]) + to_float(right.v[k]));
  }
  reinterpret_cast<Vector*>(out)[index] = result;
}
