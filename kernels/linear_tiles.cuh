// linear_tiles: out = x @ weight.T + bias whose every result is one fixed chain of operations,
// whatever tile of whatever size it lies in; linear_sum: the last link where parts ran apart.
//
// The chain: in_features is cut into `parts`, at multiples of 128 bytes. In a part, float32 sums go
// through k from its start: for float by fmaf, k by k; for 16-bit types by tensor cores, 16 k a step.
// Then the sums of the parts are added in order, then the bias, then the result is rounded to T.
// Elements after in_features are zeros.
// `parts` follows from the weight's shape, never from the number of rows. Other rows, and tiles of
// other sizes, share instructions with a result but not one of its operands.
//
// A block makes a tile of out; tiles of x and weight, kChunks chunks of 16 bytes deep, stream
// through shared memory in kStages stages. A warp makes kWarpRows x kWarpColumns of the tile.
#pragma once
#include "common.cuh"
#include "ptx.cuh"

constexpr int kChunkBytes = 16;
constexpr int kPartBytes =
    128;  // parts are multiples of it, so that each depth of tiles divides them
constexpr int kRowTilesTogether = 16;  // run at about the same time, and share weights in the cache

// Where in a tile chunk `chunk` of row `row` lies. Chunks of a row change places so that lanes that
// read one chunk of 8 adjacent rows, or of 4 rows two apart, use different banks.
template <int kChunks>
__device__ __forceinline__ int chunk_place(int row, int chunk) {
  static_assert(kChunks == 4 || kChunks == 8, "a tile is 64 or 128 bytes deep");
  const int turn = kChunks == 8 ? (row & 1) << 2 | (row >> 1 & 3) : row >> 1 & 3;
  return (row * kChunks + (chunk ^ turn)) * kChunkBytes;
}

// What a thread copies of each tile of kRows rows of a matrix: one chunk of every kStride-th row.
template <typename T, int kRows, int kChunks, int kThreads, bool kAligned>
class TileCopy {
 public:
  // The matrix is T [rows, columns]; the tile begins with row first_row, which may lie after the end.
  __device__ __forceinline__
  TileCopy(const T* __restrict__ matrix, int first_row, int rows, int columns)
      : matrix_(matrix), columns_(columns), row_(threadIdx.x / kChunks) {
    rows_ = min(rows - first_row, kRows);
    first_ = matrix + static_cast<long long>(first_row + row_) * columns;
  }

  // Begins to copy the part of the tile from column `column` on; zeros after the matrix's end.
  __device__ __forceinline__ void start(unsigned char* tile, int column) const {
    const int chunk = threadIdx.x % kChunks;
    column += chunk * kWidth;
#pragma unroll
    for (int i = 0; i < (kRows + kStride - 1) / kStride; ++i) {
      const int row = row_ + i * kStride;
      if (kRows % kStride && row >= kRows) break;
      unsigned char* to = tile + chunk_place<kChunks>(row, chunk);
      const T* from = first_ + static_cast<long long>(i * kStride) * columns_ + column;
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
  static_assert(kStride % 8 == 0, "a thread's chunk lies at the same place in all of its rows");

  const T* matrix_;
  const T* first_;  // of the thread's first row
  int columns_;
  int row_;
  int rows_;  // of the tile that the matrix has
};

template <typename V>
__device__ __forceinline__ V chunk_at(const unsigned char* tile, int place) {
  return *reinterpret_cast<const V*>(tile + place);
}

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

    template <int kChunks>
    __device__ __forceinline__ void load(
        const unsigned char* x_tile, const unsigned char* weight_tile, int chunk) {
      const int lane = threadIdx.x % 32;
      const int x_place = chunk_place<kChunks>(lane % 16, chunk + lane / 16);
      const int weight_place = chunk_place<kChunks>(lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2);
#pragma unroll
      for (int i = 0; i < kTilesDown; ++i) {
        ldmatrix_x4(x[i], x_tile + x_place + chunk_place<kChunks>(16 * i, 0));
      }
#pragma unroll
      for (int j = 0; j < kTilesAcross / 2; ++j) {
        ldmatrix_x4(weight[j], weight_tile + weight_place + chunk_place<kChunks>(16 * j, 0));
      }
    }
  };

  template <int kChunks, int kTilesDown, int kTilesAcross>
  static __device__ __forceinline__ void add(
      float (&sums)[kTilesDown][kTilesAcross][4],
      const unsigned char* x_tile,
      const unsigned char* weight_tile) {
    static_assert(kTilesAcross % 2 == 0, "ldmatrix_x4 loads two 8-column tiles");
    Fragments<kTilesDown, kTilesAcross> fragments[2];  // the next are loaded under the products
    fragments[0].template load<kChunks>(x_tile, weight_tile, 0);
#pragma unroll
    for (int step = 0; step < kChunks / 2; ++step) {
      if (step + 1 < kChunks / 2) {
        fragments[(step + 1) % 2].template load<kChunks>(x_tile, weight_tile, 2 * step + 2);
      }
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
  template <int kChunks, int kTilesDown, int kTilesAcross>
  static __device__ __forceinline__ void add(
      float (&sums)[kTilesDown][kTilesAcross][4],
      const unsigned char* x_tile,
      const unsigned char* weight_tile) {
    using Four = Pack<float, 4>;
    const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      Four values[kTilesDown][2];
#pragma unroll
      for (int i = 0; i < kTilesDown; ++i) {
#pragma unroll
        for (int down = 0; down < 2; ++down) {
          const int row = group + 16 * i + 8 * down;
          values[i][down] = chunk_at<Four>(x_tile, chunk_place<kChunks>(row, chunk));
        }
      }
#pragma unroll
      for (int j = 0; j < kTilesAcross; ++j) {
#pragma unroll
        for (int right = 0; right < 2; ++right) {
          const int row = pair + right + 8 * j;
          const Four weights = chunk_at<Four>(weight_tile, chunk_place<kChunks>(row, chunk));
#pragma unroll
          for (int i = 0; i < kTilesDown; ++i) {
#pragma unroll
            for (int down = 0; down < 2; ++down) {
#pragma unroll
              for (int k = 0; k < 4; ++k) {
                float& sum = sums[i][j][2 * down + right];
                sum = fmaf(values[i][down].v[k], weights.v[k], sum);
              }
            }
          }
        }
      }
    }
  }
};

// Stores a row's elements `column`, which is even, and the next one if the row has it.
template <typename T>
__device__ __forceinline__ void store_pair(
    T* __restrict__ row, int column, int columns, const Pack<float, 2>& pair) {
  const Pack<T, 2> rounded = {{from_float<T>(pair.v[0]), from_float<T>(pair.v[1])}};
  if (columns % 2 == 0) {
    *reinterpret_cast<Pack<T, 2>*>(row + column) = rounded;
  } else {
    row[column] = rounded.v[0];
    if (column + 1 < columns) row[column + 1] = rounded.v[1];
  }
}

// blockIdx.x is the tile; blockIdx.z is the part where parts run apart, which then stores its sums
// in the workspace. With kTotals the block goes through all parts, and has their total in registers.
template <
    typename T,
    int kTileRows,
    int kTileColumns,
    int kWarpRows,
    int kWarpColumns,
    int kChunks,
    int kStages,
    bool kAligned,
    bool kTotals>
__global__ void __launch_bounds__(kTileRows / kWarpRows * (kTileColumns / kWarpColumns) * 32, 1)
    linear_tiles(
        T* __restrict__ out,            // [tokens, out_features]
        float* __restrict__ workspace,  // [parts, tokens, out_features] where parts run apart
        const T* __restrict__ x,        // [tokens, in_features]
        const T* __restrict__ weight,   // [out_features, in_features]
        const T* __restrict__ bias,     // [out_features] or null
        int tokens,
        int in_features,
        int out_features,
        int parts) {
  constexpr int kWarpsAcross = kTileColumns / kWarpColumns;
  constexpr int kThreads = kTileRows / kWarpRows * kWarpsAcross * 32;
  constexpr int kTilesDown = kWarpRows / 16, kTilesAcross = kWarpColumns / 8;
  constexpr int kDepth = kChunks * kChunkBytes / sizeof(T);  // k of a stage
  constexpr int kStageBytes = (kTileRows + kTileColumns) * kChunks * kChunkBytes;
  extern __shared__ __align__(16) unsigned char smem[];
  let_next_kernel_start();

  // Row tiles take turns within kRowTilesTogether of them, then columns follow.
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

  constexpr int kPartDepth = kPartBytes / sizeof(T);
  const int units = (in_features + kPartDepth - 1) / kPartDepth;
  const auto part_begin = [&](int part) {  // in stages
    return static_cast<int>(static_cast<long long>(units) * part / parts) * (kPartDepth / kDepth);
  };
  int part = blockIdx.z;
  const int begin = part_begin(part), end = kTotals ? part_begin(parts) : part_begin(part + 1);
  int part_end = part_begin(part + 1);

  const TileCopy<T, kTileRows, kChunks, kThreads, kAligned> x_copy(
      x, first_row, tokens, in_features);
  const TileCopy<T, kTileColumns, kChunks, kThreads, kAligned> weight_copy(
      weight, first_column, out_features, in_features);
  const auto start = [&](int stage) {
    if (stage < end) {
      unsigned char* tiles = smem + (stage - begin) % kStages * kStageBytes;
      x_copy.start(tiles, stage * kDepth);
      weight_copy.start(tiles + kTileRows * kChunks * kChunkBytes, stage * kDepth);
    }
    cp_async_commit();  // an empty group too, so that the count of groups is that of stages
  };
  for (int ahead = 0; ahead < kStages - 1; ++ahead) start(begin + ahead);

  float sums[kTilesDown][kTilesAcross][4] = {};
  float totals[kTotals ? kTilesDown : 1][kTotals ? kTilesAcross : 1][4];
  for (int stage = begin; stage < end; ++stage) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // the stage is there for all, and no warp reads the one before it any more
    start(stage + kStages - 1);
    const unsigned char* tiles = smem + (stage - begin) % kStages * kStageBytes;
    Products<T>::template add<kChunks, kTilesDown, kTilesAcross>(
        sums, tiles + warp_row * kChunks * kChunkBytes,
        tiles + (kTileRows + warp_column) * kChunks * kChunkBytes);
    if constexpr (kTotals) {
      if (stage + 1 == part_end) {
#pragma unroll
        for (int i = 0; i < kTilesDown; ++i) {
#pragma unroll
          for (int j = 0; j < kTilesAcross; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              totals[i][j][e] = part == 0 ? sums[i][j][e] : totals[i][j][e] + sums[i][j][e];
              sums[i][j][e] = 0.0f;
            }
          }
        }
        part_end = part_begin(++part + 1);
      }
    }
  }

  const long long columns = out_features;
  float* const part_sums = workspace + blockIdx.z * (tokens * columns);
#pragma unroll
  for (int i = 0; i < kTilesDown; ++i) {
#pragma unroll
    for (int j = 0; j < kTilesAcross; ++j) {
#pragma unroll
      for (int down = 0; down < 2; ++down) {
        const int row = first_row + warp_row + 16 * i + 8 * down + lane / 4;
        const int column = first_column + warp_column + 8 * j + lane % 4 * 2;
        Pack<float, 2> pair = {{sums[i][j][2 * down], sums[i][j][2 * down + 1]}};
        if constexpr (kTotals) pair = {{totals[i][j][2 * down], totals[i][j][2 * down + 1]}};
        if (row >= tokens || column >= out_features) continue;
        if (gridDim.z > 1) {
          store_pair(part_sums + row * columns, column, out_features, pair);
        } else {
          if (bias != nullptr) {
            pair.v[0] += to_float(bias[column]);
            if (column + 1 < out_features) pair.v[1] += to_float(bias[column + 1]);
          }
          store_pair(out + row * columns, column, out_features, pair);
        }
      }
    }
  }
}

// out = the sums of the parts, in order, + bias. A thread makes kWidth results of a row.
template <typename T, int kWidth, int kThreads>
__global__ void __launch_bounds__(kThreads, 1) linear_sum(
    T* __restrict__ out,                  // [tokens, out_features]
    const float* __restrict__ workspace,  // [parts, tokens, out_features]
    const T* __restrict__ bias,           // [out_features] or null
    int tokens,
    int out_features,
    int parts) {
  using Sums = Pack<float, kWidth>;
  const long long vectors = static_cast<long long>(tokens) * out_features / kWidth;
  const long long vector = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  wait_for_previous_kernel();
  if (vector >= vectors) return;
  const Sums* sums = reinterpret_cast<const Sums*>(workspace) + vector;
  Sums total = sums[0];
  for (int part = 1; part < parts; ++part) {
    const Sums next = sums[part * vectors];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) total.v[k] += next.v[k];
  }
  const int column = vector * kWidth % out_features;
  Pack<T, kWidth> result;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    if (bias != nullptr) total.v[k] += to_float(bias[column + k]);
    result.v[k] = from_float<T>(total.v[k]);
  }
  reinterpret_cast<Pack<T, kWidth>*>(out)[vector] = result;
}
