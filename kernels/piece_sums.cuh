// What a warp finds of attention in pieces of 16 tokens, and how such results are folded: fp16 and bf16,
// head_dim a multiple of 32, at most 8 query heads to a KV head.
#pragma once
#include "attend_tiles.cuh"
#include "online_softmax.cuh"

// Attention of the query heads of one KV head to pieces of K and V in shared memory, by a warp.
template <typename T, int kHeadDim>
struct PieceSums {
  static constexpr int kTokens = 16;
  static constexpr int kElements = kTokens * kHeadDim;
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kKeyLoads = kHeadDim / 32;  // of 8 elements, of a lane, for a token
  static constexpr bool kKeysSwap = kKeyLoads % 2 == 0;
  static constexpr int kColumns = kHeadDim / 8;             // of V, of a lane
  static constexpr int kValueWidth = kColumns % 8 ? 4 : 8;  // of a load
  static constexpr int kValueLoads = kColumns / kValueWidth;
  static_assert(kHeadDim % 32 == 0, "whole vectors for each lane");

  template <int kCount>
  struct alignas(4 * kCount) Words {
    unsigned words[kCount];
  };

  Words<4> queries[kKeyLoads];
  float sums[kSteps][4] = {};
  float highest = kLowest, total = 0.0f;  // of the head lane / 4; the total of this lane's tokens
  unsigned high[2], low[2];               // the weights of the piece, as two numbers of T

  __device__ __forceinline__ void load_queries(const T* q, int heads) {  // [heads, head_dim]
    const int lane = threadIdx.x % 32, lane_row = lane / 4;
#pragma unroll
    for (int j = 0; j < kKeyLoads; ++j) {
      queries[j] = Words<4>{};
      const T* from = q + lane_row * kHeadDim + (j * 4 + lane % 4) * 8;
      if (lane_row < heads) queries[j] = *reinterpret_cast<const Words<4>*>(from);
    }
  }

  // The weights of the piece's tokens, of which the first `tokens` count.
  __device__ __forceinline__ void weigh(const T* piece, int tokens, float scale_log2) {
    const int lane = threadIdx.x % 32, lane_row = lane / 4;
    float scores[2][4] = {};  // of tokens 0 to 7 and 8 to 15
    const T* keys = piece + lane_row * kHeadDim + lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < kKeyLoads; ++j) {
      const Words<4>&first = queries[j], &second = queries[kKeysSwap ? j ^ 1 : j];
      const int place = kKeysSwap ? j ^ lane_row % 2 : j;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto loaded =
            *reinterpret_cast<const Words<4>*>(keys + half * 8 * kHeadDim + place * 32);
#pragma unroll
        for (int w = 0; w < 4; w += 2) {
          const unsigned a[4] = {first.words[w], second.words[w], first.words[w + 1],
                                 second.words[w + 1]};
          const unsigned b[2] = {loaded.words[w], loaded.words[w + 1]};
          mma_m16n8k16<T>(scores[half], a, b);
        }
      }
    }
    if constexpr (kKeysSwap) {
#pragma unroll
      for (int j = 0; j < 2; ++j) scores[j][1] = scores[j][3];
    }
    const float before = highest;
    const float keep = weigh_tokens<T>(scores, 0, tokens, scale_log2, highest, total, high, low);
    if (__any_sync(0xffffffffu, highest > before)) rescale(sums, keep);
  }

  // Adds the piece of V, each token as often as it weighs. What lies after the first `tokens`, maybe
  // NaN, is cleared.
  __device__ __forceinline__ void add(T* piece, int tokens) {
    const int lane = threadIdx.x % 32, lane_row = lane / 4, lane_pair = lane % 4 * 2;
    if (tokens < kTokens) {
      for (int i = tokens * kHeadDim + lane * 8; i < kElements; i += 32 * 8) {
        *reinterpret_cast<Words<4>*>(piece + i) = Words<4>{};
      }
      __syncwarp();
    }
    using Values = Words<kValueWidth / 2>;
    const T* values = piece + lane_pair * kHeadDim + lane_row * kColumns;
#pragma unroll
    for (int j = 0; j < kValueLoads; ++j) {
      Values loaded[4];  // of tokens lane_pair, the next, and 8 later
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = i / 2 * 8 + i % 2;
        loaded[i] = *reinterpret_cast<const Values*>(values + token * kHeadDim + j * kValueWidth);
      }
#pragma unroll
      for (int w = 0; w < kValueWidth / 2; ++w) {
        const unsigned a[4] = {__byte_perm(loaded[0].words[w], loaded[1].words[w], 0x5410),
                               __byte_perm(loaded[0].words[w], loaded[1].words[w], 0x7632),
                               __byte_perm(loaded[2].words[w], loaded[3].words[w], 0x5410),
                               __byte_perm(loaded[2].words[w], loaded[3].words[w], 0x7632)};
        const int step = j * (kValueWidth / 2) + w;
        mma_m16n8k16<T>(sums[step], a, high);
        mma_m16n8k16<T>(sums[step], a, low);
      }
    }
  }

  // Stores the sums, highest scores and totals of the heads, each head's `stride` floats after another's. What
  // follows the heads, up to kPlaces of them, is spoilt.
  template <int kPlaces = 8>
  __device__ __forceinline__ void store(float* result, int heads, int stride) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = lane % 4 * 2 + i;
      if (head >= heads) continue;
      float* to = result + head * stride + lane / 4 * kColumns;
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        *reinterpret_cast<float4*>(to + step * 2) =
            make_float4(sums[step][i], sums[step][i + 2], sums[step + 1][i], sums[step + 1][i + 2]);
      }
    }
    const float all = lanes_sum<4>(total);
    if (lane % 4 == 0 && lane / 4 < kPlaces) {
      *reinterpret_cast<float2*>(result + lane / 4 * stride + kHeadDim) = make_float2(highest, all);
    }
  }
};

// Four columns of a head's result. In memory a result is [heads][head_dim + 4] floats: the sums of a head's
// columns, its highest score, its total.
template <typename T>
struct FourColumns {
  float highest = kLowest, total = 0.0f, sums[4] = {};

  static __device__ __forceinline__ FourColumns of(const float4& sums, const float2& rest) {
    FourColumns found;
    found.highest = rest.x;
    found.total = rest.y;
    found.sums[0] = sums.x;
    found.sums[1] = sums.y;
    found.sums[2] = sums.z;
    found.sums[3] = sums.w;
    return found;
  }

  // Adds the first `count` of what is found, one or more.
  template <int kCount>
  __device__ __forceinline__ void add(const FourColumns (&found)[kCount], int count) {
    float best = highest;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (k < count) best = fmaxf(best, found[k].highest);
    }
    const float keep = exp2_for<T>(highest - best);
    highest = best;
    total *= keep;
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] *= keep;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float scale = k < count ? exp2_for<T>(found[k].highest - best) : 0.0f;
      total = fmaf(found[k].total, scale, total);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] = fmaf(found[k].sums[i], scale, sums[i]);
    }
  }
};
