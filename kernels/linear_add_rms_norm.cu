// linear_add_rms_norm: sum[t, :] = residual[t, :] + (weight @ x[t, :] + bias)
//                      out[t, :] = sum[t, :] * rsqrt(mean(sum[t, :]^2) + eps) * gain
//
// linear_tiles (linear_tiles.cuh) or linear_wgmma_parts (wgmma_linear.cuh) leaves the products' sums over
// kParts parts of in_features in the workspace; this adds them in order, in float32, and rounds to T where linear, add and rms_norm
// would: the product, sum, which the norm reads rounded, and out. One block per token, kWidth elements
// of T a load; a thread keeps its kHeld vectors of the row in registers, and all loads are under way
// before the first is used.
#include "add_rms_norm.cu"  // follows a product of cuBLASLt
#include "common.cuh"
#include "linear_tiles.cuh"
#include "ptx.cuh"
#include "wgmma_linear.cuh"

template <typename T, int kWidth, int kThreads, int kHeld, int kParts>
__global__ void __launch_bounds__(kThreads, 1) linear_add_rms_norm(
    T* __restrict__ sum,         // [tokens, out_features]
    T* __restrict__ out,         // [tokens, out_features]
    const float* workspace,      // [kParts, tokens, out_features]
    const T* residual,           // [tokens, out_features]
    const T* __restrict__ gain,  // [out_features]
    const T* __restrict__ bias,  // [out_features] or null
    int out_features,
    float eps) {
  let_next_kernel_start();
  using Vector = Pack<T, kWidth>;
  constexpr int kFloats = kWidth < 4 ? kWidth : 4;  // of a load
  using Floats = Pack<float, kFloats>;
  const int vectors = out_features / kWidth;
  const long long first = static_cast<long long>(blockIdx.x) * vectors;
  const long long part_vectors = static_cast<long long>(gridDim.x) * vectors;

  Vector held[kHeld], gains[kHeld];
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = h * kThreads + threadIdx.x;
    if (i < vectors) gains[h] = reinterpret_cast<const Vector*>(gain)[i];
  }
  wait_for_previous_kernel();  // only gains and bias may be read earlier
  float squares = 0.0f;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = h * kThreads + threadIdx.x;
    if (i < vectors) {
      held[h] = reinterpret_cast<const Vector*>(residual)[first + i];
      Floats loaded[kParts][kWidth / kFloats];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int k = 0; k < kWidth / kFloats; ++k) {
          loaded[part][k] = reinterpret_cast<const Floats*>(
              workspace)[(part * part_vectors + first + i) * (kWidth / kFloats) + k];
        }
      }
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        float total = loaded[0][k / kFloats].v[k % kFloats];
#pragma unroll
        for (int part = 1; part < kParts; ++part) total += loaded[part][k / kFloats].v[k % kFloats];
        if (bias != nullptr) total += to_float(bias[i * kWidth + k]);
        total = to_float(from_float<T>(total));
        held[h].v[k] = from_float<T>(to_float(held[h].v[k]) + total);
        const float value = to_float(held[h].v[k]);
        squares += value * value;
      }
      reinterpret_cast<Vector*>(sum)[first + i] = held[h];
    }
  }
  const float scale = rsqrtf(block_sum<kThreads>(squares) / out_features + eps);
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = h * kThreads + threadIdx.x;
    if (i < vectors) {
      Vector result;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        result.v[k] = from_float<T>(to_float(held[h].v[k]) * scale * to_float(gains[h].v[k]));
      }
      reinterpret_cast<Vector*>(out)[first + i] = result;
    }
  }
}
