// linear_tiles: out = x @ weight.T + bias whose every result is one fixed chain of operations,
// whatever tile of whatever size it lies in; linear_sum: the last link where parts ran apart.
//
// The chain: in_features is cut into `parts`, at multiples of 128 bytes. In a part, float32 sums go
// through k from its start: for float by fmaf, k by k; for 16-bit types by tensor cores, 32 k in two
// steps of 16, k taken as they lie in the lanes' vectors. Then the sums of the parts are added in
// order, then the bias, then the result is rounded to T. Elements after in_features are zeros.
// `parts` follows from the weight's shape, never from the number of rows. Other rows, and tiles of
// other sizes, share instructions with a result but not one of its operands.
//
// A block makes a tile of out; tiles of x and weight, kChunks chunks of 16 bytes deep, stream
// through shared memory in kStages stages. A warp makes kWarpRows x kWarpColumns of the tile.
#pragma once
#include "common.cuh"
#include "ptx.cuh"

constexpr int kChunkBytes = 16;
constexpr int kPartBytes = 128;  // parts are multiples of it, so that each depth of tiles divides them
constexpr int kRowTilesTogether = 16;  // run at about the same time, and share weights in the cache

// Where in a tile chunk `chunk` of row `row` lies. Chunks of a row change places so that lanes that
// read one chunk of rows two apart, or four chunks of adjacent rows, use different banks.
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
  __device__ __forceinline__ TileCopy(
      const T* __restrict__ matrix, int first_row, int rows, int columns)
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
  // A lane loads vectors of 8 k and gives their pairs to two mma as if they were the pairs that each
  // wants; x and weight agree on which k that is.
  template <int kChunks, int kTilesDown, int kTilesAcross>
  static __device__ __forceinline__ void add(
      float (&sums)[kTilesDown][kTilesAcross][4],
      const unsigned char* x_tile,
      const unsigned char* weight_tile) {
    using Pairs = Pack<unsigned, 4>;
    const int group = threadIdx.x % 32 / 4, quarter = threadIdx.x % 4;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk += 4) {
      const int place = chunk_place<kChunks>(group, chunk + quarter);
      Pairs upper[kTilesDown], lower[kTilesDown];
#pragma unroll
      for (int i = 0; i < kTilesDown; ++i) {
        upper[i] = chunk_at<Pairs>(x_tile, place + chunk_place<kChunks>(16 * i, 0));
        lower[i] = chunk_at<Pairs>(x_tile, place + chunk_place<kChunks>(16 * i + 8, 0));
      }
#pragma unroll
      for (int j = 0; j < kTilesAcross; ++j) {
        const Pairs weights = chunk_at<Pairs>(weight_tile, place + chunk_place<kChunks>(8 * j, 0));
#pragma unroll
        for (int step = 0; step < 4; step += 2) {
          const unsigned b[2] = {weights.v[step], weights.v[step + 1]};
#pragma unroll
          for (int i = 0; i < kTilesDown; ++i) {
            const unsigned a[4] = {
                upper[i].v[step], lower[i].v[step], upper[i].v[step + 1], lower[i].v[step + 1]};
            mma_m16n8k16<T>(sums[i][j], a, b);
          }
        }
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
__global__ void __launch_bounds__(
    kTileRows / kWarpRows * (kTileColumns / kWarpColumns) * 32, 1) linear_tiles(
    T* __restrict__ out,             // [tokens, out_features]
    float* __restrict__ workspace,   // [parts, tokens, out_features] where parts run apart
    const T* __restrict__ x,         // [tokens, in_features]
    const T* __restrict__ weight,    // [out_features, in_features]
    const T* __restrict__ bias,      // [out_features] or null
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
  const int first_row_tile =
      blockIdx.x / (kRowTilesTogether * column_tiles) * kRowTilesTogether;
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
        sums,
        tiles + warp_row * kChunks * kChunkBytes,
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

#pragma unroll
  for (int i = 0; i < kTilesDown; ++i) {
#pragma unroll
    for (int j = 0; j < kTilesAcross; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = first_row + warp_row + 16 * i + lane / 4 + e / 2 * 8;
        const int column = first_column + warp_column + 8 * j + lane % 4 * 2 + e % 2;
        if (row < tokens && column < out_features) {
          float sum = sums[i][j][e];
          if constexpr (kTotals) sum = totals[i][j][e];
          const long long place = static_cast<long long>(row) * out_features + column;
          if (gridDim.z > 1) {
            workspace[blockIdx.z * (static_cast<long long>(tokens) * out_features) + place] = sum;
          } else {
            if (bias != nullptr) sum += to_float(bias[column]);
            out[place] = from_float<T>(sum);
          }
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
