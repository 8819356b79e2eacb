// read_bandwidth: out[b] = the sum of the vectors of x that block b reads
//
// What a card can read: 16 bytes a load, 8 loads of a thread in flight, neighbouring threads on
// neighbouring vectors, blocks striding over the whole of x. Sums in float32.
#include "common.cuh"

template <int kThreads>
__global__ void __launch_bounds__(kThreads) read_bandwidth(
    float* __restrict__ out,      // [blocks]
    const float* __restrict__ x,  // [elements]
    long long vectors) {          // elements / 4
  using Four = Pack<float, 4>;
  const Four* source = reinterpret_cast<const Four*>(x);
  const long long stride = static_cast<long long>(gridDim.x) * kThreads;
  float sum = 0.0f;
  for (long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x; i < vectors;
       i += 8 * stride) {
    Four loaded[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      if (i + u * stride < vectors) loaded[u] = source[i + u * stride];
    }
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      if (i + u * stride < vectors) {
        for (int k = 0; k < 4; ++k) sum += loaded[u].v[k];
      }
    }
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
