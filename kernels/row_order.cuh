// The order of a row of logits (logit descending, id ascending), for a block that owns the row:
// the place of a logit in it, a prefix of it, its first token, and sums in the order of the ids.
//
// Sums are of fixed-point numbers, so they are exact and the same in whatever order they are added.
// No kernel lives here.
#pragma once
#include "common.cuh"

typedef unsigned long long Sum;

constexpr int kRowThreads = 1024, kRowWarps = kRowThreads / 32;
constexpr int kTile = 512;      // tokens that a warp takes at a time
constexpr int kMaxTiles = 512;  // of a row: 16 for each lane of the warp that searches them
constexpr int kLowestInt = -2147483647 - 1, kHighestInt = 2147483647;
constexpr int kInfinityKey = 0x7f800000;

__device__ __forceinline__ int lane_index() { return threadIdx.x & 31; }
__device__ __forceinline__ int warp_index() { return threadIdx.x >> 5; }

// The place of a logit among all logits: a higher one has a higher key, 0 and -0 have the same.
// A NaN is beyond the key of its infinity.
__device__ __forceinline__ int order_key(float logit) {
  const int bits = __float_as_int(logit);
  return bits >= 0 ? bits : kLowestInt - bits;
}

__device__ __forceinline__ float key_logit(int key) {
  return __int_as_float(key >= 0 ? key : kLowestInt - key);
}

// The tokens with a key above `key`, and of those with that key the ids up to `last_id`.
struct Prefix {
  int key, last_id;

  __device__ __forceinline__ bool holds(int token_key, int id) const {
    return token_key > key || (token_key == key && id <= last_id);
  }
};

constexpr Prefix kWholeRow = {kLowestInt, kHighestInt};

// high * 2^19 + low. Both halves of a term are at most 2^19, so that 8,191 terms can be added in
// each half before the halves are joined.
constexpr int kHalfBits = 19;

struct Fixed {
  unsigned high, low;

  __device__ __forceinline__ Sum joined() const {
    return (static_cast<Sum>(high) << kHalfBits) + low;
  }
};

// What all threads of a block know of a row.
struct Extent {
  int top_key, top_id;  // of the first token in the order
  int bottom_key;       // of the lowest logit above -inf

  // Whether the row is no distribution: NaN or +inf in it, or nothing above -inf.
  __device__ __forceinline__ bool is_broken() const {
    return top_key >= kInfinityKey || top_key <= -kInfinityKey || bottom_key < -kInfinityKey;
  }
};

// Calls visit(logit, id) for the tokens of a tile that are this lane's, in ascending order of ids.
template <typename T, int kWidth, typename Visit>
__device__ __forceinline__ void visit_tile(const T* row, int vocab, int tile, Visit visit) {
  constexpr int kStride = 32 * kWidth, kTileLoads = kTile / kStride;
  constexpr int kLoads = kTileLoads < 4 ? kTileLoads : 4;  // in flight; more would spill
#pragma unroll 1
  for (int part = 0; part < kTile; part += kLoads * kStride) {
    const int first = tile * kTile + part + lane_index() * kWidth;
    Pack<T, kWidth> packs[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int id = first + j * kStride;
      if (id < vocab) packs[j] = *reinterpret_cast<const Pack<T, kWidth>*>(row + id);
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int id = first + j * kStride;
      if (id < vocab) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) visit(to_float(packs[j].v[k]), id + k);
      }
    }
  }
}

// Calls visit(logit, id) for every token of the row, in one thread each.
template <typename T, int kWidth, typename Visit>
__device__ __forceinline__ void visit_row(const T* row, int vocab, Visit visit) {
  for (int tile = warp_index(); tile * kTile < vocab; tile += kRowWarps) {
    visit_tile<T, kWidth>(row, vocab, tile, visit);
  }
}

// Reads the row once. All threads of the block call it.
template <typename T, int kWidth>
__device__ __forceinline__ Extent row_extent(const T* row, int vocab) {
  __shared__ Extent extent;
  if (threadIdx.x == 0) extent = {kLowestInt, kHighestInt, kHighestInt};
  __syncthreads();
  Extent own = {kLowestInt, kHighestInt, kHighestInt};
  visit_row<T, kWidth>(row, vocab, [&](float logit, int id) {
    const int key = order_key(logit);
    if (key > own.top_key) {
      own.top_key = key;
      own.top_id = id;
    }
    if (key != -kInfinityKey) own.bottom_key = min(own.bottom_key, key);
  });
  const int top = __reduce_max_sync(0xffffffffu, own.top_key);
  const int bottom = __reduce_min_sync(0xffffffffu, own.bottom_key);
  if (lane_index() == 0) {
    atomicMax(&extent.top_key, top);
    atomicMin(&extent.bottom_key, bottom);
  }
  __syncthreads();
  const int id = own.top_key == extent.top_key ? own.top_id : kHighestInt;
  const int lowest_id = __reduce_min_sync(0xffffffffu, id);
  if (lane_index() == 0) atomicMin(&extent.top_id, lowest_id);
  __syncthreads();
  return extent;
}

__device__ __forceinline__ Sum warp_sum(Sum v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

struct Found {
  int index;
  Sum before;  // the sum of all in front of it
};

// The first index at which before + value(first) + ... + value(index) exceeds `target`, which the
// sum of all 32 * kPerLane values does; in every lane. All lanes of the warp call it.
template <int kPerLane, typename Value>
__device__ __forceinline__ Found warp_search(int first, Sum before, Sum target, Value value) {
  first += lane_index() * kPerLane;
  Sum own = 0;
#pragma unroll 1  // to keep few registers
  for (int i = 0; i < kPerLane; ++i) own += value(first + i);
  Sum reached = own;
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const Sum left = __shfl_up_sync(0xffffffffu, reached, offset);
    if (lane_index() >= offset) reached += left;
  }
  const unsigned exceeding = __ballot_sync(0xffffffffu, before + reached > target);
  reached += before - own;
  int index = first;
#pragma unroll 1
  for (int i = 0; i < kPerLane - 1 && reached + value(index) <= target; ++i) {
    reached += value(index);
    ++index;
  }
  const int owner = max(__ffs(exceeding) - 1, 0);
  return {__shfl_sync(0xffffffffu, index, owner), __shfl_sync(0xffffffffu, reached, owner)};
}

// The lowest id at which the sum of measure(logit, id) over the ids up to it exceeds target(sum of
// all), which is below that sum. Reads the row once. All threads of the block call it.
template <typename T, int kWidth, typename Measure, typename Target>
__device__ __forceinline__ int lowest_id_above(
    const T* row, int vocab, Sum* tile_sums, Measure measure, Target target) {  // Sum [kMaxTiles]
  __shared__ int found_id;
  for (int tile = warp_index(); tile < kMaxTiles; tile += kRowWarps) {
    Fixed own = {0, 0};
    visit_tile<T, kWidth>(row, vocab, tile, [&](float logit, int id) {
      const Fixed term = measure(logit, id);
      own.high += term.high;
      own.low += term.low;
    });
    own.high = __reduce_add_sync(0xffffffffu, own.high);
    own.low = __reduce_add_sync(0xffffffffu, own.low);
    if (lane_index() == 0) tile_sums[tile] = own.joined();
  }
  __syncthreads();
  if (warp_index() == 0) {
    Sum total = 0;
#pragma unroll 1
    for (int tile = lane_index(); tile < kMaxTiles; tile += 32) total += tile_sums[tile];
    const Sum goal = target(warp_sum(total));
    const Found tile =
        warp_search<kMaxTiles / 32>(0, 0, goal, [&](int index) { return tile_sums[index]; });
    const Found token = warp_search<kTile / 32>(tile.index * kTile, tile.before, goal, [&](int id) {
      return id < vocab ? measure(to_float(row[id]), id).joined() : Sum(0);
    });
    if (lane_index() == 0) found_id = token.index;
  }
  __syncthreads();
  return found_id;
}
