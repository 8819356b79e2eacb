// Attention in a decode step of one row whose layers are one launch, on sm_90a: of the query heads of one KV
// head, by the blocks that have made its q, k and v. fp16 and bf16, head_dim 64 or 128, cache blocks of 16
// tokens times a power of two.
//
// A warp has a piece of K and V, 16 tokens, in registers, and loads its first one before q is there. q, and the
// newest token's k, are in the layer's place as the product gave them, and are rotated by each warp. Who has the
// row's last piece puts the newest token into it, and into the cache.
//
// A block's first warps fold what all of them have found, a head each. If there are other blocks, the head's
// first one folds their parts, in order; so bits depend on the length alone.
#pragma once
#include "layer_place.cuh"
#include "piece_sums.cuh"
#include "rotated_halves.cuh"

// What a warp attends to: every so many pieces of 16 tokens of its KV head. Pieces of the row are dealt out to as
// many blocks as leave each of their warps one, or to all blocks of the head; to a block's warps in turn.
template <typename Sizes>
struct TokenPieces {
  static constexpr int kTokens = 16;
  const int* block_table;  // of the row's sequence
  int block_shift;         // a block of the cache is 2^block_shift pieces
  int length;              // of the sequence, in tokens
  int all, parts;          // pieces of the row; blocks that attend to it

  __device__ __forceinline__ TokenPieces(
      const int* block_tables,
      const int* row_ids,
      const int* seq_lens,
      int max_blocks,
      int block_shift)
      : block_shift(block_shift), length(load_early(seq_lens)) {
    block_table = block_tables + static_cast<long long>(load_early(row_ids)) * max_blocks;
    all = (length + kTokens - 1) / kTokens;
    parts = min(Sizes::kHeadBlocks, max(1, (all + Sizes::kWarps - 1) / Sizes::kWarps));
  }
  // Whether this block attends, maybe to nothing.
  __device__ __forceinline__ bool attends() const { return rank_in_head<Sizes>() < parts; }
  __device__ __forceinline__ int first(int warp) const {
    return warp * parts + rank_in_head<Sizes>();
  }
  // Below 0 if the warp has none.
  __device__ __forceinline__ int last(int warp) const {
    const int before_end = all - 1 - first(warp);
    return attends() && before_end >= 0 ? first(warp) + before_end / stride() * stride() : -1;
  }
  __device__ __forceinline__ int stride() const { return Sizes::kWarps * parts; }
  __device__ __forceinline__ int block_of(int piece) const {
    return piece >= 0 ? load_early(block_table + (piece >> block_shift)) : 0;
  }
  // Where a cache has a piece of this KV head, in elements.
  __device__ __forceinline__ long long in_cache(int block, int piece) const {
    const long long head =
        static_cast<long long>(block) * Sizes::kKvHeads + kv_head_of_block<Sizes>();
    const int place = piece & (1 << block_shift) - 1;
    return ((head << block_shift) + place) * (kTokens * Sizes::kHeadDim);
  }
};

template <typename T, typename Sizes>
struct LayerAttention {
  using Place = LayerPlace<T, Sizes>;
  using Sums = PieceSums<T, Sizes::kHeadDim>;
  using Piece = typename Sums::Piece;
  using Four = FourColumns<T>;
  static constexpr int kHeadDim = Sizes::kHeadDim, kGroup = Sizes::kGroup, kWarps = Sizes::kWarps;
  static constexpr int kTokens = Sums::kTokens;
  static constexpr int kVectors = Sums::kKeyLoads;  // of a head, of a lane: 8 columns each
  static constexpr int kHalf = kVectors / 2;
  static constexpr int kStride = Place::kStride;  // floats of a head's result
  static constexpr int kFoundOfWarp = kGroup * kStride;
  static constexpr int kFoundBytes = kWarps * kFoundOfWarp * 4;
  static constexpr int kBatch = 5;  // parts that are loaded before they are folded
  static_assert(kHeadDim == 64 || kHeadDim == 128, "whole vectors of both halves for each lane");
  static_assert(kGroup <= kWarps, "a warp for each head");

  using Vector = PlaceWords<4>;  // 8 columns
  using Head = Vector[kVectors];

  const TokenPieces<Sizes>& tokens;
  const float* angles;  // in shared memory: cosines, then sines, of the newest token's position
  int last, last_block;  // this warp's last piece, below 0 if it has none, and which block of the cache has it
  float scale_log2;     // scale * log2(e)

  template <typename Words>
  static __device__ __forceinline__ void load(Words& to, const T* from) {
    const float4 found = load_from_others(reinterpret_cast<const float4*>(from));
    static_assert(sizeof(to) == sizeof(found), "a vector");
    memcpy(&to, &found, sizeof(to));
  }
  static __device__ __forceinline__ void load_keys(Piece& piece, const T* keys) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        load(piece.keys[half][j], keys + Sums::key_token(half) * kHeadDim + Sums::key_column(j));
      }
    }
  }
  static __device__ __forceinline__ void load_values(Piece& piece, const T* values) {
#pragma unroll
    for (int j = 0; j < Sums::kValueLoads; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        load(
            piece.values[j][i], values + Sums::value_token(i) * kHeadDim + Sums::value_column(j));
      }
    }
  }

  __device__ __forceinline__ void rotate(Head& head) const {
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      Halves<T> halves;
      memcpy(&halves.first, &head[j], sizeof(Vector));
      memcpy(&halves.second, &head[j + kHalf], sizeof(Vector));
      const float* const cosines = angles + Sums::key_column(j);
      halves.rotate(cosines, cosines + kHeadDim / 2);
      memcpy(&head[j], &halves.first, sizeof(Vector));
      memcpy(&head[j + kHalf], &halves.second, sizeof(Vector));
    }
  }

  // The newest token: k as a lane has a token's, v likewise.
  struct Token {
    Head key;
    Vector value[Sums::kValueLoads];
  };

  // Takes the queries, rotated: the head lane / 4 of the group, zeros after the last. If the piece is the row's last
  // one, the newest token is put into it, its k rotated, and into the cache, which has the piece at `keys` and
  // `values`.
  __device__ __forceinline__ void take_row(
      Sums& sums, Piece& piece, T* keys, T* values, const Place& here) const {
    const int lane_row = threadIdx.x % 32 / 4, kv_head = kv_head_of_block<Sizes>();
    const T* const q = here.qkv() + (kv_head * kGroup + lane_row) * kHeadDim;
    const T* const k = here.qkv() + Sizes::kQ + kv_head * kHeadDim;
    const T* const v = k + Sizes::kKvHeads * kHeadDim;
    const bool is_query = lane_row < kGroup, has_newest = last == tokens.all - 1;
    Head queries = {};
    Token newest = {};
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (is_query) queries[j] = look<8>(q + Sums::key_column(j));
      if (has_newest) newest.key[j] = look<8>(k + Sums::key_column(j));
    }
#pragma unroll
    for (int j = 0; j < Sums::kValueLoads; ++j) {
      if (has_newest) newest.value[j] = look<8>(v + Sums::value_column(j));
    }
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      if (is_query) look_until_there(queries[j], q + Sums::key_column(j));
    }
    rotate(queries);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) memcpy(&sums.queries[j], &queries[j], sizeof(Vector));
    if (!has_newest) return;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      look_until_there(newest.key[j], k + Sums::key_column(j));
    }
    rotate(newest.key);
#pragma unroll
    for (int j = 0; j < Sums::kValueLoads; ++j) {
      look_until_there(newest.value[j], v + Sums::value_column(j));
    }
    append(piece, newest, keys, values);
  }

  // Puts the newest token into the row's last piece, and into the cache. What lies after it, maybe NaN, weighs
  // nothing; of V it is cleared.
  __device__ __forceinline__ void append(
      Piece& piece, const Token& newest, T* keys, T* values) const {
    const int place = (tokens.length - 1) % kTokens;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (Sums::key_token(half) != place) continue;
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        memcpy(&piece.keys[half][j], &newest.key[j], sizeof(Vector));
        *reinterpret_cast<Vector*>(keys + place * kHeadDim + Sums::key_column(j)) = newest.key[j];
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = Sums::value_token(i);
#pragma unroll
      for (int j = 0; j < Sums::kValueLoads; ++j) {
        if (token == place) {
          memcpy(&piece.values[j][i], &newest.value[j], sizeof(Vector));
          *reinterpret_cast<Vector*>(values + place * kHeadDim + Sums::value_column(j)) =
              newest.value[j];
        } else if (token > place) {
          piece.values[j][i] = {};
        }
      }
    }
  }

  // Attends to this warp's pieces, the last one first: it is in registers, `at` in the cache.
  __device__ __forceinline__ void attend(
      Piece& piece,
      long long at,
      const DecodeLayer<T>& layer,
      const Place& here,
      float* found) const {
    Sums sums;
    take_row(sums, piece, layer.k_cache + at, layer.v_cache + at, here);
    int own = last, next_block = tokens.block_of(own - tokens.stride());
#pragma unroll 1
    while (true) {
      sums.weigh(piece, tokens.length - own * kTokens, scale_log2);
      own -= tokens.stride();
      if (own >= 0) {
        at = tokens.in_cache(next_block, own);
        load_keys(piece, layer.k_cache + at);
      }
      sums.add(piece);
      if (own < 0) break;
      load_values(piece, layer.v_cache + at);
      next_block = tokens.block_of(own - tokens.stride());
    }
    sums.template store<kGroup>(found, kGroup, kStride);
  }

  // Attends, and puts the KV head's columns of the row if this is the head's first block. `found` is shared
  // memory of kFoundBytes. All threads that multiply call it; they have passed a barrier since qkv.
  __device__ __forceinline__ void run(
      const DecodeLayer<T>& layer,
      const Place& here,
      const Place& next,
      float* found,
      int warp) const {
    const long long at = tokens.in_cache(last_block, last);
    Piece piece = {};
    if (last >= 0) {
      load_keys(piece, layer.k_cache + at);
      load_values(piece, layer.v_cache + at);
    }
    wait_at<Sizes>(here.count(Place::kQkvCount + kv_head_of_block<Sizes>()), Sizes::kHeadBlocks);
    if (last >= 0) attend(piece, at, layer, here, found + warp * kFoundOfWarp);
    sync_block<Sizes>();
    fold(here, next, found, warp);
  }

  // Folds what the block's warps have found, and, in a head's first block, all parts.
  __device__ __forceinline__ void fold(
      const Place& here, const Place& next, const float* found, int warp) const {
    const int kv_head = kv_head_of_block<Sizes>(), rank = rank_in_head<Sizes>();
    const int head = kv_head * kGroup + warp, column = threadIdx.x % 32 * 4;
    const bool has_columns = warp < kGroup && column < kHeadDim;
    Four all;
    if (has_columns) {
      int warps = 0;  // that have found something
      Four each[kWarps];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (tokens.first(w) < tokens.all) {
          const float* const of_head = found + w * kFoundOfWarp + warp * kStride;
          each[w] = Four::of(
              *reinterpret_cast<const float4*>(of_head + column),
              *reinterpret_cast<const float2*>(of_head + kHeadDim));
          ++warps;
        }
      }
      all.add(each, warps);
    }
    if (tokens.parts > 1) {
      int* const count = here.count(Place::kFoldedCount + kv_head);
      if (has_columns) put_part(here.part(rank, head), column, all);
      arrive_at<Sizes>(count);
      if (rank == 0) {
        wait_at<Sizes>(count, tokens.parts);
        if (has_columns) all = folded_parts(here, head, column);
      }
    }
    if (rank != 0) return;
    if (has_columns) {
      const float inverse =
          tokens.all > 0 ? 1.0f / all.total : 0.0f;  // zeros where there is no token
      T rounded[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) rounded[i] = from_float<T>(all.sums[i] * inverse);
      put_four(here.attended() + head * kHeadDim + column, rounded);
      clear_four(next.attended() + head * kHeadDim + column);
    }
    arrive_at<Sizes>(here.count(Place::kAttendedCount));
  }

  static __device__ __forceinline__ void put_part(float* part, int column, const Four& found) {
    put_four(part + column, found.sums);
    if (column == 0) {
      put(part + kHeadDim, found.highest);
      put(part + kHeadDim + 1, found.total);
    }
  }
  // Clears this block's parts, whether it puts some or not: next time it may.
  static __device__ __forceinline__ void clear_parts(const Place& next, int warp) {
    if (warp >= kGroup) return;
    const int head = kv_head_of_block<Sizes>() * kGroup + warp;
    float* const part = next.part(rank_in_head<Sizes>(), head);
    const int column = threadIdx.x % 32 * 4;
    if (column < kHeadDim) clear_four(part + column);
    if (threadIdx.x % 32 < 2) clear(part + kHeadDim + threadIdx.x % 32);
  }
  __device__ __forceinline__ Four folded_parts(const Place& here, int head, int column) const {
    Four all;
#pragma unroll 1
    for (int begin = 0; begin < tokens.parts; begin += kBatch) {
      const auto part_of = [&](int k) { return here.part(min(begin + k, tokens.parts - 1), head); };
      PlaceWords<4> sums[kBatch];
      PlaceWords<2> rest[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        sums[k] = look<4>(part_of(k) + column);
        rest[k] = look<2>(part_of(k) + kHeadDim);
      }
      Four each[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        look_until_there(sums[k], part_of(k) + column);
        look_until_there(rest[k], part_of(k) + kHeadDim);
        memcpy(each[k].sums, sums[k].v, sizeof(sums[k]));
        memcpy(&each[k].highest, &rest[k].v[0], 4);
        memcpy(&each[k].total, &rest[k].v[1], 4);
      }
      all.add(each, tokens.parts - begin);
    }
    return all;
  }
};
