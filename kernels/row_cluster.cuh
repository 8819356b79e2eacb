// A row of logits in the shared memory of a cluster of blocks, on sm_90a: each has a run of whole chunks
// of it in float32, and reads what the others have found. No kernel lives here.
#pragma once
#include "ptx_sm90.cuh"
#include "row_chunks.cuh"

constexpr int kRanks = 8;  // blocks of a row: a cluster
constexpr int kMaxOwnChunks = kMaxChunks / kRanks;
constexpr int kOwnCandidates = 1024;

// What is known of a block's tokens.
struct alignas(16) RankExtent {
  int top_key, top_id, bottom_key;
  float estimate;  // of what the block is asked for
};

// All threads of the cluster meet: what they wrote in shared memory is there for the others.
__device__ __forceinline__ void meet() {
  cluster_arrive();
  cluster_wait();
}

// A block's part of the row, in float32. Each thread has a run of 1 << run_bits tokens, and between runs lie
// four words, so that threads which load four tokens of their runs at a time do not meet in a bank.
struct PartTile {
  float* words;
  int run_bits;

  __device__ __forceinline__ int place(int i) const { return i + (i >> run_bits) * 4; }
  __device__ __forceinline__ float& operator[](int i) const { return words[place(i)]; }
  __device__ __forceinline__ int run() const { return 1 << run_bits; }
  __device__ __forceinline__ int first() const { return threadIdx.x << run_bits; }  // of the thread

  // Calls visit(logit, i) for the thread's tokens, i ascending.
  template <typename Visit>
  __device__ __forceinline__ void visit(Visit visit) const {
    const int begin = first(), end = begin + run();
    const float* from = words + place(begin) - begin;
#pragma unroll 1
    for (int i = begin; i < end; i += 4) {
      const float4 logits = *reinterpret_cast<const float4*>(from + i);
      visit(logits.x, i);
      visit(logits.y, i + 1);
      visit(logits.z, i + 2);
      visit(logits.w, i + 3);
    }
  }
};

// What the block `rank` has where this one has `own`.
__device__ __forceinline__ uint4 four_words_of(const void* own, int rank) {
  float found[4];
  load_of_cluster(found, cluster_address(shared_address(own), rank));
  return make_uint4(
      __float_as_uint(found[0]), __float_as_uint(found[1]), __float_as_uint(found[2]),
      __float_as_uint(found[3]));
}
__device__ __forceinline__ Sum sum_of(unsigned low, unsigned high) {
  return static_cast<Sum>(high) << 32 | low;
}
__device__ __forceinline__ Sum sum_of_rank(const Sum* own, int rank) {
  float found[2];
  load_of_cluster(found, cluster_address(shared_address(own), rank));
  return sum_of(__float_as_uint(found[0]), __float_as_uint(found[1]));
}

// A thread's logits of a part of the row, as the model gives them: so many of one load under way.
template <typename T, int kWidth>
struct PartLoads {
  static constexpr int kLoads = 32 / kWidth, kStride = kThreads * kWidth;
  static constexpr int kPart = kWidth < 4 ? kWidth : 4;
  Pack<T, kWidth> packs[kLoads];

  // Those from `first` on of the part, which begins with the id `begin`.
  __device__ __forceinline__ void load(
      const T* logits, int vocab, int begin, int tokens, int first) {
#pragma unroll
    for (int v = 0; v < kLoads; ++v) {
      const int i = first + v * kStride;
      if (i < tokens && begin + i < vocab) {
        packs[v] = *reinterpret_cast<const Pack<T, kWidth>*>(logits + begin + i);
      }
    }
  }
  // Stores them in float32; -inf after the row's last token.
  __device__ __forceinline__ void store(
      const PartTile& tile, int vocab, int begin, int tokens, int first) {
#pragma unroll
    for (int v = 0; v < kLoads; ++v) {
      const int i = first + v * kStride;
      if (i >= tokens) continue;
#pragma unroll
      for (int k = 0; k < kWidth; k += kPart) {
        Pack<float, kPart> part;
#pragma unroll
        for (int j = 0; j < kPart; ++j) {
          part.v[j] = begin + i < vocab ? to_float(packs[v].v[k + j]) : key_logit(-kInfinityKey);
        }
        *reinterpret_cast<Pack<float, kPart>*>(&tile[i + k]) = part;
      }
    }
  }
};

// Fills the tile with a part of the row, of which `loads` has the first. All threads of the block call it; a
// barrier stands at its end.
template <typename T, int kWidth>
__device__ __forceinline__ void fill_part(
    const T* logits,
    int vocab,
    PartLoads<T, kWidth>& loads,
    int begin,
    int tokens,
    const PartTile& tile) {
  constexpr int kTurn = PartLoads<T, kWidth>::kLoads * PartLoads<T, kWidth>::kStride;
  const int own = threadIdx.x * kWidth;
  loads.store(tile, vocab, begin, tokens, own);
#pragma unroll 1
  for (int turn = kTurn; turn < tokens; turn += kTurn) {
    loads.load(logits, vocab, begin, tokens, turn + own);
    loads.store(tile, vocab, begin, tokens, turn + own);
  }
  __syncthreads();
}

// The same that `adjust` does, apart from the code that most rows need.
template <typename T, int kWidth>
__device__ __noinline__ void adjust_part(const Row<T>& row, int begin, int end, PartTile tile) {
  adjust<kWidth>(row, begin, end, tile);
}

// block_scan as a function of its own: it is called in many places.
__device__ __noinline__ Scan scan_of_block(Sum own) { return block_scan<kThreads>(own); }

// Leaves the extent of the block's tokens for the others.
__device__ __forceinline__ void tell_extent(RankExtent& to, Extent extent, float estimate) {
  if (threadIdx.x == 0) to = {extent.top_key, extent.top_id, extent.bottom_key, estimate};
}

// The extent of all blocks' tokens; lane r gets the top key and the estimate of block r. All lanes of the
// warp call it.
__device__ __forceinline__ Extent
extent_of_ranks(const RankExtent& own, int& top_key, float& estimate) {
  const uint4 found = four_words_of(&own, lane_index() < kRanks ? lane_index() : 0);
  top_key = static_cast<int>(found.x);
  estimate = __uint_as_float(found.w);
  Extent extent;
  extent.top_key = __reduce_max_sync(kAllLanes, top_key);
  extent.top_id = __reduce_min_sync(
      kAllLanes, top_key == extent.top_key ? static_cast<int>(found.y) : kHighestInt);
  extent.bottom_key = __reduce_min_sync(kAllLanes, static_cast<int>(found.z));
  return extent;
}

// Blocks whose part of the row, of so many tokens, holds any of it. The last ones of a small vocabulary's
// do not, and would make every token one of the first.
__device__ __forceinline__ int used_ranks(int vocab, int tokens) {
  return (vocab + tokens - 1) / tokens;
}

// A logit that the block's share of the k first of the order are not below, as floor_of_first finds it: the
// lowest of the used blocks' is one that the k first are not below. All threads of the block call it.
__device__ __forceinline__ float floor_of_share(int k, int used, Extent own, Extent of_block) {
  if (of_block.top_key <= -kInfinityKey) return -3e38f;  // nothing is there
  return floor_of_first((k - 1) / used + 1, own.top_key, of_block);
}

__device__ __forceinline__ float lowest_of_ranks(float estimate, int used) {
  const bool knows = lane_index() < used;
  return key_logit(__reduce_min_sync(kAllLanes, knows ? order_key(estimate) : kHighestInt));
}

// What a block has found, beside its candidates.
struct alignas(16) RankSum {
  int num_candidates, unused;
  Sum sum;
};

// What lane r knows of block r.
struct RanksSums {
  int theirs, up_to, all;  // candidates of block r, of it and those before, of all
  Sum sum;                 // of block r; 0 in other lanes

  // All lanes of the warp call it.
  __device__ __forceinline__ explicit RanksSums(const RankSum& own) {
    const bool knows = lane_index() < kRanks;
    const uint4 found = four_words_of(&own, knows ? lane_index() : 0);
    theirs = knows ? static_cast<int>(found.x) : 0;
    sum = knows ? sum_of(found.z, found.w) : Sum(0);
    up_to = theirs;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
      const int left = __shfl_up_sync(kAllLanes, up_to, offset);
      if (lane_index() >= offset) up_to += left;
    }
    all = __shfl_sync(kAllLanes, up_to, 31);
  }
};

// Copies the blocks' candidates one after the other, two warps those of a block. All threads of the block
// call it.
__device__ __forceinline__ void gather_candidates(
    const Sum* candidates, const RanksSums& known, Sum* gathered) {
  static_assert(kGroups == 2 * kRanks, "two warps for each block");
  const int rank = warp_index() / 2;
  const int count = __shfl_sync(kAllLanes, known.theirs, rank);
  Sum* to = gathered + __shfl_sync(kAllLanes, known.up_to - known.theirs, rank);
#pragma unroll 1
  for (int i = warp_index() % 2 * 32 + lane_index(); i < count; i += 64) {
    to[i] = sum_of_rank(&candidates[i], rank);
  }
}
