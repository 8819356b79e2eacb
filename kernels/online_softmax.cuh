// What is left of attention to some tokens, and how two such results become that of all their tokens.
//
// A result is the highest score, the sum of 2^(score - highest) over the tokens (the total), and the
// sum of the values, each times the same; their quotient is the attention. Scores are in base 2.
#pragma once
#include "common.cuh"

constexpr float kLowest = -3.402823466e38f;  // below every score

// Some columns of a head's result.
template <int kColumns>
struct Attended {
  float highest = kLowest, total = 0.0f, sums[kColumns] = {};  // of no token
};

// Adds what comes later. What could be contracted is spelled out, so that the bits are the same in
// every kernel that does this in the same order.
template <typename T, int kColumns>
__device__ __forceinline__ void fold(Attended<kColumns>& all, const Attended<kColumns>& next) {
  const float best = fmaxf(all.highest, next.highest);
  const float keep = exp2_for<T>(all.highest - best), scale = exp2_for<T>(next.highest - best);
  all.highest = best;
  all.total = fmaf(next.total, scale, __fmul_rn(all.total, keep));
#pragma unroll
  for (int k = 0; k < kColumns; ++k) {
    all.sums[k] = fmaf(next.sums[k], scale, __fmul_rn(all.sums[k], keep));
  }
}
