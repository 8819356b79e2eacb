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

// 2^x for x <= 0. exp2f may be off by 2 units of the last place, which float32 results would show;
// for float this is off by at most 0.8, and 0 below -126 like exp2f in a build that flushes denormals.
template <typename T>
__device__ __forceinline__ float exp2_for(float x) {
  return exp2f(x);
}
template <>
__device__ __forceinline__ float exp2_for<float>(float x) {
  if (x < -126.0f) return 0.0f;
  const float whole = rintf(x), rest = x - whole;  // |rest| <= 1/2
  float power = 1.52527338e-5f;                    // ln(2)^k / k!, k from 7 to 0
  power = fmaf(power, rest, 1.54035304e-4f);
  power = fmaf(power, rest, 1.33335581e-3f);
  power = fmaf(power, rest, 9.61812911e-3f);
  power = fmaf(power, rest, 5.55041087e-2f);
  power = fmaf(power, rest, 2.40226507e-1f);
  power = fmaf(power, rest, 6.93147181e-1f);
  power = fmaf(power, rest, 1.0f);
  return power * __int_as_float((static_cast<int>(whole) + 127) << 23);
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
