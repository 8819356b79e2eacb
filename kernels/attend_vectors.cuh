// Attention of the query heads of one KV head to a run of tokens in the paged cache, by a block, in
// float32 arithmetic: every type and head_dim.
#pragma once
#include "online_softmax.cuh"

__device__ constexpr int lanes_for(int vectors) {
  int lanes = 1;
  while (lanes < vectors && lanes < 32) lanes *= 2;
  return lanes;
}

// The sum over the lanes of a warp that hold the same part of kLanes lanes, in every one of them.
template <int kLanes>
__device__ __forceinline__ float streams_sum(float v) {
#pragma unroll
  for (int offset = kLanes; offset < 32; offset *= 2) {
    v += __shfl_xor_sync(0xffffffffu, v, offset);
  }
  return v;
}

// kLanes lanes share a token, kWidth elements of K and of V a load: a stream. The streams of the
// block take consecutive tokens, kTokens each before the softmax is rescaled, and are merged at the
// end, first within a warp, then over warps. Does not load ahead of the arithmetic.
template <typename T, int kHeadDim_, int kHeads_, int kWidth, int kTokens>
struct Vectors {
  using Element = T;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kHeads = kHeads_;  // at most so many, bounded by registers
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 1;  // on a multiprocessor, that registers must leave room for

  static constexpr int kVectors = kHeadDim / kWidth;               // of a head
  static constexpr int kLanes = lanes_for(kVectors);               // of a stream
  static constexpr int kLoads = (kVectors + kLanes - 1) / kLanes;  // of a lane for a token
  static constexpr int kStreams = kThreads / kLanes;
  static constexpr int kWarps = kThreads / 32;

  // Calls result(head, column, Attended) for every head < heads and column, each in one thread, with
  // what the tokens begin to end - 1 of the sequence give. The whole block calls it; may be called
  // again at once. Tokens from end on are not read.
  template <typename Result>
  static __device__ __forceinline__ void attend(
      const Result& result,
      const T* __restrict__ q,              // [heads, head_dim]
      const T* __restrict__ k_cache,        // [num_blocks, kv_heads, block_size, head_dim]
      const T* __restrict__ v_cache,        // [num_blocks, kv_heads, block_size, head_dim]
      const int* __restrict__ block_table,  // [max_blocks]
      int begin,
      int end,
      int heads,
      int kv_head,
      int kv_heads,
      int block_size,
      float scale_log2) {  // scale * log2(e)
    using Vector = Pack<T, kWidth>;
    const int stream = threadIdx.x / kLanes, stream_lane = threadIdx.x % kLanes;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    float queries[kHeads][kLoads][kWidth], sums[kHeads][kLoads][kWidth];
    float highest[kHeads], totals[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      highest[h] = kLowest;
      totals[h] = 0.0f;
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const int vector = j * kLanes + stream_lane;
        Vector loaded = zeros<T, kWidth>();
        if (vector < kVectors && h < heads) {
          loaded = reinterpret_cast<const Vector*>(q)[h * kVectors + vector];
        }
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          queries[h][j][k] = to_float(loaded.v[k]) * scale_log2;
          sums[h][j][k] = 0.0f;
        }
      }
    }

    // The condition is the same in all lanes of a warp, whose first stream has the first token.
    for (int first = begin; first + warp * (32 / kLanes) < end; first += kTokens * kStreams) {
      Vector keys[kTokens][kLoads], values[kTokens][kLoads];
#pragma unroll
      for (int n = 0; n < kTokens; ++n) {
        const int token = first + n * kStreams + stream;
        long long row = 0;
        if (token < end) {
          const long long block = block_table[token / block_size];
          row = (block * kv_heads + kv_head) * block_size + token % block_size;
        }
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
          const int vector = j * kLanes + stream_lane;
          keys[n][j] = values[n][j] = zeros<T, kWidth>();
          if (token < end && vector < kVectors) {
            keys[n][j] = reinterpret_cast<const Vector*>(k_cache)[row * kVectors + vector];
            values[n][j] = reinterpret_cast<const Vector*>(v_cache)[row * kVectors + vector];
          }
        }
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float scores[kTokens], best = highest[h];
#pragma unroll
        for (int n = 0; n < kTokens; ++n) {
          float dot = 0.0f;
#pragma unroll
          for (int j = 0; j < kLoads; ++j) {
#pragma unroll
            for (int k = 0; k < kWidth; ++k) {
              dot = fmaf(queries[h][j][k], to_float(keys[n][j].v[k]), dot);
            }
          }
          scores[n] = lanes_sum<kLanes>(dot);
          if (first + n * kStreams + stream < end) best = fmaxf(best, scores[n]);
        }
        const float keep = exp2_for<T>(highest[h] - best);
        highest[h] = best;
        float added = 0.0f;
#pragma unroll
        for (int n = 0; n < kTokens; ++n) {
          const bool live = first + n * kStreams + stream < end;
          scores[n] = live ? exp2_for<T>(scores[n] - best) : 0.0f;
          added += scores[n];
        }
        totals[h] = fmaf(totals[h], keep, added);
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
#pragma unroll
          for (int k = 0; k < kWidth; ++k) {
            float sum = __fmul_rn(sums[h][j][k], keep);
#pragma unroll
            for (int n = 0; n < kTokens; ++n) {
              sum = fmaf(scores[n], to_float(values[n][j].v[k]), sum);
            }
            sums[h][j][k] = sum;
          }
        }
      }
    }

    // Merge the streams of each warp: afterwards every stream holds the warp's result.
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float best = highest[h];
#pragma unroll
      for (int offset = kLanes; offset < 32; offset *= 2) {
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
      }
      const float keep = exp2_for<T>(highest[h] - best);
      highest[h] = best;
      totals[h] = streams_sum<kLanes>(__fmul_rn(totals[h], keep));
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          sums[h][j][k] = streams_sum<kLanes>(__fmul_rn(sums[h][j][k], keep));
        }
      }
    }

    // Merge the warps, one head after the other.
    __shared__ float warp_highest[kWarps], warp_totals[kWarps], warp_sums[kWarps][kHeadDim];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (lane == 0) {
        warp_highest[warp] = highest[h];
        warp_totals[warp] = totals[h];
      }
      if (lane < kLanes) {
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
          const int vector = j * kLanes + lane;
#pragma unroll
          for (int k = 0; k < kWidth; ++k) {
            if (vector < kVectors) warp_sums[warp][vector * kWidth + k] = sums[h][j][k];
          }
        }
      }
      __syncthreads();
      for (int column = threadIdx.x; column < kHeadDim; column += kThreads) {
        Attended all = nothing();
        for (int w = 0; w < kWarps; ++w) {
          fold<T>(all, {warp_highest[w], warp_totals[w], warp_sums[w][column]});
        }
        if (h < heads) result(h, column, all);
      }
      __syncthreads();
    }
  }
};
