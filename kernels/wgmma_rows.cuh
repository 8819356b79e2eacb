// 65 to 256 rows of x times a weight on sm_90a: what linear and the kernels around it share. There the
// tensor cores bound a product, not the memory, and then the power that the card may draw.
//
// A block makes kColumns results of every row at a time, over one part of in_features; an item. All rows
// in one block, so that a weight is read once; and tiles as wide as registers hold, so that few bytes
// come through the L2 cache and shared memory for each product: kGroups times 64 x kColumns sums are most
// of a multiprocessor's registers. There is none left for a warp that only copies: between two steps one
// thread of those that multiply begins the copies of the step that is a ring ahead.
//
// In a stage of the ring lie 64 elements of each row of x and of the weight, 128 bytes. Two blocks are a
// cluster: each copies half of the rows of x for both. A block fills its ring with weights, and waits only
// then for the launch before, which made x.
//
// Parts of in_features are cut at multiples of 64, and the order of a result's sum depends on in_features
// and the number of parts alone. in_features is a multiple of 8; a part has at least kStages steps.
#pragma once
#include "common.cuh"
#include "ptx_sm90.cuh"
#include "tile_ring.cuh"

// Four groups of 64 rows are two for each warpgroup, so that each thread has its share of the registers;
// two or three are one.
__host__ __device__ constexpr int wgmma_rows_threads(int groups) {
  return 128 * (groups == 4 ? 2 : groups);
}

template <typename T, int kColumns, int kBoxes, int kStages, int kGroups, int kHow>
struct WgmmaRows {
  static constexpr int kRows = 64 * kGroups;  // of x, at most
  static constexpr int kThreads = wgmma_rows_threads(kGroups);
  static constexpr int kOwnGroups = 128 * kGroups / kThreads;  // of a warpgroup
  static constexpr int kDepth = kHow >= 100 ? 32 : 64;                            // elements of a row in a stage
  static constexpr int kBoxRows = kColumns / kBoxes;  // of the weight, that are copied together
  static constexpr int kRowBytes = kDepth * sizeof(T);
  static constexpr int kGroupBytes = 64 * kRowBytes;
  static constexpr int kXBytes = kGroups * kGroupBytes, kBoxBytes = kBoxRows * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kBoxes * kBoxBytes;
  static constexpr int kWgmmaCluster = kHow % 10;
  static constexpr int kCopier = kHow % 100 > 10 ? kThreads / 32 - 1 : 0;
  using Stages = Ring<kStages, kStageBytes>;
  static_assert(kBoxRows % 8 == 0, "8 rows lie together");

  // The steps of a block, one a stage of the ring: through its items, and through the part of each.
  struct Steps {
    int tiles, parts, depths;  // depths: of in_features
    int item, tile, part, depth, end;
    __device__ __forceinline__ Steps(int tiles, int parts, int in_features)
        : tiles(tiles),
          parts(parts),
          depths((in_features + kDepth - 1) / kDepth),
          item(blockIdx.x) {
      begin_item();
    }
    __device__ __forceinline__ bool exists() const { return item < tiles * parts; }
    __device__ __forceinline__ void begin_item() {
      part = item / tiles;
      tile = item - part * tiles;
      depth = depths * part / parts;
      end = depths * (part + 1) / parts;
    }
    __device__ __forceinline__ void advance() {
      if (++depth < end) return;
      item += gridDim.x;
      begin_item();
    }
  };

  // Calls finish(tile, part, first_row, sums) with the sums of an item's 64 rows from first_row on, in the
  // threads that have them: sums[4 * n + 2 * half + i] is that of row first_row + row_of(half) and column
  // 8 * n + column_of(i) of the tile. box_row(tile, box) is the first row of the weight that a tile has in
  // a box. There are as many tiles as tiles_of says.
  template <typename BoxRow, typename Finish>
  static __device__ __forceinline__ void run(
      const BoxRow& box_row,
      const Finish& finish,
      const TensorMap& x_map,       // of [tokens, in_features], boxes of a block's share of all rows
      const TensorMap& weight_map,  // of [.., in_features], boxes of kBoxRows rows
      int tokens,
      int tiles,
      int parts,
      int in_features) {
    extern __shared__ __align__(16) unsigned char smem[];
    const unsigned tiles_at = (shared_address(smem) + 1023) / 1024 * 1024;
    const Stages ring{tiles_at, tiles_at + kStages * kStageBytes};
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        mbarrier_init(ring.full(stage), 1);
        mbarrier_init(ring.empty(stage), kThreads / 32 * kWgmmaCluster);
      }
      mbarrier_init_done();
    }
    meet();

    const int box_rows = (tokens + 8 * kWgmmaCluster - 1) / (8 * kWgmmaCluster) * 8;
    const int rank = static_cast<int>(blockIdx.x) % kWgmmaCluster;
    const int copied_bytes = box_rows * kWgmmaCluster * kRowBytes;  // of x
    const auto copy_weight = [&](const Steps& at, int stage) {
      mbarrier_arrive_expecting(ring.full(stage), copied_bytes + kBoxes * kBoxBytes);
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        const BoxStart start = {{at.depth * kDepth, box_row(at.tile, box), 0, 0}};
        const unsigned to = ring.tile(stage) + kXBytes + box * kBoxBytes;
        copy_box_once(to, &weight_map, start, ring.full(stage));
      }
    };
    const auto copy_x = [&](int depth, int stage) {
      const BoxStart start = {{depth * kDepth, rank * box_rows, 0, 0}};
      const unsigned to = ring.tile(stage) + rank * box_rows * kRowBytes;
      if (kWgmmaCluster > 1) copy_box_to_cluster(to, &x_map, start, ring.full(stage), kWgmmaCluster);
      else copy_box(to, &x_map, start, ring.full(stage));
    };
    Steps ahead(tiles, parts, in_features);  // what is copied next
    const int first_depth = ahead.depth;
    if (warp == kCopier) {
#pragma unroll 1
      for (int stage = 0; stage < kStages; ++stage, ahead.advance()) {
        if (lane == 0) copy_weight(ahead, stage);
      }
    }
    // Rows after the last are multiplied too. They stay zero.
    const int zero_bytes = kXBytes - copied_bytes;
    for (int at = threadIdx.x * 16; at < kStages * zero_bytes; at += kThreads * 16) {
      const int byte = at / zero_bytes * kStageBytes + copied_bytes + at % zero_bytes;
      *reinterpret_cast<Pack<unsigned, 4>*>(smem + (tiles_at - shared_address(smem)) + byte) = {};
    }
    fence_shared_writes();
    __syncthreads();
    wait_for_previous_kernel();
    if (threadIdx.x == 32 * kCopier) {
#pragma unroll 1
      for (int stage = 0; stage < kStages; ++stage) copy_x(first_depth + stage, stage);
    }

    // The stage has been multiplied; the step that comes into it, a ring later, is copied once all warps of
    // the cluster have said so.
    const auto give_back = [&](int stage, int parity) {
      if (kWgmmaCluster == 1) {
        if (lane == 0) mbarrier_arrive(ring.empty(stage));
      } else if (lane < kWgmmaCluster) {
        mbarrier_arrive_in_cluster(cluster_address(ring.empty(stage), lane));
      }
      if (warp == kCopier && ahead.exists()) {
        if (lane == 0) {
          mbarrier_wait(ring.empty(stage), parity);
          copy_weight(ahead, stage);
          copy_x(ahead.depth, stage);
        }
        ahead.advance();
        __syncwarp();
      }
    };
    float sums[kOwnGroups][kColumns / 2];
    const int first_group = warp / 4 * kOwnGroups;
    int stage = 0, parity = 0;
#pragma unroll 1
    for (int item = blockIdx.x; item < tiles * parts; item += gridDim.x) {
      const int part = item / tiles;
      const int steps = ahead.depths * (part + 1) / parts - ahead.depths * part / parts;
      int last = 0, last_parity = 0;  // what is multiplied
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        mbarrier_wait(ring.full(stage), parity);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < kDepth / 16; ++k) {
          const unsigned from = ring.tile(stage) + k * 32;
#pragma unroll
          for (int group = 0; group < kOwnGroups; ++group) {
            const unsigned x_from = from + (first_group + group) * kGroupBytes;
            wgmma_scores(
                T(), sums[group], wgmma_matrix<kRowBytes>(x_from, 8 * kRowBytes, 0),
                wgmma_matrix<kRowBytes>(from + kXBytes, 8 * kRowBytes, 0), step > 0 || k > 0);
          }
        }
        wgmma_commit();
        wgmma_wait_for_earlier<1>();
        if (step > 0) give_back(last, last_parity);
        last = stage, last_parity = parity;
        if (++stage == kStages) stage = 0, parity ^= 1;
      }
#pragma unroll
      for (int group = 0; group < kOwnGroups; ++group) wgmma_wait<0>(sums[group]);
      give_back(last, last_parity);
      if (item + gridDim.x >= tiles * parts) start_next_kernel();  // the memory is about to be idle
#pragma unroll
      for (int group = 0; group < kOwnGroups; ++group) {
        finish(item - part * tiles, part, (first_group + group) * 64, sums[group]);
      }
    }
    meet();  // nobody copies to a block that has ended, nor gives a stage back to it
  }

  static __device__ __forceinline__ int row_of(int half) {
    return threadIdx.x / 32 % 4 * 16 + half * 8 + threadIdx.x % 32 / 4;
  }
  static __device__ __forceinline__ int column_of(int i) { return threadIdx.x % 4 * 2 + i; }

  // As many tiles for each block of a cluster: the last one may have no column.
  static __device__ __forceinline__ int tiles_of(int columns, int of_tile) {
    const int of_cluster = of_tile * kWgmmaCluster;
    return (columns + of_cluster - 1) / of_cluster * kWgmmaCluster;
  }

 private:
  static __device__ __forceinline__ void meet() {  // of all threads of the cluster
    cluster_arrive_relaxed();
    cluster_wait();
  }
};
