// copy_bandwidth: out = x
//
// What a card can copy: 16 bytes a load, 4 loads of a thread in flight, then as many stores; a block
// copies the next 4 * kThreads vectors.
#include "common.cuh"

template <int kThreads>
__global__ void __launch_bounds__(kThreads) copy_bandwidth(
    float* __restrict__ out,      // [elements]
    const float* __restrict__ x,  // [elements]
    long long vectors) {          // elements / 4
  using Four = Pack<float, 4>;
  const long long first = static_cast<long long>(blockIdx.x) * (4 * kThreads) + threadIdx.x;
  Four loaded[4];
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const long long i = first + u * kThreads;
    if (i < vectors) loaded[u] = reinterpret_cast<const Four*>(x)[i];
  }
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const long long i = first + u * kThreads;
    if (i < vectors) reinterpret_cast<Four*>(out)[i] = loaded[u];
  }
}
