// Decode attention of few rows, by a block for each part of a row and KV head, on sm_90a: fp16 and bf16,
// head_dim a multiple of 32, cache blocks of 16 tokens times a power of two, at most 8 query heads to a KV
// head.
//
// With few rows a launch is a chain of latencies: length, block table, K, V, the fold. So nothing is
// planned or divided: a row's pieces of 16 tokens are dealt out to its blocks in turn, and within a block
// to the warps. What the launch before does not write is read before the wait for it: lengths, tables,
// and K and V but for the piece with the row's newest token. As in `Pieces`, a piece of K or V of a head
// is one copy, and lies in shared memory as in the cache; there the order of its columns in fragments is
// told. A warp folds what the block has found for a head, and in the last block what all of them have.
#pragma once
#include "piece_sums.cuh"
#include "ptx_sm90.cuh"

template <typename T, int kHeadDim, int kWarps, int kAhead, int kCluster>
struct FewRows {
  using Sums = PieceSums<T, kHeadDim>;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr bool kClusters = kCluster > 1;
  static constexpr int kHeads = 8;  // at most so many
  static constexpr int kTokens = Sums::kTokens, kPiece = Sums::kElements;
  static constexpr int kRing = 2 * kAhead * kPiece;     // of a warp
  static constexpr int kBarriers = kWarps * kRing * 2;  // where they are in shared memory
  static constexpr int kStride = kHeadDim + 4;          // of results of heads
  static constexpr int kBatch = 16;  // parts that are loaded before they are folded
  static_assert(kHeads * kStride * 4 <= kRing * 2, "a warp's result takes the place of its ring");
  static_assert(kHeadDim <= 128, "four columns of a head are a lane's");

  using Four = FourColumns<T>;

  static __device__ __forceinline__ void run(
      T* __restrict__ out,
      const T* q,
      const T* k_cache,
      const T* v_cache,
      const int* block_tables,
      const int* row_ids,
      const int* seq_lens,
      float* workspace,
      int* arrivals,
      int kv_heads,
      int group,
      int block_shift,  // a block of the cache is 2^block_shift pieces
      int max_blocks,
      float scale_log2) {
    extern __shared__ __align__(128) unsigned char smem[];
    const int rank = blockIdx.x, ranks = kClusters ? kCluster : gridDim.x;
    const int kv_head = blockIdx.y, row = blockIdx.z;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int length = load_early(seq_lens + row), row_id = load_early(row_ids + row);
    T* const ring = reinterpret_cast<T*>(smem) + warp * kRing;
    const unsigned barriers = shared_address(smem + kBarriers) + warp * kAhead * 16;
    if (lane < 2 * kAhead) mbarrier_init(barriers + lane * 8, 1);
    mbarrier_init_done();
    __syncwarp();

    const int pieces = (length + kTokens - 1) / kTokens, used = min(pieces, ranks);
    const int stride = kWarps * ranks, first = warp * ranks + rank;  // of this warp's pieces
    const int* block_table = block_tables + static_cast<long long>(row_id) * max_blocks;
    const auto block_of = [&](int n) {
      const int piece = first + n * stride;
      return piece < pieces ? load_early(block_table + (piece >> block_shift)) : 0;
    };
    const auto place_of = [&](int n, int which) { return n % kAhead * 2 + which; };
    const auto barrier_of = [&](int n, int which) { return barriers + place_of(n, which) * 8; };
    const auto tile_of = [&](int n, int which) { return ring + place_of(n, which) * kPiece; };
    const auto copy = [&](int n, int which, int block) {  // by one lane
      const long long head = static_cast<long long>(block) * kv_heads + kv_head;
      const int place = first + n * stride & (1 << block_shift) - 1;
      const T* from = (which ? v_cache : k_cache) + ((head << block_shift) + place) * kPiece;
      mbarrier_arrive_expecting(barrier_of(n, which), kPiece * 2);
      copy_bytes(shared_address(tile_of(n, which)), from, kPiece * 2, barrier_of(n, which));
    };

    // Lane l knows the blocks of the warp's pieces l, l + 32 and so on, and begins the copies of the
    // first ones; that of the row's last piece, in which the newest token is, after the wait.
    int blocks = block_of(lane), later_blocks = 0;
    const int own = first + lane * stride;
    const bool begins = lane < kAhead && own < pieces, settled = own < pieces - 1;
    const auto begin_copies = [&] {
      copy(lane, 0, blocks);
      copy(lane, 1, blocks);
    };
    if (begins && settled) begin_copies();
    wait_for_previous_kernel();
    if (begins && !settled) begin_copies();

    const long long at = (static_cast<long long>(row) * kv_heads + kv_head) * group * kHeadDim;
    if (length <= 0) {
      for (int i = rank * kThreads + threadIdx.x; i < group * kHeadDim; i += ranks * kThreads) {
        out[at + i] = from_float<T>(0.0f);
      }
    }
    if (rank >= used && (!kClusters || used <= 1)) return;

    if (first < pieces) {
      Sums sums;
      sums.load_queries(q + at, group);
      for (int n = 0, piece = first; piece < pieces; ++n, piece += stride) {
        if (n % 32 == 0) later_blocks = block_of(n + 32 + lane);
        const int next = n % 32 + kAhead;
        const int block = __shfl_sync(0xffffffffu, next < 32 ? blocks : later_blocks, next % 32);
        if (n % 32 == 31) blocks = later_blocks;
        const bool copies = lane == 0 && piece + kAhead * stride < pieces;
        const int tokens = length - piece * kTokens;
        mbarrier_wait(barrier_of(n, 0), n / kAhead % 2);
        sums.weigh(tile_of(n, 0), tokens, scale_log2);
        fence_shared_memory();
        __syncwarp();
        if (copies) copy(n + kAhead, 0, block);
        mbarrier_wait(barrier_of(n, 1), n / kAhead % 2);
        sums.add(tile_of(n, 1), tokens);
        fence_shared_memory();
        __syncwarp();
        if (copies) copy(n + kAhead, 1, block);
      }
      sums.store(reinterpret_cast<float*>(ring), group, kStride);
    }
    let_next_kernel_start();

    const auto store = [&](int head, int column, const Four& all) {
      const float inverse = 1.0f / all.total;
      Pack<T, 4> rounded;
#pragma unroll
      for (int i = 0; i < 4; ++i) rounded.v[i] = from_float<T>(all.sums[i] * inverse);
      *reinterpret_cast<Pack<T, 4>*>(out + at + head * kHeadDim + column) = rounded;
    };
    if constexpr (kClusters) {
      const int parts = min(pieces, stride);
      if (used > 1) {
        cluster_arrive();
        cluster_wait();
        fold_cluster(group, parts, rank * kWarps + warp, stride, store);
        cluster_arrive();
        cluster_wait();  // nobody leaves while others read its shared memory
      } else {
        __syncthreads();
        fold_cluster(group, parts, warp, kWarps, store);
      }
    } else {
      __syncthreads();
      const long long place = (static_cast<long long>(row) * kv_heads + kv_head) * ranks;
      float* const results = workspace + place * group * kStride;
      int warps = 0;  // that have found something
#pragma unroll
      for (int w = 0; w < kWarps; ++w) warps += w * ranks + rank < pieces;
      int* const counts = arrivals + (static_cast<long long>(row) * kv_heads + kv_head) * group;
      for (int head = warp; head < group; head += kWarps) {
        fold_head(head, group, warps, rank, used, results, counts + head, store);
      }
    }
  }

  // Folds what `parts` warps of a cluster have found, the first ones of all blocks, then the second ones
  // and so on. Four lanes take 16 columns, eight such teams every eighth part; warps take turns.
  template <typename Store>
  static __device__ __forceinline__ void fold_cluster(
      int group, int parts, int first, int stride, const Store& store) {
    constexpr int kLaneTeams = 8, kPartsAhead = 4;
    extern __shared__ __align__(128) unsigned char smem[];
    const unsigned own = shared_address(smem);
    const int lane = threadIdx.x % 32;
    for (int run = first; run < group * kHeadDim / 16; run += stride) {
      const int head = run * 16 / kHeadDim, column = run * 16 % kHeadDim + lane % 4 * 4;
      Four all;
      for (int part = lane / 4; part < parts; part += kLaneTeams * kPartsAhead) {
        Four next[kPartsAhead];
#pragma unroll
        for (int k = 0; k < kPartsAhead; ++k) {
          const int from = min(part + kLaneTeams * k, parts - 1);
          const unsigned of_head = cluster_address(own, from % kCluster) +
                                   (from / kCluster * (kRing / 2) + head * kStride) * 4;
          float rest[2];
          load_of_cluster(next[k].sums, of_head + column * 4);
          load_of_cluster(rest, of_head + kHeadDim * 4);
          next[k].highest = rest[0];
          next[k].total = rest[1];
        }
        all.add(next, (parts - part + kLaneTeams - 1) / kLaneTeams);
      }
#pragma unroll
      for (int bit = 4; bit < 32; bit *= 2) {
        Four other[1];
        other[0].highest = __shfl_xor_sync(0xffffffffu, all.highest, bit);
        other[0].total = __shfl_xor_sync(0xffffffffu, all.total, bit);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          other[0].sums[i] = __shfl_xor_sync(0xffffffffu, all.sums[i], bit);
        }
        all.add(other, 1);
      }
      if (lane < 4) store(head, column, all);
    }
  }

  // Folds what the block's first `warps` warps have found for a head, by one warp. If others have parts of
  // the row too, the last of `used` blocks folds their results, in their order. The count is 0 before.
  template <typename Store>
  static __device__ __forceinline__ void fold_head(
      int head,
      int group,
      int warps,
      int rank,
      int used,
      float* results,  // [used, group, kStride]
      int* count,
      const Store& store) {
    extern __shared__ __align__(128) unsigned char smem[];
    const int lane = threadIdx.x % 32, column = lane * 4;
    const bool has_columns = column < kHeadDim;
    if (has_columns) {
      Four all, found[kWarps];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float* of_head =
            reinterpret_cast<const float*>(smem) + min(w, warps - 1) * (kRing / 2) + head * kStride;
        found[w] = Four::of(
            *reinterpret_cast<const float4*>(of_head + column),
            *reinterpret_cast<const float2*>(of_head + kHeadDim));
      }
      all.add(found, warps);
      if (used == 1) {
        store(head, column, all);
      } else {
        float* to = results + (rank * group + head) * kStride;
        *reinterpret_cast<float4*>(to + column) =
            make_float4(all.sums[0], all.sums[1], all.sums[2], all.sums[3]);
        if (lane == 0) {
          *reinterpret_cast<float2*>(to + kHeadDim) = make_float2(all.highest, all.total);
        }
      }
    }
    if (used == 1) return;
    __syncwarp();
    int arrived = 0;
    if (lane == 0) arrived = add_and_meet(count, 1);
    if (__shfl_sync(0xffffffffu, arrived, 0) != used - 1) return;
    __syncwarp();
    if (lane == 0) *count = 0;  // as it was
    if (!has_columns) return;
    Four all;
    for (int begin = 0; begin < used; begin += kBatch) {
      Four found[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const float* of_head = results + (min(begin + k, used - 1) * group + head) * kStride;
        found[k] = Four::of(
            load_from_others(reinterpret_cast<const float4*>(of_head + column)),
            load_from_others(reinterpret_cast<const float2*>(of_head + kHeadDim)));
      }
      all.add(found, used - begin);
    }
    store(head, column, all);
  }
};
