// 65 to 256 rows of x times a weight on sm_90a: what linear and the kernels around it share.
#pragma once
#include "common.cuh"
#include "ptx_sm90.cuh"
#include "tile_ring.cuh"

template <typename T, int kColumns, int kBoxes, int kStages, int kWarpgroups, int kGroups, int kCluster>
struct WgmmaRows {
  static constexpr int kThreads = 128 * kWarpgroups;
  static constexpr int kRows = 64 * kWarpgroups * kGroups;  // of x, at most
  static constexpr int kDepth = 64;                         // elements of a row in a stage
  static constexpr int kBoxRows = kColumns / kBoxes;        // of the weight, that are copied together
  static constexpr int kRowBytes = kDepth * sizeof(T);
  static constexpr int kGroupBytes = 64 * kRowBytes;
  static constexpr int kXBytes = kRows * kRowBytes, kBoxBytes = kBoxRows * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kBoxes * kBoxBytes;
  static_assert(kBoxRows % 8 == 0, "8 rows lie together");

  template <typename BoxRow, typename Finish>
  static __device__ __forceinline__ void run(
      const BoxRow& box_row,
      const Finish& finish,
      const TensorMap& x_map,       // of [tokens, in_features], boxes of a block's share of the rows
      const TensorMap& weight_map,  // of [.., in_features], boxes of kBoxRows rows
      int tokens,
      int tiles,
      int parts,
      int in_features) {
    extern __shared__ __align__(16) unsigned char smem[];
    const unsigned tiles_at = (shared_address(smem) + 1023) / 1024 * 1024;
    const Ring<kStages, kStageBytes> ring{tiles_at, tiles_at + kStages * kStageBytes};
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        mbarrier_init(ring.full(stage), 1);
        mbarrier_init(ring.empty(stage), kThreads / 32 * kCluster);
      }
      mbarrier_init_done();
    }
    meet();
    const int box_rows = (tokens + 8 * kCluster - 1) / (8 * kCluster) * 8;
    const int copied_rows = box_rows * kCluster;
    const int stage_bytes = copied_rows * kRowBytes + kBoxes * kBoxBytes;
    const int rank = kCluster > 1 ? static_cast<int>(blockIdx.x) % kCluster : 0;
    const int depths = (in_features + kDepth - 1) / kDepth;
    const int items = tiles * parts;
    const auto copy_weight = [&](int tile, int depth, int stage) {
      mbarrier_arrive_expecting(ring.full(stage), stage_bytes);
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        const BoxStart start = {{depth * kDepth, box_row(tile, box), 0, 0}};
        copy_box_once(
            ring.tile(stage) + kXBytes + box * kBoxBytes, &weight_map, start, ring.full(stage));
      }
    };
    const auto copy_x = [&](int depth, int stage) {
      const BoxStart start = {{depth * kDepth, rank * box_rows, 0, 0}};
      const unsigned to = ring.tile(stage) + rank * box_rows * kRowBytes;
      if (kCluster > 1) {
        copy_box_to_cluster(to, &x_map, start, ring.full(stage), kCluster);
      } else {
        copy_box(to, &x_map, start, ring.full(stage));
      }
    };
    // The step that is copied next.
    int ahead_item = blockIdx.x, ahead_part = ahead_item / tiles, ahead_tile = ahead_item % tiles;
    int ahead_depth = depths * ahead_part / parts, ahead_end = depths * (ahead_part + 1) / parts;
    const auto advance = [&] {
      if (++ahead_depth < ahead_end) return;
      ahead_item += gridDim.x;
      ahead_part = ahead_item / tiles, ahead_tile = ahead_item % tiles;
      ahead_depth = depths * ahead_part / parts, ahead_end = depths * (ahead_part + 1) / parts;
    };
    const int first_depth = ahead_depth;
    if (warp == 0) {
#pragma unroll 1
      for (int stage = 0; stage < kStages; ++stage) {  // an item has as many steps
        if (lane == 0) copy_weight(ahead_tile, ahead_depth, stage);
        advance();
      }
    }
    // Rows after the last are multiplied too. They stay zero.
    const int zero_bytes = (kRows - copied_rows) * kRowBytes;
    for (int at = threadIdx.x * 16; at < kStages * zero_bytes; at += kThreads * 16) {
      const int byte = at / zero_bytes * kStageBytes + copied_rows * kRowBytes + at % zero_bytes;
      *reinterpret_cast<Pack<unsigned, 4>*>(smem + (tiles_at - shared_address(smem)) + byte) = {};
    }
    fence_shared_writes();
    __syncthreads();
    wait_for_previous_kernel();
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (int stage = 0; stage < kStages; ++stage) copy_x(first_depth + stage, stage);
    }
    float sums[kGroups][kColumns / 2];
    const unsigned own = warp / 4 * kGroups * kGroupBytes;
    int stage = 0, parity = 0;
    const auto give_back = [&](int stage, int parity) {
      if (kCluster > 1) {
        if (lane < kCluster) mbarrier_arrive_in_cluster(cluster_address(ring.empty(stage), lane));
      } else if (lane == 0) {
        mbarrier_arrive(ring.empty(stage));
      }
      if (warp == 0) {
        if (ahead_item < items) {
          if (lane == 0) {
            mbarrier_wait(ring.empty(stage), parity);
            copy_weight(ahead_tile, ahead_depth, stage);
            copy_x(ahead_depth, stage);
          }
          advance();
          __syncwarp();
        }
      }
    };
#pragma unroll 1
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
      const int part = item / tiles;
      const int steps = depths * (part + 1) / parts - depths * part / parts;
      int last = 0, last_parity = 0;
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        mbarrier_wait(ring.full(stage), parity);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < kDepth / 16; ++k) {
          const unsigned from = ring.tile(stage) + k * 32;
#pragma unroll
          for (int g = 0; g < kGroups; ++g) {
            wgmma_scores(
                T(), sums[g], wgmma_matrix(from + own + g * kGroupBytes, 8 * kRowBytes, 0),
                wgmma_matrix(from + kXBytes, 8 * kRowBytes, 0), step > 0 || k > 0);
          }
        }
        wgmma_commit();
        wgmma_wait_for_earlier<1>();
        if (step > 0) give_back(last, last_parity);
        last = stage, last_parity = parity;
        if (++stage == kStages) stage = 0, parity ^= 1;
      }
      wgmma_wait_for_earlier<0>();
#pragma unroll
      for (int g = 0; g < kGroups; ++g) keep_order(sums[g]);
      give_back(last, last_parity);
      if (item + gridDim.x >= items) start_next_kernel();
      finish(item - part * tiles, part, sums);
    }
    if (kCluster > 1) meet();  // what others copy here, and give back, has come
  }

  static __device__ __forceinline__ int row_of(int group, int half) {
    const int warp = threadIdx.x / 32;
    return (warp / 4 * kGroups + group) * 64 + warp % 4 * 16 + half * 8 + threadIdx.x % 32 / 4;
  }
  static __device__ __forceinline__ int column_of(int i) { return threadIdx.x % 4 * 2 + i; }
  // As many for each block of a cluster; the last ones may be of no column.
  static __device__ __forceinline__ int tiles_of(int columns, int of_tile) {
    return (columns + of_tile * kCluster - 1) / (of_tile * kCluster) * kCluster;
  }

 private:
  static __device__ __forceinline__ void meet() {
    if (kCluster > 1) {
      cluster_arrive();
      cluster_wait();
    } else {
      __syncthreads();
    }
  }
};
