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

// Folds what a block's warps have found for each head, and calls result(head, column, all of it). Sums of a
// warp lie kPitch floats after those of the one before, those of a head kStride. All threads call it.
template <
    typename T,
    int kHeadDim,
    int kPitch,
    int kStride,
    int kWarps,
    int kHeads,
    typename Result>
__device__ __forceinline__ void fold_warps(
    const Result& result,
    const float (&highest)[kWarps][kHeads],
    const float (&totals)[kWarps][kHeads],
    const float* sums,
    int heads) {
#pragma unroll 4
  for (int at = threadIdx.x; at < heads * kHeadDim; at += 32 * kWarps) {
    const int head = at / kHeadDim, column = at % kHeadDim;
    Attended all = nothing();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) all.highest = fmaxf(all.highest, highest[w][head]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float scale = exp2_for<T>(highest[w][head] - all.highest);
      const float sum = sums[w * kPitch + head * kStride + column];
      all.total = fmaf(totals[w][head], scale, all.total);
      all.sum = fmaf(sum, scale, all.sum);
    }
    result(head, column, all);
  }
}
