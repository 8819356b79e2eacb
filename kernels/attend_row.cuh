// Attention of one query token to the first tokens of its sequence in the paged cache, by a block.
// Decode attention and batch-invariant prefill attention share it, so a row has the same bits in both.
#pragma once
#include "common.cuh"

constexpr float kLowest = -3.402823466e38f;  // below every score

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

// out[h, :] = softmax(scale * q[h, :] @ K.T) @ V for heads h < heads <= kHeads of one KV head, K and V
// the first `length` >= 1 tokens of the blocks in block_table.
//
// Scores, softmax (in base 2, online) and sums in float32; rounds to T once, at the store. kLanes
// lanes share a token, kWidth elements of K and of V a load: a stream. The streams of the block take
// consecutive tokens, kTokens each before the softmax is rescaled, and are merged at the end, first
// within a warp, then over warps. All orders follow from the template arguments and the length alone,
// and what could be contracted is spelled out, so the bits do not depend on the kernel around it.
// Blocks of the table after the last token are not read, nor slots after it.
template <typename T, int kHeadDim, int kWidth, int kHeads, int kTokens, int kThreads>
__device__ __forceinline__ void attend_row(
    T* __restrict__ out,                  // [heads, head_dim]
    const T* __restrict__ q,              // [heads, head_dim]
    const T* __restrict__ k_cache,        // [num_blocks, kv_heads, block_size, head_dim]
    const T* __restrict__ v_cache,        // [num_blocks, kv_heads, block_size, head_dim]
    const int* __restrict__ block_table,  // [max_blocks]
    int length,
    int heads,
    int kv_head,
    int kv_heads,
    int block_size,
    float scale_log2) {  // scale * log2(e)
  using Vector = Pack<T, kWidth>;
  constexpr int kVectors = kHeadDim / kWidth;               // of a head
  constexpr int kLanes = lanes_for(kVectors);               // of a stream
  constexpr int kLoads = (kVectors + kLanes - 1) / kLanes;  // of a lane for a token
  constexpr int kStreams = kThreads / kLanes;
  constexpr int kWarps = kThreads / 32;
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
  for (int first = 0; first + warp * (32 / kLanes) < length; first += kTokens * kStreams) {
    Vector keys[kTokens][kLoads], values[kTokens][kLoads];
#pragma unroll
    for (int n = 0; n < kTokens; ++n) {
      const int token = first + n * kStreams + stream;
      long long row = 0;
      if (token < length) {
        const long long block = block_table[token / block_size];
        row = (block * kv_heads + kv_head) * block_size + token % block_size;
      }
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const int vector = j * kLanes + stream_lane;
        keys[n][j] = values[n][j] = zeros<T, kWidth>();
        if (token < length && vector < kVectors) {
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
        if (first + n * kStreams + stream < length) best = fmaxf(best, scores[n]);
      }
      const float keep = exp2_for<T>(highest[h] - best);
      highest[h] = best;
      float added = 0.0f;
#pragma unroll
      for (int n = 0; n < kTokens; ++n) {
        const bool live = first + n * kStreams + stream < length;
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
    float best = kLowest;
    for (int w = 0; w < kWarps; ++w) best = fmaxf(best, warp_highest[w]);
    for (int column = threadIdx.x; column < kHeadDim; column += kThreads) {
      float total = 0.0f, sum = 0.0f;
      for (int w = 0; w < kWarps; ++w) {
        const float keep = exp2_for<T>(warp_highest[w] - best);
        total = fmaf(warp_totals[w], keep, total);
        sum = fmaf(warp_sums[w][column], keep, sum);
      }
      if (h < heads) out[h * kHeadDim + column] = from_float<T>(sum / total);
    }
    __syncthreads();
  }
}
