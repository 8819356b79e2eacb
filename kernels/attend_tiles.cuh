// Attention of the query heads of one KV head to a run of tokens in the paged cache, by a block, on
// tensor cores: fp16 and bf16, head_dim a multiple of 16.
#pragma once
#include "online_softmax.cuh"
#include "ptx.cuh"

// Two numbers as a register of mma's fragments holds them, the first in the lower half.
__device__ __forceinline__ unsigned pair_of(__nv_bfloat162 v) {
  return *reinterpret_cast<const unsigned*>(&v);
}
__device__ __forceinline__ unsigned pair_of(__half2 v) {
  return *reinterpret_cast<const unsigned*>(&v);
}

// high + low is a, b to about 16 bits (bf16) or 22 (fp16): a weight that is rounded to T alone would
// cost as much as the rounding of the result.
template <typename T>
__device__ __forceinline__ void split_pair(float a, float b, unsigned& high, unsigned& low);
template <>
__device__ __forceinline__ void split_pair<__nv_bfloat16>(
    float a, float b, unsigned& high, unsigned& low) {
  const __nv_bfloat162 rounded = __floats2bfloat162_rn(a, b);
  high = pair_of(rounded);
  low = pair_of(__floats2bfloat162_rn(a - __low2float(rounded), b - __high2float(rounded)));
}
template <>
__device__ __forceinline__ void split_pair<__half>(
    float a, float b, unsigned& high, unsigned& low) {
  const __half2 rounded = __floats2half2_rn(a, b);
  high = pair_of(rounded);
  low = pair_of(__floats2half2_rn(a - __low2float(rounded), b - __high2float(rounded)));
}

// fp16 has no numbers between 0 and 2^-24, so its weights are 2^14 times as large.
template <typename T>
constexpr float kLargestWeightLog2 = 0.0f;
template <>
constexpr float kLargestWeightLog2<__half> = 14.0f;

// A step of softmax: what 16 tokens weigh for a head, of which this lane has two tokens of each half.
//
// scores: of the head at `first` and `first` + 1, in base 2 afterwards; only `tokens` of them count. highest, total: of
// the tokens before, then of these too (the total of this lane's tokens). high, low: the weights, as split_pair gives
// them. Returns what sums over the tokens before are multiplied by.
template <typename T>
__device__ __forceinline__ float weigh_tokens(
    float (&scores)[2][4],
    int first,
    int tokens,
    float scale_log2,
    float& highest,
    float& total,
    unsigned (&high)[2],
    unsigned (&low)[2]) {
  const int lane_pair = threadIdx.x % 4 * 2;
  float best = highest;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool counts = j * 8 + lane_pair + i < tokens;
      float& score = scores[j][first + i];
      score = counts ? __fmul_rn(score, scale_log2) : kLowest;
      best = fmaxf(best, score);
    }
  }
  best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
  best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
  const float keep = exp2_for<T>(highest - best);
  highest = best;
  float added = 0.0f;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float weights[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      weights[i] = exp2_for<T>(scores[j][first + i] - best + kLargestWeightLog2<T>);
      added += weights[i];
    }
    split_pair<T>(weights[0], weights[1], high[j], low[j]);
  }
  total = fmaf(total, keep, added);
  return keep;
}

// Multiplies the sums of the heads lane % 4 * 2 and the next by what the lanes of these heads keep.
template <int kSteps>
__device__ __forceinline__ void rescale(float (&sums)[kSteps][4], float keep) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float factor = __shfl_sync(0xffffffffu, keep, (threadIdx.x % 4 * 2 + i) * 4);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      sums[step][i] *= factor;
      sums[step][i + 2] *= factor;
    }
  }
}

// Each warp takes tiles of 16 tokens, the block's warps in turn, through a ring of kStages tiles of K
// and as many of V of its own in shared memory: copies of later tiles are under way while one is
// used, and no warp waits for another until the end. K's tile gives way to a new one while V's is
// used, and the other way round.
//
// Scores [heads, tokens] = Q K.T by m16n8k16 with the heads as rows (8 of 16 are empty if kHeads is
// 8); their fragment is at once the one of the weights.T that sums.T [head_dim, heads] = V.T
// weights.T takes, with the heads as columns. Rows of a tile are padded by 16 bytes, so that the 8
// rows of an 8x8 matrix lie in different banks.
template <typename T, int kHeadDim_, int kHeads_, int kStages>
struct Tiles {
  using Element = T;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kHeads = kHeads_;  // at most so many; 8 or 16
  static constexpr int kThreads = 128;
  static constexpr int kBlocks = 1;  // on a multiprocessor, that registers must leave room for

  static constexpr int kWarps = kThreads / 32;
  static constexpr int kTileTokens = 16;
  static constexpr int kVectors = kHeadDim / 8;  // of 16 bytes, of a head
  static constexpr int kStride = kHeadDim + 8;
  static constexpr int kTile = kTileTokens * kStride;
  static constexpr int kRing = 2 * kStages * kTile;  // of a warp
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kHeadTiles = kHeads / 8;
  // Columns of heads lie 4 banks apart when lanes store 4 heads of 8 columns.
  static constexpr int kSumsStride = kHeadDim + 4;
  static_assert(kHeadDim % 16 == 0 && (kHeads == 8 || kHeads == 16), "whole fragments");
  static_assert(kHeads * kSumsStride * 4 <= kRing * 2, "a warp's sums take the place of its ring");

  // Calls result(head, column, Attended) for every head < heads and column, each in one thread, with
  // what the tokens begin to end - 1 of the sequence give. begin is a multiple of 16. The whole
  // block calls it; may be called again at once. Tokens from end on are not read.
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
    extern __shared__ __align__(16) unsigned char smem[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    T* ring = reinterpret_cast<T*>(smem) + warp * kRing;
    const int all_tiles = (end - begin + kTileTokens - 1) / kTileTokens;
    const int tiles = (all_tiles - warp + kWarps - 1) / kWarps;  // of this warp

    // The token of tile n that this lane knows the place of; lanes 16 to 31 know the same ones.
    const auto token_of = [&](int n) {
      return begin + (n * kWarps + warp) * kTileTokens + lane % kTileTokens;
    };
    const auto block_of = [&](int n) {
      const int token = token_of(n);
      return token < end ? block_table[token / block_size] : 0;
    };
    const auto slot_of = [&](int n, int block) {
      const int token = token_of(n);
      const long long first = (static_cast<long long>(block) * kv_heads + kv_head) * block_size;
      return token < end ? first + token % block_size : -1ll;
    };
    const auto copy_tile = [&](T* tile, const T* cache, long long slot) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int row = (i * 32 + lane) / kVectors, vector = (i * 32 + lane) % kVectors;
        const long long from = __shfl_sync(0xffffffffu, slot, row);
        const bool valid = from >= 0;
        cp_async16(
            tile + row * kStride + vector * 8, cache + (valid ? from * kHeadDim + vector * 8 : 0),
            valid);
      }
    };
    const auto tile_at = [&](int n, int which) { return ring + (n % kStages * 2 + which) * kTile; };

    // Blocks are looked up one tile before their tokens' copies begin.
    int block = 0;
    {
      int blocks[kStages];
#pragma unroll
      for (int n = 0; n < kStages; ++n) blocks[n] = block_of(n);
      block = block_of(kStages);
#pragma unroll
      for (int n = 0; n < kStages; ++n) {
        const long long slot = slot_of(n, blocks[n]);
        if (n < tiles) copy_tile(tile_at(n, 0), k_cache, slot);
        cp_async_commit();
        if (n < tiles) copy_tile(tile_at(n, 1), v_cache, slot);
        cp_async_commit();
      }
    }

    const int lane_row = lane / 4, lane_pair = lane % 4 * 2;  // in a fragment
    unsigned queries[kSteps][2][kHeadTiles];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int h = 0; h < kHeadTiles; ++h) {
          const int head = h * 8 + lane_row;
          const T* from = q + head * kHeadDim + step * 16 + half * 8 + lane_pair;
          queries[step][half][h] = head < heads ? *reinterpret_cast<const unsigned*>(from) : 0u;
        }
      }
    }

    float sums[kHeadTiles][kSteps][4] = {};
    float highest[kHeadTiles], totals[kHeadTiles];  // of the head h * 8 + lane_row
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      highest[h] = kLowest;
      totals[h] = 0.0f;
    }

    for (int n = 0; n < tiles; ++n) {
      cp_async_wait<2 * kStages - 1>();
      __syncwarp();
      float scores[2][4] = {};  // of tokens 0 to 7 and 8 to 15
      const T* keys = tile_at(n, 0) + (lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        unsigned a[4] = {queries[step][0][0], 0u, queries[step][1][0], 0u}, b[4];
        if constexpr (kHeadTiles == 2) {
          a[1] = queries[step][0][1];
          a[3] = queries[step][1][1];
        }
        ldmatrix_x4(b, keys + step * 16);
        const unsigned b_first[2] = {b[0], b[1]}, b_second[2] = {b[2], b[3]};
        mma_m16n8k16<T>(scores[0], a, b_first);
        mma_m16n8k16<T>(scores[1], a, b_second);
      }
      __syncwarp();
      const long long slot = slot_of(n + kStages, block);
      if (n + kStages < tiles) copy_tile(tile_at(n, 0), k_cache, slot);
      cp_async_commit();
      block = block_of(n + kStages + 1);

      unsigned high[kHeadTiles][2], low[kHeadTiles][2];
      float keep[kHeadTiles];
      const int tokens = end - begin - (n * kWarps + warp) * kTileTokens;
      bool is_higher = false;
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        const float before = highest[h];
        keep[h] = weigh_tokens<T>(
            scores, h * 2, tokens, scale_log2, highest[h], totals[h], high[h], low[h]);
        is_higher |= highest[h] > before;
      }
      if (__any_sync(0xffffffffu, is_higher)) {
#pragma unroll
        for (int h = 0; h < kHeadTiles; ++h) rescale(sums[h], keep[h]);
      }

      cp_async_wait<2 * kStages - 1>();
      __syncwarp();
      const T* values = tile_at(n, 1) + (lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        unsigned a[4];
        ldmatrix_x4_trans(a, values + step * 16);
#pragma unroll
        for (int h = 0; h < kHeadTiles; ++h) {
          mma_m16n8k16<T>(sums[h][step], a, high[h]);
          mma_m16n8k16<T>(sums[h][step], a, low[h]);
        }
      }
      __syncwarp();
      if (n + kStages < tiles) copy_tile(tile_at(n, 1), v_cache, slot);
      cp_async_commit();
    }

    // Merge the warps, whose sums take the place of their rings.
    __shared__ float warp_highest[kWarps][kHeads], warp_totals[kWarps][kHeads];
    cp_async_wait<0>();
    __syncwarp();
    float* warp_sums = reinterpret_cast<float*>(ring);  // [kHeads][kSumsStride]
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      float total = totals[h];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      if (lane % 4 == 0) {
        warp_highest[warp][h * 8 + lane_row] = highest[h];
        warp_totals[warp][h * 8 + lane_row] = total;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = h * 8 + lane_pair + i % 2, column = lane_row + i / 2 * 8;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          warp_sums[head * kSumsStride + step * 16 + column] = sums[h][step][i];
        }
      }
    }
    __syncthreads();
    const float* block_sums = reinterpret_cast<const float*>(smem);
    fold_warps<T, kHeadDim, kRing / 2, kSumsStride>(
        result, warp_highest, warp_totals, block_sums, heads);
    __syncthreads();  // before the sums give way to the next tiles
  }
};
