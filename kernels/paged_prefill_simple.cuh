// The form of prefill attention for float32, and for what tensor cores do not take: head sizes that are
// no multiple of 16, block sizes that are no power of two. Part of paged_prefill_attention.cu.
//
// Does not load ahead of the arithmetic; a sequence is not split over blocks.
#pragma once
#include "attend_row.cuh"
#include "chunk_tile.cuh"
#include "ptx.cuh"

constexpr int kTileRows = 32;      // rows of a tile
constexpr int kTileKeys = 32;      // keys in shared memory at a time
constexpr int kTileThreads = 128;  // 16 groups of 8 lanes; a group has 2 rows
static_assert(kTileRows == kTileKeys, "one loop fills both tiles");
constexpr int kProbsStride = kTileKeys + 4;

using Four = Pack<float, 4>;
__device__ __forceinline__ Four four_at(const float* p) {
  return *reinterpret_cast<const Four*>(p);
}

// Columns of a tile's row: head_dim, zeros up to a multiple of 4, and 4 floats of padding.
__host__ __device__ constexpr int padded_columns(int head_dim) { return (head_dim + 3) / 4 * 4; }

// Fills a tile of 32 rows with those below count that load_row(r, vector) gives, times factor, and
// zeros after them. A function and not a lambda: NVRTC before 13.1 takes a generic lambda for host
// code.
template <typename T, int kWidth, int kVectors, typename LoadRow>
__device__ __forceinline__ void fill_tile(
    float* target, int count, float factor, LoadRow load_row) {
  constexpr int kPadded = padded_columns(kVectors * kWidth);
  constexpr int kPaddedVectors = kPadded / kWidth;
  for (int i = threadIdx.x; i < kTileRows * kPaddedVectors; i += kTileThreads) {
    const int r = i / kPaddedVectors, vector = i % kPaddedVectors;
    Pack<T, kWidth> loaded = zeros<T, kWidth>();
    if (r < count && vector < kVectors) loaded = load_row(r, vector);
    for (int k = 0; k < kWidth; ++k) {
      target[r * (kPadded + 4) + vector * kWidth + k] = to_float(loaded.v[k]) * factor;
    }
  }
}

// Tiles of 32 rows by 32 keys in shared memory, as float32. A group of 8 lanes makes 2 rows: lane c
// the scores of the keys c, c+8, c+16, c+24, and the output columns 4*c to 4*c+3 of every 32.
// Rows of the tiles are padded by 4 floats, so that the 8 lanes read from different banks.
// blockIdx.x is the tile, blockIdx.y the KV head.
template <typename T, int kHeadDim, int kWidth>
__global__ void __launch_bounds__(kTileThreads, 1) paged_prefill_attention_simple(
    T* __restrict__ out,         // [tokens, kv_heads*group*head_dim]
    const T* q,                  // [tokens, kv_heads*group*head_dim]
    const T* k_cache,            // [num_blocks, kv_heads, block_size, head_dim]
    const T* v_cache,            // [num_blocks, kv_heads, block_size, head_dim]
    const int* block_tables,     // [slots, max_blocks]
    const int* slot_ids,         // [seqs]: rows of block_tables
    const int* seq_lens,         // [seqs]
    const int* query_start_loc,  // [seqs+1]
    int tokens,
    int seqs,
    int kv_heads,
    int group,
    int block_size,
    int max_blocks,
    float scale_log2) {  // scale * log2(e)
  using Vector = Pack<T, kWidth>;
  constexpr int kVectors = kHeadDim / kWidth;
  constexpr int kPadded = padded_columns(kHeadDim);
  constexpr int kStride = kPadded + 4;
  constexpr int kParts = (kPadded + 31) / 32;  // of 32 output columns
  extern __shared__ __align__(16) unsigned char smem[];
  float* queries = reinterpret_cast<float*>(smem);  // [kTileRows][kStride]
  float* cached = queries + kTileRows * kStride;    // [kTileKeys][kStride]: K, then V
  float* probs = cached + kTileKeys * kStride;      // [kTileRows][kProbsStride]

  wait_for_previous_kernel();
  const Tile tile = find_tile(blockIdx.x, query_start_loc, seqs, tokens, group, kTileRows);
  const int kv_head = blockIdx.y;
  const int rows = min(kTileRows, tile.chunk * group - tile.first_row);
  if (rows <= 0) return;
  // Where row r of the tile lies in q and out.
  const auto row_at = [&](int r) {
    const int row = tile.first_row + r;
    const long long token = tile.chunk_start + row / group;
    return ((token * kv_heads + kv_head) * group + row % group) * kHeadDim;
  };
  const int length = tile.seq < 0 ? 0 : seq_lens[tile.seq];
  if (length <= 0) {
    for (int i = threadIdx.x; i < rows * kHeadDim; i += kTileThreads) {
      out[row_at(i / kHeadDim) + i % kHeadDim] = from_float<T>(0.0f);
    }
    return;
  }

  const int column = threadIdx.x % 8, row0 = threadIdx.x / 8 * 2;
  const int* table = block_tables + static_cast<long long>(slot_ids[tile.seq]) * max_blocks;
  // How many keys a row of the tile sees; keys, how many its last row sees.
  const auto visible = [&](int r) {
    return length - tile.chunk + (tile.first_row + r) / group + 1;
  };
  const int keys = visible(rows - 1);

  const auto fill_cached = [&](const T* cache, int first_key) {
    fill_tile<T, kWidth, kVectors>(cached, keys - first_key, 1.0f, [&](int r, int vector) {
      const int key = first_key + r;
      const long long block = table[key / block_size];
      const long long slot = (block * kv_heads + kv_head) * block_size + key % block_size;
      return reinterpret_cast<const Vector*>(cache)[slot * kVectors + vector];
    });
  };

  fill_tile<T, kWidth, kVectors>(queries, rows, scale_log2, [&](int r, int vector) {
    return reinterpret_cast<const Vector*>(q + row_at(r))[vector];
  });
  float sums[2][kParts][4] = {};
  float highest[2] = {kLowest, kLowest}, totals[2] = {};
  for (int first_key = 0; first_key < keys; first_key += kTileKeys) {
    fill_cached(k_cache, first_key);
    __syncthreads();
    float scores[2][4] = {};
    // Summed in parts of 32 columns: one long chain would lose bits at head_dim 256.
    for (int first = 0; first < kPadded; first += 32) {
      float part[2][4] = {};
#pragma unroll 4
      for (int d = first; d < min(first + 32, kPadded); d += 4) {
        const Four a0 = four_at(queries + row0 * kStride + d);
        const Four a1 = four_at(queries + (row0 + 1) * kStride + d);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const Four b = four_at(cached + (column + 8 * j) * kStride + d);
          for (int k = 0; k < 4; ++k) {
            part[0][j] = fmaf(a0.v[k], b.v[k], part[0][j]);
            part[1][j] = fmaf(a1.v[k], b.v[k], part[1][j]);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        scores[0][j] += part[0][j];
        scores[1][j] += part[1][j];
      }
    }
    __syncthreads();  // before V replaces K
    fill_cached(v_cache, first_key);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int limit = visible(row0 + i) - first_key;
      float best = highest[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (column + 8 * j < limit) best = fmaxf(best, scores[i][j]);
      }
      for (int offset = 1; offset < 8; offset *= 2) {
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
      }
      const float keep = exp2_for<T>(highest[i] - best);
      highest[i] = best;
      float added = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float prob = column + 8 * j < limit ? exp2_for<T>(scores[i][j] - best) : 0.0f;
        probs[(row0 + i) * kProbsStride + column + 8 * j] = prob;
        added += prob;
      }
      totals[i] = totals[i] * keep + lanes_sum<8>(added);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        for (int k = 0; k < 4; ++k) sums[i][part][k] *= keep;
      }
    }
    __syncthreads();
#pragma unroll 2
    for (int key = 0; key < kTileKeys; key += 4) {
      const Four p0 = four_at(probs + row0 * kProbsStride + key);
      const Four p1 = four_at(probs + (row0 + 1) * kProbsStride + key);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int at = part * 32 + column * 4;
        if (at < kPadded) {
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            const Four v = four_at(cached + (key + n) * kStride + at);
            for (int k = 0; k < 4; ++k) {
              sums[0][part][k] = fmaf(p0.v[n], v.v[k], sums[0][part][k]);
              sums[1][part][k] = fmaf(p1.v[n], v.v[k], sums[1][part][k]);
            }
          }
        }
      }
    }
    __syncthreads();  // before the next K replaces V
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (row0 + i < rows) {
      T* target = out + row_at(row0 + i);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        for (int k = 0; k < 4; ++k) {
          const int at = part * 32 + column * 4 + k;
          if (at < kHeadDim) target[at] = from_float<T>(sums[i][part][k] / totals[i]);
        }
      }
    }
  }
}
