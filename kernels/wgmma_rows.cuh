// 65 to 256 rows of x times a weight on sm_90a: what kernels around such a product share. There the tensor
// cores bound it, not the memory, and in the end the power that the card may draw.
//
// A block makes kColumns results of every row. All rows in one block, so that a weight is read once; and
// tiles as wide as registers hold, so that few bytes come through the L2 cache and shared memory for each
// product: kGroups times 64 x kColumns sums are most of a multiprocessor's registers. None are left for a
// warp that only copies: between two steps one of those that multiply begins the copies of the step that
// is a ring ahead.
//
// In a stage of the ring lie 64 elements of each row of x and of the weight, 128 bytes. Two blocks are a
// cluster: each copies half of the rows of x for both. A block fills its ring with weights, and waits only
// then for the launch before, which made x. in_features is a multiple of 8.
#pragma once
#include "common.cuh"
#include "ptx_sm90.cuh"
#include "tile_ring.cuh"

constexpr int kWgmmaCluster = 2;  // blocks that share the rows of x

// Of a block: of four groups of 64 rows a warpgroup has two, so that each thread has its share of the
// registers; of two or three, one.
__host__ __device__ constexpr int wgmma_rows_threads(int groups) {
  return 128 * (groups == 4 ? 2 : groups);
}

template <typename T, int kColumns, int kBoxes, int kStages, int kGroups>
struct WgmmaRows {
  static constexpr int kThreads = wgmma_rows_threads(kGroups);
  static constexpr int kOwnGroups = 128 * kGroups / kThreads;  // of a warpgroup
  static constexpr int kDepth = 64;                            // elements of a row in a stage
  static constexpr int kBoxRows = kColumns / kBoxes;  // of the weight, that are copied together
  static constexpr int kRowBytes = kDepth * sizeof(T), kGroupBytes = 64 * kRowBytes;
  static constexpr int kXBytes = kGroups * kGroupBytes, kBoxBytes = kBoxRows * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kBoxes * kBoxBytes;
  using Stages = Ring<kStages, kStageBytes>;
  static_assert(kBoxRows % 8 == 0, "8 rows lie together");

  // Calls finish(first_row, sums) with the sums of 64 rows from first_row on, in the warps that have them:
  // sums[4 * n + 2 * half + i] is that of row first_row + row_of(half) and column 8 * n + column_of(i) of
  // the block's tile. box_rows[box] is the first row of the weight that the tile has in a box.
  template <typename Finish>
  static __device__ __forceinline__ void run(
      const int (&box_rows)[kBoxes],
      const Finish& finish,
      const TensorMap& x_map,  // of [tokens, in_features], boxes of a block's share of all rows
      const TensorMap& weight_map,  // of [.., in_features], boxes of kBoxRows rows
      int tokens,
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

    const int share = (tokens + 8 * kWgmmaCluster - 1) / (8 * kWgmmaCluster) * 8;  // of a block
    const int first = static_cast<int>(blockIdx.x) % kWgmmaCluster * share;
    const int copied_bytes = share * kWgmmaCluster * kRowBytes;  // of x
    const int steps = (in_features + kDepth - 1) / kDepth;
    const auto copy_weight = [&](int step, int stage) {
      mbarrier_arrive_expecting(ring.full(stage), copied_bytes + kBoxes * kBoxBytes);
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        const BoxStart start = {{step * kDepth, box_rows[box], 0, 0}};
        const unsigned to = ring.tile(stage) + kXBytes + box * kBoxBytes;
        copy_box_once(to, &weight_map, start, ring.full(stage));
      }
    };
    const auto copy_x = [&](int step, int stage) {
      const BoxStart start = {{step * kDepth, first, 0, 0}};
      const unsigned to = ring.tile(stage) + first * kRowBytes;
      copy_box_to_cluster(to, &x_map, start, ring.full(stage), kWgmmaCluster);
    };
    const int filled = min(kStages, steps);
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (int stage = 0; stage < filled; ++stage) copy_weight(stage, stage);
    }
    // Rows after the last are multiplied too. They stay zero.
    const int zero_bytes = kXBytes - copied_bytes;
    for (int at = threadIdx.x * 16; at < kStages * zero_bytes; at += kThreads * 16) {
      const int byte = at / zero_bytes * kStageBytes + copied_bytes + at % zero_bytes;
      *reinterpret_cast<Pack<unsigned, 4>*>(smem + (tiles_at - shared_address(smem)) + byte) = {};
    }
    fence_shared_memory();
    __syncthreads();
    wait_for_previous_kernel();
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (int stage = 0; stage < filled; ++stage) copy_x(stage, stage);
    }

    // A step has been multiplied: once all warps of the cluster have said so, what comes into its stage a
    // ring later is copied. Where nothing comes they say nothing, for nobody would wait for it, and the
    // other block might have ended before it hears it.
    const auto give_back = [&](int step, int stage, int parity) {
      if (step + kStages >= steps) return;
      if (lane < kWgmmaCluster) {
        mbarrier_arrive_in_cluster(cluster_address(ring.empty(stage), lane));
      }
      if (threadIdx.x == 0) {
        mbarrier_wait(ring.empty(stage), parity);
        copy_weight(step + kStages, stage);
        copy_x(step + kStages, stage);
      }
      __syncwarp();
    };
    float sums[kOwnGroups][kColumns / 2];
    const int first_group = warp / 4 * kOwnGroups;
    int stage = 0, parity = 0;
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
              T(), sums[group], wgmma_matrix(x_from, 8 * kRowBytes, 0),
              wgmma_matrix(from + kXBytes, 8 * kRowBytes, 0), step > 0 || k > 0);
        }
      }
      wgmma_commit();
      wgmma_wait_for_earlier<1>();
      const bool turned = stage == 0;  // the step before is of the ring's last stage
      if (step > 0) {
        give_back(step - 1, turned ? kStages - 1 : stage - 1, turned ? parity ^ 1 : parity);
      }
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
    start_next_kernel();  // the memory is idle
#pragma unroll
    for (int group = 0; group < kOwnGroups; ++group) wgmma_wait<0>(sums[group]);
#pragma unroll
    for (int group = 0; group < kOwnGroups; ++group) {
      finish((first_group + group) * 64, sums[group]);
    }
    meet();  // what a block has copied is in both before it ends
  }

  static __device__ __forceinline__ int row_of(int half) {
    return threadIdx.x / 32 % 4 * 16 + half * 8 + threadIdx.x % 32 / 4;
  }
  static __device__ __forceinline__ int column_of(int i) { return threadIdx.x % 4 * 2 + i; }

 private:
  static __device__ __forceinline__ void meet() {  // of all threads of the cluster
    cluster_arrive_relaxed();
    cluster_wait();
  }
};
