// linear_tiles: out = x @ weight.T + bias where every result is one fixed chain of operations,
// whatever tile of whatever size it lies in; linear_sum: the end of the chain where it has parts.
//
// The chain: in_features is cut into `parts`, at multiples of 128 bytes. In a part a float32 sum goes
// through k from the part's start: for float by fmaf, k by k; for 16-bit types by tensor cores, 16 k a
// step. The sums of the parts are then added in order, then the bias, then it rounds to T, once.
// Elements after in_features are zeros. `parts` follows from the weight's shape, never from the
// number of rows. Other rows of a tile share instructions with a result, but none of its operands.
//
// blockIdx.x is a tile of out, blockIdx.y the part. Tiles of x and weight, 128 bytes of k deep, stream
// through shared memory in kStages stages; a warp makes kWarpRows x kWarpColumns of the block's tile.
// Does not use wgmma or TMA, so large products get half of what the card's matrix libraries get.
#pragma once
#include "common.cuh"
#include "ptx.cuh"

constexpr int kChunkBytes = 16;                     // what a thread copies at a time
constexpr int kChunks = 8;                          // in a row of a tile
constexpr int kDepthBytes = kChunks * kChunkBytes;  // of a row of a tile
constexpr int kRowTilesTogether = 16;  // run at about the same time, and share weights in the cache

// Where in a tile chunk `chunk` of row `row` lies. Chunks of a row change places so that lanes that
// read one chunk of 8 adjacent rows, or of 4 rows two apart, use different banks.
__device__ __forceinline__ int chunk_place(int row, int chunk) {
  const int turn = (row & 1) << 2 | (row >> 1 & 3);
  return (row * kChunks + (chunk ^ turn)) * kChunkBytes;
}

// What a thread copies of the tiles of one matrix: a chunk of every kStride-th of kRows rows. With
// kAligned every row of the matrix begins at a multiple of 16 bytes.
template <typename T, int kRows, int kThreads, bool kAligned>
class TileCopy {
 public:
  // The matrix is T [rows, columns]; the tiles begin with its row first_row.
  __device__ __forceinline__
  TileCopy(const T* __restrict__ matrix, int first_row, int rows, int columns)
      : matrix_(matrix),
        first_(matrix + static_cast<long long>(first_row + threadIdx.x / kChunks) * columns),
        rows_(rows - first_row),
        columns_(columns) {}

  // Begins to copy the tile that begins with column `column`; zeros after the matrix's end.
  __device__ __forceinline__ void start(unsigned char* tile, int column) const {
    const int chunk = threadIdx.x % kChunks;
    column += chunk * kWidth;
#pragma unroll
    for (int i = 0; i < kRows / kStride; ++i) {
      const int row = threadIdx.x / kChunks + i * kStride;
      const T* from = first_ + static_cast<long long>(i * kStride) * columns_ + column;
      unsigned char* to = tile + chunk_place(row, chunk);
      if constexpr (kAligned) {
        const bool inside = row < rows_ && column < columns_;
        cp_async16(to, inside ? from : matrix_, inside);
      } else {
        Pack<T, kWidth> values = zeros<T, kWidth>();
        for (int k = 0; k < kWidth; ++k) {
          if (row < rows_ && column + k < columns_) values.v[k] = from[k];
        }
        *reinterpret_cast<Pack<T, kWidth>*>(to) = values;
      }
    }
  }

 private:
  static constexpr int kWidth = kChunkBytes / sizeof(T);
  static constexpr int kStride = kThreads / kChunks;
  static_assert(kRows % kStride == 0, "all threads copy equally many chunks");
  static_assert(kStride % 8 == 0, "a thread's chunks all lie at the same place in their rows");

  const T* matrix_;
  const T* first_;  // of the thread's first row
  int rows_;        // of the matrix, from the tile's first on
  int columns_;
};

// sums += the products of a warp's rows of both tiles, through their whole depth. Lane l holds, of
// each 16 x 8 results, those that mma_m16n8k16 gives it: rows l/4 and l/4 + 8, columns 2*(l%4) and
// the next.
template <typename T>
struct Products {
  // What a warp multiplies at a time: 16 k of its rows.
  template <int kTilesDown, int kTilesAcross>
  struct Fragments {
    unsigned x[kTilesDown][4];
    unsigned weight[kTilesAcross / 2][4];  // of two 8-column tiles

    __device__ __forceinline__ void load(
        const unsigned char* x_tile, const unsigned char* weight_tile, int chunk) {
      const int lane = threadIdx.x % 32;
      const int x_place = chunk_place(lane % 16, chunk + lane / 16);
      const int weight_place = chunk_place(lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2);
#pragma unroll
      for (int i = 0; i < kTilesDown; ++i) {
        ldmatrix_x4(x[i], x_tile + x_place + chunk_place(16 * i, 0));
      }
#pragma unroll
      for (int j = 0; j < kTilesAcross / 2; ++j) {
        ldmatrix_x4(weight[j], weight_tile + weight_place + chunk_place(16 * j, 0));
      }
    }
  };

  template <int kTilesDown, int kTilesAcross>
  static __device__ __forceinline__ void add(
      float (&sums)[kTilesDown][kTilesAcross][4],
      const unsigned char* x_tile,
      const unsigned char* weight_tile) {
    static_assert(kTilesAcross % 2 == 0, "ldmatrix_x4 loads two 8-column tiles");
    constexpr int kSteps = kChunks / 2;
    Fragments<kTilesDown, kTilesAcross> fragments[2];  // the next are loaded under the products
    fragments[0].load(x_tile, weight_tile, 0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step + 1 < kSteps) fragments[(step + 1) % 2].load(x_tile, weight_tile, 2 * step + 2);
      const auto& now = fragments[step % 2];
#pragma unroll
      for (int j = 0; j < kTilesAcross; ++j) {
        const unsigned b[2] = {now.weight[j / 2][j % 2 * 2], now.weight[j / 2][j % 2 * 2 + 1]};
#pragma unroll
        for (int i = 0; i < kTilesDown; ++i) mma_m16n8k16<T>(sums[i][j], now.x[i], b);
      }
    }
  }
};

template <>
struct Products<float> {
  template <int kTilesDown, int kTilesAcross>
  static __device__ __forceinline__ void add(
      float (&sums)[kTilesDown][kTilesAcross][4],
      const unsigned char* x_tile,
      const unsigned char* weight_tile) {
    using Four = Pack<float, 4>;
    const int first_row = threadIdx.x % 32 / 4, first_column = threadIdx.x % 4 * 2;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      Four values[kTilesDown][2];
#pragma unroll
      for (int i = 0; i < kTilesDown; ++i) {
#pragma unroll
        for (int down = 0; down < 2; ++down) {
          const int place = chunk_place(first_row + 16 * i + 8 * down, chunk);
          values[i][down] = *reinterpret_cast<const Four*>(x_tile + place);
        }
      }
#pragma unroll
      for (int j = 0; j < kTilesAcross; ++j) {
#pragma unroll
        for (int right = 0; right < 2; ++right) {
          const int place = chunk_place(first_column + 8 * j + right, chunk);
          const Four weights = *reinterpret_cast<const Four*>(weight_tile + place);
#pragma unroll
          for (int i = 0; i < kTilesDown; ++i) {
#pragma unroll
            for (int down = 0; down < 2; ++down) {
              float& sum = sums[i][j][2 * down + right];
#pragma unroll
              for (int k = 0; k < 4; ++k) sum = fmaf(values[i][down].v[k], weights.v[k], sum);
            }
          }
        }
      }
    }
  }
};

// Stores elements `column`, which is even, and the next one of a row of so many columns.
template <typename T>
__device__ __forceinline__ void store_pair(T* row, int column, int columns, Pack<float, 2> pair) {
  const Pack<T, 2> rounded = {{from_float<T>(pair.v[0]), from_float<T>(pair.v[1])}};
  if (columns % 2 == 0) {
    *reinterpret_cast<Pack<T, 2>*>(row + column) = rounded;
  } else {
    row[column] = rounded.v[0];
    if (column + 1 < columns) row[column + 1] = rounded.v[1];
  }
}

// With one part it stores results; with more of them, sums of the parts in the workspace.
template <
    typename T,
    int kTileRows,
    int kTileColumns,
    int kWarpRows,
    int kWarpColumns,
    int kStages,
    bool kAligned>
__global__ void __launch_bounds__(kTileRows / kWarpRows * (kTileColumns / kWarpColumns) * 32, 1)
    linear_tiles(
        T* __restrict__ out,           // [all tokens, out_features]
        float* workspace,              // [parts, tokens, out_features] where there are parts
        const T* x,                    // [all tokens, in_features]
        const T* __restrict__ weight,  // [out_features, in_features]
        const T* __restrict__ bias,    // [out_features] or null
        int first_token,               // of those that this launch computes
        int tokens,                    // that this launch computes
        int in_features,
        int out_features) {
  constexpr int kWarpsAcross = kTileColumns / kWarpColumns;
  constexpr int kThreads = kTileRows / kWarpRows * kWarpsAcross * 32;
  constexpr int kTilesDown = kWarpRows / 16, kTilesAcross = kWarpColumns / 8;
  constexpr int kDepth = kDepthBytes / sizeof(T);
  constexpr int kStageBytes = (kTileRows + kTileColumns) * kDepthBytes;
  extern __shared__ __align__(16) unsigned char smem[];

  // kRowTilesTogether row tiles for one column tile, then for the next one.
  const int row_tiles = (tokens + kTileRows - 1) / kTileRows;
  const int column_tiles = (out_features + kTileColumns - 1) / kTileColumns;
  const int first_row_tile = blockIdx.x / (kRowTilesTogether * column_tiles) * kRowTilesTogether;
  const int together = min(row_tiles - first_row_tile, kRowTilesTogether);
  const int index = blockIdx.x - first_row_tile * column_tiles;
  const int first_row = (first_row_tile + index % together) * kTileRows;
  const int first_column = index / together * kTileColumns;

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / kWarpsAcross * kWarpRows;
  const int warp_column = warp % kWarpsAcross * kWarpColumns;

  const int part = blockIdx.y, parts = gridDim.y;
  const int depths = (in_features + kDepth - 1) / kDepth;  // what stages are filled with
  const int begin = depths * part / parts, end = depths * (part + 1) / parts;

  const T* const own_x = x + static_cast<long long>(first_token) * in_features;
  const TileCopy<T, kTileRows, kThreads, kAligned> x_copy(own_x, first_row, tokens, in_features);
  const TileCopy<T, kTileColumns, kThreads, kAligned> weight_copy(
      weight, first_column, out_features, in_features);
  const auto stage_of = [&](int depth) { return smem + (depth - begin) % kStages * kStageBytes; };
  const auto start_x = [&](int depth) {
    if (depth < end) x_copy.start(stage_of(depth), depth * kDepth);
  };
  const auto start_weight = [&](int depth) {
    if (depth < end) {
      weight_copy.start(stage_of(depth) + kTileRows * kDepthBytes, depth * kDepth);
    }
  };
  for (int ahead = 0; ahead < kStages - 1; ++ahead) start_weight(begin + ahead);
  wait_for_previous_kernel();  // only the weight may be read earlier
  let_next_kernel_start();
  for (int ahead = 0; ahead < kStages - 1; ++ahead) {
    start_x(begin + ahead);
    cp_async_commit();  // an empty group too, so that groups count depths
  }

  float sums[kTilesDown][kTilesAcross][4] = {};
  for (int depth = begin; depth < end; ++depth) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // the stage is there for all, and no warp reads the one before it any more
    start_x(depth + kStages - 1);
    start_weight(depth + kStages - 1);
    cp_async_commit();
    const unsigned char* stage = smem + (depth - begin) % kStages * kStageBytes;
    Products<T>::add(
        sums, stage + warp_row * kDepthBytes, stage + (kTileRows + warp_column) * kDepthBytes);
  }

  const long long columns = out_features;
#pragma unroll
  for (int i = 0; i < kTilesDown; ++i) {
#pragma unroll
    for (int j = 0; j < kTilesAcross; ++j) {
#pragma unroll
      for (int down = 0; down < 2; ++down) {
        const int row = first_row + warp_row + 16 * i + 8 * down + lane / 4;
        const int column = first_column + warp_column + 8 * j + lane % 4 * 2;
        if (row >= tokens || column >= out_features) continue;
        Pack<float, 2> pair = {{sums[i][j][2 * down], sums[i][j][2 * down + 1]}};
        if (parts > 1) {
          float* const part_sums = workspace + part * (tokens * columns);
          store_pair(part_sums + row * columns, column, out_features, pair);
        } else {
          if (bias != nullptr) {
            pair.v[0] += to_float(bias[column]);
            if (column + 1 < out_features) pair.v[1] += to_float(bias[column + 1]);
          }
          store_pair(out + (first_token + row) * columns, column, out_features, pair);
        }
      }
    }
  }
}

// out = the sums of the parts, in order, + bias. A thread makes kWidth results of a row.
template <typename T, int kWidth, int kThreads>
__global__ void __launch_bounds__(kThreads, 1) linear_sum(
    T* __restrict__ out,         // [all tokens, out_features]
    const float* workspace,      // [parts, tokens, out_features]
    const T* __restrict__ bias,  // [out_features] or null
    int first_token,             // of those that this launch computes
    int tokens,                  // that this launch computes
    int out_features,
    int parts) {
  using Sums = Pack<float, kWidth>;
  const int row_vectors = out_features / kWidth;
  const long long vectors = static_cast<long long>(tokens) * row_vectors;
  const long long vector = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  let_next_kernel_start();
  wait_for_previous_kernel();
  if (vector >= vectors) return;
  const Sums* sums = reinterpret_cast<const Sums*>(workspace) + vector;
  Sums total = sums[0];
  for (int part = 1; part < parts; ++part) {
    const Sums next = sums[part * vectors];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) total.v[k] += next.v[k];
  }
  const int column = static_cast<int>(vector % row_vectors) * kWidth;
  Pack<T, kWidth> result;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    if (bias != nullptr) total.v[k] += to_float(bias[column + k]);
    result.v[k] = from_float<T>(total.v[k]);
  }
  const long long first = static_cast<long long>(first_token) * row_vectors;
  reinterpret_cast<Pack<T, kWidth>*>(out)[first + vector] = result;
}
