// silu(g) = g / (1 + exp(-g)).
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
