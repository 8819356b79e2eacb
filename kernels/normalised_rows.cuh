// The few rows of rms_norm(x) in shared memory, which each block of a product makes for itself.
#pragma once
#include "common.cuh"

template <typename T, int kThreads, int kRows, bool kSwapsPairs>
struct NormalisedRows {
  static constexpr int kVector = 8;  // elements of a load
  static constexpr int kHeld = 4;  // loads of a thread: in_features is at most so many of the block
  static constexpr int kWarps = kThreads / 32;
  using Vector = Pack<T, kVector>;

  // Where kSwapsPairs, 8 elements lie in shared memory with the second pair after the third.
  static __device__ __forceinline__ void store(Vector& to, const Vector& values) {
    Vector stored = values;
    if (kSwapsPairs) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        stored.v[2 + k] = values.v[4 + k];
        stored.v[4 + k] = values.v[2 + k];
      }
    }
    to = stored;
  }

  Vector gains[kHeld];  // this thread's part of the norm's weight

  // Constants: before the wait.
  __device__ __forceinline__ void load_gains(
      const T* __restrict__ gain /* [in_features] */, int in_features) {
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int i = h * kThreads + threadIdx.x;
      if (i < in_features / kVector) gains[h] = reinterpret_cast<const Vector*>(gain)[i];
    }
  }

  // Fills rows, T [tokens, in_features], rounded to T; the whole block calls it.
  __device__ __forceinline__ void fill(
      T* rows,
      const T* x,  // [tokens, in_features]
      int tokens,
      int in_features,
      float eps) const {
    __shared__ float partial[kRows][kWarps];
    const int vectors = in_features / kVector;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Vector* const from = reinterpret_cast<const Vector*>(x);
    Vector* const own = reinterpret_cast<Vector*>(rows);
    for (int row = 0; row < tokens; ++row) {
      Vector values[kHeld];
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        const int i = h * kThreads + threadIdx.x;
        if (i < vectors) values[h] = from[row * vectors + i];
      }
      float squares = 0.0f;
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        const int i = h * kThreads + threadIdx.x;
        if (i < vectors) {
          own[row * vectors + i] = values[h];
#pragma unroll
          for (int k = 0; k < kVector; ++k) {
            squares = fmaf(to_float(values[h].v[k]), to_float(values[h].v[k]), squares);
          }
        }
      }
      squares = lanes_sum<32>(squares);
      if (lane == 0) partial[row][warp] = squares;
    }
    __syncthreads();
    for (int row = 0; row < tokens; ++row) {
      float total = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) total += partial[row][w];
      const float scale = rsqrtf(total / in_features + eps);
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        const int i = h * kThreads + threadIdx.x;
        if (i < vectors) {
          Vector values = own[row * vectors + i];
#pragma unroll
          for (int k = 0; k < kVector; ++k) {
            values.v[k] = from_float<T>(to_float(values.v[k]) * scale * to_float(gains[h].v[k]));
          }
          store(own[row * vectors + i], values);
        }
      }
    }
    __syncthreads();
  }
};
