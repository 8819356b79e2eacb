// 9 to 64 rows of x times a weight on sm_90a, each weight read once by the copy engine: what linear and
// the kernels around it share.
//
// A block makes kColumns results of every row at a time, over one part of in_features; an item. In a
// stage of its ring lie 64 elements of each row of x and of the weight, 128 bytes. Two warps copy, by
// tensor maps, one weights and one x, so that neither waits for the other's turn, and four multiply: x is
// [64, 16] of wgmma, and the sums are 64 x kColumns in their registers. A stage has room for kRows rows
// of x, those after the last zeros; what wgmma reads after these is the weight, for results that nobody
// wants. A block fills a multiprocessor's shared memory, so that the next launch's block begins there when
// this one ends. It fills its ring with weights at once, tens of MB on a whole card, and waits only then
// for the launch before, which made x: so what lies between two launches, waiting for x included, is time
// in which weights come.
//
// Parts of in_features are cut at multiples of 64, and the order of a result's sum depends on
// in_features and the number of parts alone. in_features is a multiple of 8.
#pragma once
#include "common.cuh"
#include "ptx_sm90.cuh"
#include "tile_ring.cuh"

constexpr int kWgmmaThreads = 192;  // of a block: four warps that multiply, two that copy

template <typename T, int kColumns, int kBoxes, int kStages, int kRows>
struct WgmmaLinear {
  static constexpr int kTileRows = 64;                   // of x, that wgmma multiplies
  static constexpr int kDepth = 64;                      // elements of a row in a stage
  static constexpr int kWarps = kWgmmaThreads / 32 - 2;  // that multiply
  static constexpr int kBoxRows = kColumns / kBoxes;     // of the weight, that are copied together
  static constexpr int kRowBytes = kDepth * sizeof(T);
  static constexpr int kXBytes = kRows * kRowBytes, kBoxBytes = kBoxRows * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kBoxes * kBoxBytes;
  static_assert(kBoxRows % 8 == 0 && kRows % 8 == 0, "8 rows lie together");
  static_assert(kRows + kColumns >= kTileRows, "what wgmma reads for x ends within the stage");

  // The steps of a block, one a stage of the ring: through its items, and through the part of each.
  struct Steps {
    int tiles, parts, depths;  // depths: of in_features
    int item, tile, part, depth, end;
    int stage = 0, parity = 0;
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
      if (++stage == kStages) stage = 0, parity ^= 1;
      if (++depth < end) return;
      item += gridDim.x;
      begin_item();
    }
  };

  // Calls finish(tile, part, sums) with the sums of an item, in the threads that have them:
  // sums[4 * n + 2 * half + i] is that of row row_of(half) and column 8 * n + column_of(i) of the tile.
  // box_row(tile, box) is the first row of the weight that a tile has in a box.
  template <typename BoxRow, typename Finish>
  static __device__ __forceinline__ void run(
      const BoxRow& box_row,
      const Finish& finish,
      const TensorMap& x_map,       // of [tokens, in_features], boxes of all rows
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
        mbarrier_init(ring.full(stage), 2);  // weights and x
        mbarrier_init(ring.empty(stage), kWarps);
      }
      mbarrier_init_done();
    }
    __syncthreads();

    const int copied_rows = (tokens + 7) / 8 * 8;  // of x, as the map's boxes are
    if (warp >= kWarps) {
      const Steps first(tiles, parts, in_features);
      if (warp == kWarps && lane == 0) copy_weight(box_row, ring, weight_map, first);
      wait_for_previous_kernel();
      if (warp > kWarps && lane == 0) {
        start_next_kernel();  // its blocks find room where this one's end
        copy_x(ring, copied_rows * kRowBytes, x_map, first);
      }
      return;
    }
    // Rows after the last that there is room for stay zero.
    const int zero_bytes = (kRows - copied_rows) * kRowBytes;
    for (int at = threadIdx.x * 16; at < kStages * zero_bytes; at += 32 * kWarps * 16) {
      const int byte = at / zero_bytes * kStageBytes + copied_rows * kRowBytes + at % zero_bytes;
      *reinterpret_cast<Pack<unsigned, 4>*>(smem + (tiles_at - shared_address(smem)) + byte) = {};
    }
    fence_shared_memory();
    named_barrier_wait(1, 32 * kWarps);
    wait_for_previous_kernel();
    float sums[kColumns / 2];
    const auto release = [&](int stage) {
      if (lane == 0) mbarrier_arrive(ring.empty(stage));
    };
    for (Steps at(tiles, parts, in_features); at.exists();) {
      const int item = at.item, tile = at.tile, part = at.part;
      int last = -1;  // stage that is multiplied
      while (at.item == item) {
        mbarrier_wait(ring.full(at.stage), at.parity);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < kDepth / 16; ++k) {
          const unsigned from = ring.tile(at.stage) + k * 32;
          wgmma_scores(
              T(), sums, wgmma_matrix(from, 8 * kRowBytes, 0),
              wgmma_matrix(from + kXBytes, 8 * kRowBytes, 0), last >= 0 || k > 0);
        }
        wgmma_commit();
        wgmma_wait_for_earlier<1>();
        if (last >= 0) release(last);
        last = at.stage;
        at.advance();
      }
      wgmma_wait<0>(sums);
      release(last);
      finish(tile, part, sums);
    }
  }

  static __device__ __forceinline__ int row_of(int half) {
    return threadIdx.x / 32 * 16 + half * 8 + threadIdx.x % 32 / 4;
  }
  static __device__ __forceinline__ int column_of(int i) { return threadIdx.x % 4 * 2 + i; }

 private:
  // What the threads that copy do, from the first step on: each as soon as its stage is free.
  template <typename BoxRow>
  static __device__ __forceinline__ void copy_weight(
      const BoxRow& box_row,
      const Ring<kStages, kStageBytes>& ring,
      const TensorMap& weight_map,
      Steps at) {
    for (; at.exists(); at.advance()) {
      const unsigned to = ring.tile(at.stage) + kXBytes, full = ring.full(at.stage);
      mbarrier_wait(ring.empty(at.stage), at.parity ^ 1);
      mbarrier_arrive_expecting(full, kBoxes * kBoxBytes);
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        const BoxStart start = {{at.depth * kDepth, box_row(at.tile, box), 0, 0}};
        copy_box_once(to + box * kBoxBytes, &weight_map, start, full);
      }
    }
  }

  static __device__ __forceinline__ void copy_x(
      const Ring<kStages, kStageBytes>& ring,
      int bytes,  // of a stage
      const TensorMap& x_map,
      Steps at) {
    for (; at.exists(); at.advance()) {
      mbarrier_wait(ring.empty(at.stage), at.parity ^ 1);
      mbarrier_arrive_expecting(ring.full(at.stage), bytes);
      const BoxStart start = {{at.depth * kDepth, 0, 0, 0}};
      copy_box(ring.tile(at.stage), &x_map, start, ring.full(at.stage));
    }
  }
};

// The sums of each part, for a launch that adds them up.
template <typename T, int kColumns, int kStages, int kRows>
__global__ void __launch_bounds__(kWgmmaThreads, 1) linear_parts_wgmma(
    float* workspace,  // [parts, tokens, out_features]
    const T*,          // x [tokens, in_features]
    const T*,          // weight [out_features, in_features]
    int tokens,
    int in_features,
    int out_features,
    int parts,
    const __grid_constant__ TensorMap x_map,
    const __grid_constant__ TensorMap weight_map) {
  using Linear = WgmmaLinear<T, kColumns, 1, kStages, kRows>;
  const auto box_row = [](int tile, int) { return tile * kColumns; };
  const auto finish = [&](int tile, int part, const float (&sums)[kColumns / 2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long row = Linear::row_of(half);
      if (row >= tokens) continue;
      float* const to = workspace + (part * static_cast<long long>(tokens) + row) * out_features;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const int column = tile * kColumns + 8 * n + Linear::column_of(0);
        const Pack<float, 2> pair = {{sums[4 * n + 2 * half], sums[4 * n + 2 * half + 1]}};
        if (column < out_features) *reinterpret_cast<Pack<float, 2>*>(to + column) = pair;
      }
    }
  };
  const int tiles = (out_features + kColumns - 1) / kColumns;
  Linear::run(box_row, finish, x_map, weight_map, tokens, tiles, parts, in_features);
}
