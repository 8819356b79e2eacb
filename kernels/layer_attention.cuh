// Attention in a decode step of one row whose layers are one launch, on sm_90a: of the query heads of one KV
// head, by the blocks that have made its q, k and v. fp16 and bf16, head_dim 64 or 128, cache blocks of 16
// tokens times a power of two.
//
// K and V come through the rings as weights do (TokenPieces), and may be there before q is. q, and the newest
// token's k, are in the layer's place as the product gave them, and are rotated by each warp. Whoever has the
// row's last piece puts the newest token into its shared memory, and into the cache.
//
// A block's first warps fold what all of them have found, a head each. If there are other blocks, the head's
// first one folds their parts, in order; so bits depend on the length alone.
#pragma once
#include "layer_place.cuh"
#include "piece_sums.cuh"
#include "rotated_halves.cuh"

// In shared memory, what is known of the row's newest token.
template <typename T, typename Sizes>
struct NewestToken {
  T k_and_v[2 * Sizes::kHeadDim];  // where a warp has the row's last piece: its own, k rotated
  float angles[Sizes::kHeadDim];   // cosines, then sines, of its position
  long long in_cache;              // where a cache has it

  // By all threads that multiply; a barrier follows.
  __device__ __forceinline__ void fill(const TokenPieces<Sizes>& tokens, const float* cos_sin) {
    if (tokens.length <= 0) return;
    const long long position = tokens.length - 1;
    if (threadIdx.x < Sizes::kHeadDim) {
      angles[threadIdx.x] = cos_sin[position * Sizes::kHeadDim + threadIdx.x];
    }
    if (threadIdx.x == 0) {
      const int last = tokens.all - 1, token = tokens.length - 1 - last * Sizes::kTokens;
      in_cache = tokens.in_cache(tokens.block_of(last), last) + token * Sizes::kHeadDim;
    }
  }
};

template <typename T, typename Sizes>
struct LayerAttention {
  using Place = LayerPlace<T, Sizes>;
  using Ring = WarpRing<T, Sizes>;
  using Sums = PieceSums<T, Sizes::kHeadDim>;
  using Four = FourColumns<T>;
  static constexpr int kHeadDim = Sizes::kHeadDim, kGroup = Sizes::kGroup, kWarps = Sizes::kWarps;
  static constexpr int kTokens = Sizes::kTokens;
  static constexpr int kVectors = Sums::kKeyLoads;  // of a head, of a lane: 8 columns each
  static constexpr int kHalf = kVectors / 2;
  static constexpr int kStride = Place::kStride;  // floats of a head's result
  static constexpr int kFoundOfWarp = kGroup * kStride;
  static constexpr int kFoundBytes = kWarps * kFoundOfWarp * 4;
  static constexpr int kBatch = 5;  // parts that are loaded before they are folded
  static_assert(kHeadDim == 64 || kHeadDim == 128, "whole vectors of both halves for each lane");
  static_assert(kGroup <= kWarps, "a warp for each head");

  using Vector = PlaceWords<4>;  // 8 columns of a head: lane % 4, 4 + lane % 4 and so on
  using Head = Vector[kVectors];

  const TokenPieces<Sizes>& tokens;
  NewestToken<T, Sizes>& newest;
  float scale_log2;  // scale * log2(e)

  static __device__ __forceinline__ int column_of(int j) { return (j * 4 + threadIdx.x % 4) * 8; }

  static __device__ __forceinline__ void begin_to_look(Head& head, const T* from) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) head[j] = look<8>(from + column_of(j));
  }
  static __device__ __forceinline__ void look_for(Head& head, const T* from) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) look_until_there(head[j], from + column_of(j));
  }
  __device__ __forceinline__ void rotate(Head& head) const {
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      Halves<T> halves;
      memcpy(&halves.first, &head[j], sizeof(Vector));
      memcpy(&halves.second, &head[j + kHalf], sizeof(Vector));
      const float* const cosines = newest.angles + column_of(j);
      halves.rotate(cosines, cosines + kHeadDim / 2);
      memcpy(&head[j], &halves.first, sizeof(Vector));
      memcpy(&head[j + kHalf], &halves.second, sizeof(Vector));
    }
  }

  // The queries, rotated: the head lane / 4 of the group, zeros after the last. Where this warp has the row's
  // last piece, lanes 0 to 3 put the newest token's k, rotated, into `newest`, lanes 4 to 7 its v.
  __device__ __forceinline__ void load_row(Sums& sums, bool has_last, const Place& here) const {
    const int lane_row = threadIdx.x % 32 / 4, kv_head = kv_head_of_block<Sizes>();
    const T* const q = here.qkv() + (kv_head * kGroup + lane_row) * kHeadDim;
    const T* const k_or_v =
        here.qkv() + Sizes::kQ + (lane_row * Sizes::kKvHeads + kv_head) * kHeadDim;
    const bool is_query = lane_row < kGroup, is_newest = has_last && lane_row < 2;
    Head queries = {}, own;
    if (is_query) begin_to_look(queries, q);
    if (is_newest) {
      begin_to_look(own, k_or_v);
      look_for(own, k_or_v);
      if (lane_row == 0) rotate(own);
#pragma unroll
      for (int j = 0; j < kVectors; ++j) *newest_at(lane_row, j) = own[j];
    }
    if (is_query) look_for(queries, q);
    rotate(queries);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) memcpy(&sums.queries[j], &queries[j], sizeof(Vector));
  }
  __device__ __forceinline__ Vector* newest_at(int which, int j) const {
    return reinterpret_cast<Vector*>(newest.k_and_v + which * kHeadDim + column_of(j));
  }

  // Puts the newest token's k (0) or v (1) into its piece in shared memory and into the cache, by the lanes that
  // have put it into `newest`.
  __device__ __forceinline__ void append(int which, T* piece, T* cache, int last) const {
    const int token = tokens.length - 1 - last * kTokens;
    if (threadIdx.x % 32 / 4 == which) {
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        const Vector own = *newest_at(which, j);
        *reinterpret_cast<Vector*>(piece + token * kHeadDim + column_of(j)) = own;
        *reinterpret_cast<Vector*>(cache + newest.in_cache + column_of(j)) = own;
      }
    }
    __syncwarp();
  }

  // Attends, and puts the KV head's columns of the row if this is the head's first block. `found` is shared
  // memory of kFoundBytes. All threads that multiply call it; they have passed a barrier since qkv.
  __device__ __forceinline__ void run(
      Ring& ring,
      const DecodeLayer<T>& layer,
      const Place& here,
      const Place& next,
      float* found,
      int warp) const {
    const int last = tokens.all - 1;
    int piece = tokens.first(warp);
    wait_at<Sizes>(here.count(Place::kQkvCount + kv_head_of_block<Sizes>()), Sizes::kHeadBlocks);
    if (piece <= last) {
      Sums sums;
      load_row(sums, last % tokens.stride() == piece, here);
#pragma unroll 1
      for (; piece <= last; piece += tokens.stride()) {
        const int count = tokens.length - piece * kTokens;
        T* const keys = reinterpret_cast<T*>(ring.await_piece());
        if (piece == last) append(0, keys, layer.k_cache, last);
        sums.weigh(keys, count, scale_log2);
        ring.give_back();
        T* const values = reinterpret_cast<T*>(ring.await_piece());
        if (piece == last) append(1, values, layer.v_cache, last);
        sums.add(values, count);
        ring.give_back();
      }
      sums.template store<kGroup>(found + warp * kFoundOfWarp, kGroup, kStride);
    }
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
