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

template <typename T, int kHeadDim, int kWarps, int kKeyStages, int kValueStages, bool kClusters>
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
      float* workspace,
      unsigned* counters,
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
    if (kClusters ? used == 1 && rank > 0 : rank >= used) return;

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
    // Parts are in the order of tokens' ranks and warps.
    const int warps = min(kWarps, share), of_last = min(kWarps, pieces - (used - 1) * share);
    const unsigned own = shared_address(smem);
    const bool alone = used == 1;
    const auto result_at = [&](int head, int column) {
      return out + at + head * kHeadDim + column;
    };
    const auto store_result = [&](int head, int column, const Folded& all) {
      Pack<T, 4> result;
#pragma unroll
      for (int i = 0; i < 4; ++i) result.v[i] = from_float<T>(all.sums[i] / all.total);
      *reinterpret_cast<Pack<T, 4>*>(result_at(head, column)) = result;
    };
    const auto of_warps = [&](int first_rank) {
      return [=](int part, int head, int column, Folded& next) {
        const unsigned base = cluster_address(own, first_rank + part / warps);
        const int of_warp = part % warps;
        float extent[2];
        load_of_cluster(extent, base + kExtents + (of_warp * kHeads + head) * 8);
        load_of_cluster(next.sums, base + of_warp * kRing * 2 + (head * kSumsStride + column) * 4);
        next.highest = extent[0];
        next.total = extent[1];
      };
    };
    if constexpr (kClusters) {
      if (alone) {
        __syncthreads();
      } else {
        cluster_arrive();
        cluster_wait();
      }
      const int parts = (used - 1) * warps + of_last;
      fold_all(
          group, parts, rank * kWarps + warp, alone ? kWarps : ranks * kWarps, of_warps(0),
          store_result);
      if (!alone) {
        cluster_arrive();
        cluster_wait();  // nobody leaves while others read its shared memory
      }
    } else {
      __syncthreads();
      const int vectors = group * kHeadDim / 4, own_parts = rank == used - 1 ? of_last : warps;
      const long long of_row = (static_cast<long long>(row) * gridDim.y + kv_head) * ranks;
      const auto part_at = [&](int part, int head) {
        return workspace + ((of_row + part) * group + head) * kSumsStride;
      };
      for (int i = threadIdx.x; i < vectors; i += kThreads) {
        const int head = i * 4 / kHeadDim, column = i * 4 % kHeadDim;
        Folded all = {kLowest, 0.0f, {}};
        for (int w = 0; w < own_parts; ++w) {
          const float* sums_of = reinterpret_cast<const float*>(smem) + w * (kRing / 2);
          const float2 extent = extents[w * kHeads + head];
          const float4 loaded =
              *reinterpret_cast<const float4*>(sums_of + head * kSumsStride + column);
          fold_next(all, {extent.x, extent.y, {loaded.x, loaded.y, loaded.z, loaded.w}});
        }
        if (alone) {
          store_result(head, column, all);
          continue;
        }
        float* part = part_at(rank, head);
        *reinterpret_cast<float4*>(part + column) =
            make_float4(all.sums[0], all.sums[1], all.sums[2], all.sums[3]);
        if (column == 0) {
          *reinterpret_cast<float2*>(part + kHeadDim) = make_float2(all.highest, all.total);
        }
      }
      if (alone) return;
      // The last block folds.
      __shared__ bool last;
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) {
        unsigned* counter = counters + row * gridDim.y + kv_head;
        last = atomicAdd(counter, 1u) == static_cast<unsigned>(used) - 1;
        if (last) atomicExch(counter, 0u);  // as the next launch finds it
        __threadfence();
      }
      __syncthreads();
      if (!last) return;
      const int teams = max(1, kThreads / vectors), team = threadIdx.x / vectors;
      Folded* of_teams = reinterpret_cast<Folded*>(smem);
      for (int i = threadIdx.x - team * (teams > 1 ? vectors : 0); i < vectors; i += kThreads) {
        const int head = i * 4 / kHeadDim, column = i * 4 % kHeadDim;
        Folded all = {kLowest, 0.0f, {}};
        for (int first = teams > 1 ? team : 0; first < used; first += 8 * teams) {
          float4 loaded[8];
          float2 extent[8];
#pragma unroll
          for (int k = 0; k < 8; ++k) {
            const float* from = part_at(min(first + k * teams, used - 1), head);
            loaded[k] = load_shared_result(reinterpret_cast<const float4*>(from + column));
            extent[k] = load_shared_result(reinterpret_cast<const float2*>(from + kHeadDim));
          }
#pragma unroll
          for (int k = 0; k < 8; ++k) {
            const bool counts = first + k * teams < used;
            fold_next(
                all, {counts ? extent[k].x : kLowest,
                      counts ? extent[k].y : 0.0f,
                      {loaded[k].x, loaded[k].y, loaded[k].z, loaded[k].w}});
          }
        }
        if (teams == 1) store_result(head, column, all);
        if (teams > 1 && team < teams) of_teams[threadIdx.x] = all;
      }
      if (teams > 1) {
        __syncthreads();
        if (threadIdx.x < vectors) {
          Folded all = of_teams[threadIdx.x];
          for (int t = 1; t < teams; ++t) fold_next(all, of_teams[t * vectors + threadIdx.x]);
          store_result(threadIdx.x * 4 / kHeadDim, threadIdx.x * 4 % kHeadDim, all);
        }
      }
    }
  }

  struct Folded {
    float highest, total, sums[4];
  };

  static __device__ __forceinline__ void fold_next(Folded& all, const Folded& next) {
    const float best = fmaxf(all.highest, next.highest);
    const float keep = exp2_for<T>(all.highest - best), scale = exp2_for<T>(next.highest - best);
    all.highest = best;
    all.total = fmaf(next.total, scale, __fmul_rn(all.total, keep));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      all.sums[i] = fmaf(next.sums[i], scale, __fmul_rn(all.sums[i], keep));
    }
  }

  // Four lanes have a run of 16 columns, eight such teams of a warp every eighth part.
  template <typename Read, typename Store>
  static __device__ __forceinline__ void fold_all(
      int group, int parts, int team, int teams, const Read& read, const Store& store) {
    const int lane = threadIdx.x % 32;
    for (int run = team; run < group * kHeadDim / 16; run += teams) {
      const int head = run * 16 / kHeadDim, column = run * 16 % kHeadDim + lane % 4 * 4;
      Folded all = {kLowest, 0.0f, {}};
      for (int part = lane / 4; part < parts; part += 32) {
        Folded next[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) read(min(part + 8 * k, parts - 1), head, column, next[k]);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (part + 8 * k < parts) fold_next(all, next[k]);
        }
      }
#pragma unroll
      for (int bit = 4; bit < 32; bit *= 2) {
        Folded other;
        other.highest = __shfl_xor_sync(0xffffffffu, all.highest, bit);
        other.total = __shfl_xor_sync(0xffffffffu, all.total, bit);
#pragma unroll
        for (int i = 0; i < 4; ++i) other.sums[i] = __shfl_xor_sync(0xffffffffu, all.sums[i], bit);
        fold_next(all, other);
      }
      if (lane < 4) store(head, column, all);
    }
  }
};
