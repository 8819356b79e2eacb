// The rotation of a head by its position, where a lane has columns of both halves.
#pragma once
#include "common.cuh"

// A head's columns, or 8 of them, and as many of the head's other half.
template <typename T>
struct Halves {
  Pack<T, 8> first, second;

  // (a, b) -> (a*c - b*s, b*c + a*s), rounded once.
  __device__ __forceinline__ void rotate(const float* cosines, const float* sines) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float a = to_float(first.v[k]), b = to_float(second.v[k]);
      first.v[k] = from_float<T>(a * cosines[k] - b * sines[k]);
      second.v[k] = from_float<T>(b * cosines[k] + a * sines[k]);
    }
  }
};
