// silu(g) = g / (1 + exp(-g)), and what becomes of two sums of a product that gates by it.
#pragma once
#include "common.cuh"

// For a T of 16 bits by the fast exponential and quotient, within some 2^-19 of it.
template <typename T>
__device__ __forceinline__ float silu(float gate) {
  return __fdividef(gate, 1.0f + __expf(-gate));
}
template <>
__device__ __forceinline__ float silu<float>(float gate) {
  return gate / (1.0f + expf(-gate));
}

// silu(gate) * up, of sums that are rounded to T first, as linear stores them.
template <typename T>
__device__ __forceinline__ T gated(float gate_sum, float up_sum) {
  const float gate = to_float(from_float<T>(gate_sum)), up = to_float(from_float<T>(up_sum));
  return from_float<T>(silu<T>(gate) * up);
}
