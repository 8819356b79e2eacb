// Conversions, vector loads and block reductions that the kernels share. No kernel lives here.
//
// Kernels that hold arrays in registers say __launch_bounds__(threads, 1): without the 1, ptxas may
// spill some of them to fit more blocks on a multiprocessor.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename T>
__device__ __forceinline__ T from_float(float v);
template <>
__device__ __forceinline__ float from_float<float>(float v) {
  return v;
}
template <>
__device__ __forceinline__ __half from_float<__half>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}

// kWidth elements that are loaded and stored as one access of kWidth * sizeof(T) <= 16 bytes.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T v[kWidth];
};

template <typename T, int kWidth>
__device__ __forceinline__ Pack<T, kWidth> zeros() {
  Pack<T, kWidth> pack;
  for (int k = 0; k < kWidth; ++k) pack.v[k] = from_float<T>(0.0f);
  return pack;
}

// The sum over each kLanes lanes of a warp that begin at a multiple of kLanes, in every one of them.
// All lanes of the warp call it.
template <int kLanes>
__device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset >>= 1) {
    v += __shfl_xor_sync(0xffffffffu, v, offset);
  }
  return v;
}

// The sum over the block, in every thread. Deterministic: lanes, then warps, in a fixed order.
// All threads of the block call it; the barrier at the end lets it be called again.
template <int kThreads>
__device__ __forceinline__ float block_sum(float v) {
  static_assert(kThreads % 32 == 0, "a block is whole warps");
  __shared__ float partial[kThreads / 32];
  v = lanes_sum<32>(v);
  if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = v;
  __syncthreads();
  float total = 0.0f;
  for (int w = 0; w < kThreads / 32; ++w) total += partial[w];
  __syncthreads();
  return total;
}
