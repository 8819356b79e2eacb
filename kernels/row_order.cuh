// The order of a row of logits (logit descending, id ascending): the place of a logit in it, a
// prefix of it, its first token; and exact sums of weights.
//
// Sums are of fixed-point numbers, so they are the same in whatever order and by whichever blocks
// they are added. No kernel lives here.
#pragma once
#include "common.cuh"

typedef unsigned long long Sum;

constexpr int kLowestInt = -2147483647 - 1, kHighestInt = 2147483647;
constexpr int kInfinityKey = 0x7f800000;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ int lane_index() { return threadIdx.x & 31; }
__device__ __forceinline__ int warp_index() { return threadIdx.x >> 5; }

// The place of a logit among all logits: a higher one has a higher key, 0 and -0 have the same.
// A NaN is beyond the key of its infinity.
__device__ __forceinline__ int order_key(float logit) {
  const int bits = __float_as_int(logit);
  return bits >= 0 ? bits : kLowestInt - bits;
}

__device__ __forceinline__ float key_logit(int key) {
  return __int_as_float(key >= 0 ? key : kLowestInt - key);
}

// The tokens with a key above `key`, and of those with that key the ids up to `last_id`.
struct Prefix {
  int key, last_id;

  __device__ __forceinline__ bool holds(int token_key, int id) const {
    // Without a branch, of which there would be one for each token.
    return (token_key > key) | ((token_key == key) & (id <= last_id));
  }
};

// high * 2^19 + low. In a term high is 0 to 2^19 and low at most 2^18 either way, so that 8,191 terms
// can be added in each half before the halves are joined.
constexpr int kHalfBits = 19;

struct Fixed {
  unsigned high;
  int low;

  // v * 2^38, to the nearest; v from 0 to 1. Adding 2^23, or 1.5 * 2^23 where the sign varies, leaves a
  // float's whole part in its last bits: a conversion would take four times as long.
  static __device__ __forceinline__ Fixed of(float v) {
    constexpr float kUnit = 1 << kHalfBits, kWhole = 8388608.0f, kSigned = 12582912.0f;
    const float scaled = v * kUnit, shifted = scaled + kWhole;
    const float rest = (scaled - (shifted - kWhole)) * kUnit + kSigned;
    return {__float_as_uint(shifted) - 0x4b000000u, __float_as_int(rest) - 0x4b400000};
  }

  __device__ __forceinline__ void add(Fixed term) {
    high += term.high;
    low += term.low;
  }
  __device__ __forceinline__ Sum joined() const {
    return (static_cast<Sum>(high) << kHalfBits) + static_cast<Sum>(static_cast<long long>(low));
  }
};

// The measure that counts tokens.
struct CountOne {
  __device__ __forceinline__ Fixed operator()(float) const { return {0, 1}; }
};

// What is known of some tokens of a row, or of all.
struct Extent {
  int top_key, top_id;  // of the first token in the order
  int bottom_key;       // of the lowest logit above -inf

  static __device__ __forceinline__ Extent nothing() {
    return {kLowestInt, kHighestInt, kHighestInt};
  }

  // For ids in ascending order.
  __device__ __forceinline__ void include(float logit, int id) {
    const int key = order_key(logit);
    top_id = key > top_key ? id : top_id;
    top_key = max(top_key, key);
    bottom_key = min(bottom_key, key == -kInfinityKey ? kHighestInt : key);
  }

  // Whether the row is no distribution: NaN or +inf in it, or nothing above -inf.
  __device__ __forceinline__ bool is_broken() const {
    return top_key >= kInfinityKey || top_key <= -kInfinityKey || bottom_key < -kInfinityKey;
  }
};

// The sum of each half over the warp, in every lane; up to 8,191 terms in all.
__device__ __forceinline__ Fixed warp_sum(Fixed v) {
  return {__reduce_add_sync(kAllLanes, v.high), __reduce_add_sync(kAllLanes, v.low)};
}

// The sum over the threads up to this one, and over all of them.
struct Scan {
  Sum reached, total;
};

// All threads of the block call it; the barrier at the end lets it be called again.
template <int kThreads>
__device__ __forceinline__ Scan block_scan(Sum own) {
  __shared__ Sum warps[kThreads / 32];
  Sum reached = own;
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const Sum left = __shfl_up_sync(kAllLanes, reached, offset);
    if (lane_index() >= offset) reached += left;
  }
  if (lane_index() == 31) warps[warp_index()] = reached;
  __syncthreads();
  Sum total = 0;
#pragma unroll 4
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w == warp_index()) reached += total;
    total += warps[w];
  }
  __syncthreads();
  return {reached, total};
}
