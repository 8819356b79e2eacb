// What is left of attention to some tokens, and how two such results become that of all their tokens.
//
// A result is the highest score, the sum of 2^(score - highest) over the tokens (the total), and the
// sum of the values, each times the same; their quotient is the attention. Scores are in base 2.
#pragma once
#include "common.cuh"

constexpr float kLowest = -3.402823466e38f;  // below every score

// One column of a head's result.
struct Attended {
  float highest, total, sum;
};

// Of no token.
__device__ __forceinline__ Attended nothing() { return {kLowest, 0.0f, 0.0f}; }

// Adds what comes later. What could be contracted is spelled out, so that the bits are the same in
// every kernel that does this in the same order.
template <typename T>
__device__ __forceinline__ void fold(Attended& all, const Attended& next) {
  const float best = fmaxf(all.highest, next.highest);
  const float keep = exp2_for<T>(all.highest - best), scale = exp2_for<T>(next.highest - best);
  all.highest = best;
  all.total = fmaf(next.total, scale, __fmul_rn(all.total, keep));
  all.sum = fmaf(next.sum, scale, __fmul_rn(all.sum, keep));
}
