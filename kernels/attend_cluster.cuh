// Decode attention of few rows by clusters of blocks, on sm_90a: fp16 and bf16, head_dim a multiple of
// 32, cache blocks of 16 tokens or a multiple, at most 8 query heads to a KV head.
//
// A cluster has a row's tokens of one KV head; each of its blocks takes an equal run of whole pieces of
// 16 tokens, and each warp of a block every kWarps-th piece of that. A piece of K or V is one copy. What
// warps have found is folded out of each other's shared memory, so there is no second launch.
#pragma once
#include "attend_tiles.cuh"
#include "online_softmax.cuh"
#include "ptx_sm90.cuh"

template <int kCount>
struct alignas(4 * kCount) ClusterWords {
  unsigned words[kCount];
};

template <typename T, int kHeadDim, int kWarps, int kKeyStages, int kValueStages>
struct ClusterAttention {
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kHeads = 8;  // at most so many
  static constexpr int kPieceTokens = 16;
  static constexpr int kPiece = kPieceTokens * kHeadDim;
  static constexpr int kStages = kKeyStages + kValueStages;
  static constexpr int kRing = kStages * kPiece;  // of a warp
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kKeyLoads = kHeadDim / 32;  // of 8 elements, of a lane, for a token
  static constexpr bool kKeysSwap = kKeyLoads % 2 == 0;
  static constexpr int kColumns = kHeadDim / 8;             // of V, of a lane
  static constexpr int kValueWidth = kColumns % 8 ? 4 : 8;  // of a load
  static constexpr int kValueLoads = kColumns / kValueWidth;
  static constexpr int kSumsStride = kHeadDim + 4;
  static constexpr int kRingBytes = kWarps * kRing * 2;
  static constexpr int kExtents = kRingBytes + kWarps * kStages * 8;
  static constexpr int kSharedBytes = kExtents + kWarps * kHeads * 8;
  static_assert(kHeads * kSumsStride * 4 <= kRing * 2, "a warp's sums take the place of its ring");

  static __device__ __forceinline__ void run(
      T* __restrict__ out,
      const T* q,
      const T* k_cache,
      const T* v_cache,
      const int* block_tables,
      const int* row_ids,
      const int* seq_lens,
      int kv_heads,
      int group,
      int block_size,
      int max_blocks,
      float scale_log2,
      int least_pieces) {
    extern __shared__ __align__(128) unsigned char smem[];
    const int rank = blockIdx.x, ranks = gridDim.x, kv_head = blockIdx.y, row = blockIdx.z;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int length = load_early(seq_lens + row), row_id = load_early(row_ids + row);
    T* ring = reinterpret_cast<T*>(smem) + warp * kRing;
    const unsigned barriers = shared_address(smem + kRingBytes) + warp * kStages * 8;
    const auto place_of = [](int n, int which) {
      return which ? kKeyStages + n % kValueStages : n % kKeyStages;
    };
    const auto barrier_of = [&](int n, int which) { return barriers + place_of(n, which) * 8; };
    if (lane < kStages) mbarrier_init(barriers + lane * 8, 1);
    mbarrier_init_done();
    __syncwarp();

    const int pieces = (length + kPieceTokens - 1) / kPieceTokens;
    const int share = max(least_pieces, (pieces + ranks - 1) / ranks);
    const int first = min(rank * share, pieces), end = min(first + share, pieces);
    const int tiles = max(0, (end - first - warp + kWarps - 1) / kWarps);  // of this warp
    const int* block_table = block_tables + static_cast<long long>(row_id) * max_blocks;
    const auto piece_of = [&](int n) { return first + n * kWarps + warp; };
    const auto block_of = [&](int n) {
      return n < tiles ? load_early(block_table + piece_of(n) * kPieceTokens / block_size) : 0;
    };
    const auto tile_at = [&](int n, int which) { return ring + place_of(n, which) * kPiece; };
    const auto wait_for = [&](int n, int which) {
      mbarrier_wait(barrier_of(n, which), n / (which ? kValueStages : kKeyStages) % 2);
    };
    // By one lane.
    const auto copy_tile = [&](int n, int which, int block) {
      const T* cache = which ? v_cache : k_cache;
      const long long head = static_cast<long long>(block) * kv_heads + kv_head;
      const T* from =
          cache + (head * block_size + piece_of(n) * kPieceTokens % block_size) * kHeadDim;
      mbarrier_arrive_expecting(barrier_of(n, which), kPiece * 2);
      copy_bytes(shared_address(tile_at(n, which)), from, kPiece * 2, barrier_of(n, which));
    };
    int blocks = block_of(lane), next_blocks = 0;  // of tiles lane, lane + 32 and so on
    const bool begins_k = lane < kKeyStages && lane < tiles,
               begins_v = lane < kValueStages && lane < tiles;
    const bool settled = piece_of(lane) < pieces - 1;  // holds no token of this step
    if (settled) {
      if (begins_k) copy_tile(lane, 0, blocks);
      if (begins_v) copy_tile(lane, 1, blocks);
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (!settled) {
      if (begins_k) copy_tile(lane, 0, blocks);
      if (begins_v) copy_tile(lane, 1, blocks);
    }
    const long long at = (static_cast<long long>(row) * kv_heads + kv_head) * group * kHeadDim;
    if (length <= 0) {
      for (int i = rank * kThreads + threadIdx.x; i < group * kHeadDim; i += ranks * kThreads) {
        out[at + i] = from_float<T>(0.0f);
      }
      return;
    }
    const int used = (pieces + share - 1) / share;  // blocks that have pieces
    if (used == 1 && rank > 0) return;

    const int lane_row = lane / 4, lane_pair = lane % 4 * 2;  // in a fragment
    ClusterWords<4> queries[kKeyLoads];
#pragma unroll
    for (int j = 0; j < kKeyLoads; ++j) {
      queries[j] = ClusterWords<4>{};
      const T* from = q + at + lane_row * kHeadDim + (j * 4 + lane % 4) * 8;
      if (lane_row < group && tiles > 0)
        queries[j] = *reinterpret_cast<const ClusterWords<4>*>(from);
    }
    float sums[kSteps][4] = {};
    float highest = kLowest, total = 0.0f;  // of the head lane_row
    for (int n = 0; n < tiles; ++n) {
      if (n % 32 == 0) next_blocks = block_of(n + 32 + lane);
      const auto block_at = [&](int ahead) {
        const int in_next = n % 32 + ahead;
        return __shfl_sync(0xffffffffu, in_next < 32 ? blocks : next_blocks, in_next % 32);
      };
      const int key_block = block_at(kKeyStages), value_block = block_at(kValueStages);
      if (n % 32 == 31) blocks = next_blocks;
      const int first_token = piece_of(n) * kPieceTokens;
      wait_for(n, 0);
      float scores[2][4] = {};  // of tokens 0 to 7 and 8 to 15
      const T* keys = tile_at(n, 0) + lane_row * kHeadDim + lane % 4 * 8;
#pragma unroll
      for (int j = 0; j < kKeyLoads; ++j) {
        const ClusterWords<4>&first_words = queries[j], &second = queries[kKeysSwap ? j ^ 1 : j];
        const int place = kKeysSwap ? j ^ lane_row % 2 : j;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const auto loaded =
              *reinterpret_cast<const ClusterWords<4>*>(keys + half * 8 * kHeadDim + place * 32);
#pragma unroll
          for (int w = 0; w < 4; w += 2) {
            const unsigned a[4] = {first_words.words[w], second.words[w], first_words.words[w + 1],
                                   second.words[w + 1]};
            const unsigned b[2] = {loaded.words[w], loaded.words[w + 1]};
            mma_m16n8k16<T>(scores[half], a, b);
          }
        }
      }
      __syncwarp();
      if (n + kKeyStages < tiles && lane == 0) copy_tile(n + kKeyStages, 0, key_block);

      unsigned high[2], low[2];
      float best = highest;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if constexpr (kKeysSwap) scores[j][1] = scores[j][3];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int token = first_token + j * 8 + lane_pair + i;
          scores[j][i] = token < length ? __fmul_rn(scores[j][i], scale_log2) : kLowest;
          best = fmaxf(best, scores[j][i]);
        }
      }
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
      const float keep = exp2_for<T>(highest - best);
      const bool rescale = best > highest;
      highest = best;
      float added = 0.0f;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float weights[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          weights[i] = exp2_for<T>(scores[j][i] - best + kLargestWeightLog2<T>);
          added += weights[i];
        }
        split_pair<T>(weights[0], weights[1], high[j], low[j]);
      }
      total = fmaf(total, keep, added);
      if (__any_sync(0xffffffffu, rescale)) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float factor = __shfl_sync(0xffffffffu, keep, (lane_pair + i) * 4);
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            sums[step][i] *= factor;
            sums[step][i + 2] *= factor;
          }
        }
      }

      wait_for(n, 1);
      if (first_token + kPieceTokens > length) {  // what lies there may be NaN
        const int begin = (length - first_token) * kHeadDim;
        for (int i = begin + lane * 8; i < kPiece; i += 32 * 8) {
          *reinterpret_cast<ClusterWords<4>*>(tile_at(n, 1) + i) = ClusterWords<4>{};
        }
        __syncwarp();
      }
      using Values = ClusterWords<kValueWidth / 2>;
      const T* values = tile_at(n, 1) + lane_pair * kHeadDim + lane_row * kColumns;
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
      __syncwarp();
      if (n + kValueStages < tiles && lane == 0) copy_tile(n + kValueStages, 1, value_block);
    }

    float* warp_sums = reinterpret_cast<float*>(ring);             // [kHeads][kSumsStride]
    float2* extents = reinterpret_cast<float2*>(smem + kExtents);  // [kWarps][kHeads]
    if (tiles > 0) {
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      if (lane % 4 == 0) extents[warp * kHeads + lane_row] = make_float2(highest, total);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int head = lane_pair + i % 2, column = lane_row * kColumns + step * 2 + i / 2;
          if (head < group) warp_sums[head * kSumsStride + column] = sums[step][i];
        }
      }
    }
    const bool alone = used == 1;
    if (alone) {
      __syncthreads();
    } else {
      cluster_arrive();
      cluster_wait();
    }
    // Parts are in the order of tokens' ranks and warps. Four lanes have a run of 16 columns, eight such
    // teams every eighth part.
    const int warps = min(kWarps, share);
    const int of_last = pieces - (used - 1) * share;
    const int parts = (used - 1) * warps + min(kWarps, of_last);
    const int teams = alone ? kWarps : ranks * kWarps;
    const unsigned own_base = shared_address(smem);
    for (int run = rank * kWarps + warp; run < group * kHeadDim / 16; run += teams) {
      const int head = run * 16 / kHeadDim, column = run * 16 % kHeadDim + lane % 4 * 4;
      float best = kLowest, all_total = 0.0f, all[4] = {};
      for (int part = lane / 4; part < parts; part += 8) {
        const int of_warp = part % warps;
        const unsigned base = cluster_address(own_base, part / warps);
        float extent[2], loaded[4];
        load_of_cluster(extent, base + kExtents + (of_warp * kHeads + head) * 8);
        load_of_cluster(loaded, base + of_warp * kRing * 2 + (head * kSumsStride + column) * 4);
        const float now = fmaxf(best, extent[0]);
        const float keep = exp2_for<T>(best - now), scale = exp2_for<T>(extent[0] - now);
        best = now;
        all_total = fmaf(extent[1], scale, __fmul_rn(all_total, keep));
#pragma unroll
        for (int i = 0; i < 4; ++i) all[i] = fmaf(loaded[i], scale, __fmul_rn(all[i], keep));
      }
#pragma unroll
      for (int bit = 4; bit < 32; bit *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, best, bit);
        const float now = fmaxf(best, other);
        const float keep = exp2_for<T>(best - now), scale = exp2_for<T>(other - now);
        best = now;
        all_total =
            fmaf(__shfl_xor_sync(0xffffffffu, all_total, bit), scale, __fmul_rn(all_total, keep));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          all[i] = fmaf(__shfl_xor_sync(0xffffffffu, all[i], bit), scale, __fmul_rn(all[i], keep));
        }
      }
      if (lane < 4) {
        Pack<T, 4> result;
#pragma unroll
        for (int i = 0; i < 4; ++i) result.v[i] = from_float<T>(all[i] / all_total);
        *reinterpret_cast<Pack<T, 4>*>(out + at + head * kHeadDim + column) = result;
      }
    }
    if (!alone) {
      cluster_arrive();
      cluster_wait();  // nobody leaves while others read its shared memory
    }
  }
};
