// Attention in a decode step of one row whose layers are one launch, on sm_90a: of the query heads of one KV
// head, by the blocks that have made its q, k and v. fp16 and bf16, head_dim 64 or 128, cache blocks of 16
// tokens times a power of two.
//
// Pieces of 16 tokens are dealt out to as many blocks as leave each warp one, and to all of them if there are
// more; a block has every so many pieces, its warps in turn. A warp loads its first piece of K and V into
// registers before q is there. q, and the newest token's k, come as the product is stored, and are rotated
// by each warp. Whoever has the last piece puts the newest token into its registers, and into the cache.
//
// A block's first warps fold what all of them have found, a head each. If there are other blocks, the head's
// first one folds their parts, in order; so bits depend on the length alone.
#pragma once
#include "layer_place.cuh"
#include "piece_sums.cuh"
#include "rotated_halves.cuh"

// Barriers of the warps that multiply, which the one that copies does not meet.
template <typename Sizes>
__device__ __forceinline__ void sync_block() {
  named_barrier_wait(1, Sizes::kThreads);
}
// The block has put what it had to put.
template <typename Sizes>
__device__ __forceinline__ void arrive_at(int* count) {
  sync_block<Sizes>();
  if (threadIdx.x == 0) arrive(count);
}
template <typename Sizes>
__device__ __forceinline__ void wait_at(const int* count, int arrivals) {
  if (threadIdx.x == 0) wait_for_arrivals(count, arrivals);
  sync_block<Sizes>();
}

template <typename T, typename Sizes>
struct LayerAttention {
  using Place = LayerPlace<T, Sizes>;
  using Sums = PieceSums<T, Sizes::kHeadDim>;
  using Vector = typename Sums::template Words<4>;
  using Four = FourColumns<T>;
  static constexpr int kHeadDim = Sizes::kHeadDim, kGroup = Sizes::kGroup, kWarps = Sizes::kWarps;
  static constexpr int kTokens = Sums::kTokens, kKeyLoads = Sums::kKeyLoads;
  static constexpr int kValueLoads = Sums::kValueLoads;
  static constexpr int kHalf = kKeyLoads / 2;       // vectors of half a head, of a lane
  static constexpr int kStride = Place::kStride;    // floats of a head's result
  static constexpr int kFoundOfWarp = kGroup * kStride;
  static constexpr int kFoundBytes = kWarps * kFoundOfWarp * 4;
  static constexpr int kBatch = 5;  // parts that are loaded before they are folded
  static_assert(kHeadDim == 64 || kHeadDim == 128, "whole vectors of both halves for each lane");
  static_assert(kGroup <= kWarps, "a warp for each head");

  const float* cos_sin;     // of the newest token's position: cosines, then sines
  const int* block_table;   // of the sequence
  int block_shift;          // a block of the cache is 2^block_shift pieces
  float scale_log2;         // scale * log2(e)
  int length, pieces, parts;
  int kv_head, rank;

  __device__ __forceinline__ bool attends() const { return rank < parts; }
  __device__ __forceinline__ int first_piece(int warp) const { return warp * parts + rank; }
  __device__ __forceinline__ int stride() const { return kWarps * parts; }
  __device__ __forceinline__ int block_of(int piece) const {
    return load_early(block_table + (piece >> block_shift));
  }

  // The newest token's k, rotated, and v, as lanes have them of a piece.
  struct Newest {
    Vector key[kKeyLoads], value[kValueLoads];
  };

  // A piece of K and V in a warp's registers. Of K a lane has vectors of the tokens lane / 4 and 8 later, of V
  // columns of the tokens 2 * (lane % 4), the next, and 8 later.
  struct Piece {
    Vector keys[2][kKeyLoads], values[4][kValueLoads];
    static __device__ __forceinline__ int key_token(int i) { return i * 8 + threadIdx.x % 32 / 4; }
    static __device__ __forceinline__ int value_token(int i) {
      return threadIdx.x % 4 * 2 + i / 2 * 8 + i % 2;
    }
    static __device__ __forceinline__ int key_at(int i, int j) {
      return key_token(i) * kHeadDim + (j * 4 + threadIdx.x % 4) * 8;
    }
    static __device__ __forceinline__ int value_at(int i, int j) {
      return value_token(i) * kHeadDim + threadIdx.x % 32 / 4 * Sums::kColumns + j * 8;
    }

    __device__ __forceinline__ void load(const T* k, const T* v) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < kKeyLoads; ++j) {
          keys[i][j] = *reinterpret_cast<const Vector*>(k + key_at(i, j));
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < kValueLoads; ++j) {
          values[i][j] = *reinterpret_cast<const Vector*>(v + value_at(i, j));
        }
      }
    }
    // Puts the newest token, the piece's `token`, here and into the cache. What lies after it, maybe NaN, is
    // cleared in V; in K it does not count.
    __device__ __forceinline__ void append(const Newest& newest, int token, T* k, T* v) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (key_token(i) != token) continue;
#pragma unroll
        for (int j = 0; j < kKeyLoads; ++j) {
          keys[i][j] = newest.key[j];
          *reinterpret_cast<Vector*>(k + key_at(i, j)) = newest.key[j];
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < kValueLoads; ++j) {
          if (value_token(i) == token) {
            values[i][j] = newest.value[j];
            *reinterpret_cast<Vector*>(v + value_at(i, j)) = newest.value[j];
          } else if (value_token(i) > token) {
            values[i][j] = Vector{};
          }
        }
      }
    }
    __device__ __forceinline__ void add_to(Sums& sums, int tokens, float scale_log2) const {
      float scores[2][4] = {};
#pragma unroll
      for (int j = 0; j < kKeyLoads; ++j) {
        const Vector& query = sums.queries[j];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int w = 0; w < 4; w += 2) {
            const unsigned a[4] = {query.words[w], 0u, query.words[w + 1], 0u};
            const unsigned b[2] = {keys[i][j].words[w], keys[i][j].words[w + 1]};
            mma_m16n8k16<T>(scores[i], a, b);
          }
        }
      }
      sums.weigh_scores(scores, tokens, scale_log2);
#pragma unroll
      for (int j = 0; j < kValueLoads; ++j) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const unsigned pairs[4] = {values[0][j].words[w], values[1][j].words[w],
                                     values[2][j].words[w], values[3][j].words[w]};
          sums.add_columns(j * 4 + w, pairs);
        }
      }
    }
  };
  static_assert(Sums::kValueWidth == 8, "V is loaded in vectors of 16 bytes");

  __device__ __forceinline__ long long in_cache(int block, int piece) const {
    const long long head = static_cast<long long>(block) * Sizes::kKvHeads + kv_head;
    const int place = piece & (1 << block_shift) - 1;
    return ((head << block_shift) + place) * (kTokens * kHeadDim);
  }

  // Begins to look for a head of qkv's row; then waits for it and rotates it, where it is rotated.
  static __device__ __forceinline__ const T* vector_of(const T* head, int j) {
    return head + (j * 4 + threadIdx.x % 4) * 8;
  }
  static __device__ __forceinline__ Vector looked_at(const T* from) {
    const auto found = look<8>(from);
    return {{found.v[0], found.v[1], found.v[2], found.v[3]}};
  }
  static __device__ __forceinline__ void await(Vector& vector, const T* from) {
    PlaceWords<4> found = {
        {vector.words[0], vector.words[1], vector.words[2], vector.words[3]}};
    look_until_there(found, from);
    vector = {{found.v[0], found.v[1], found.v[2], found.v[3]}};
  }
  static __device__ __forceinline__ void rotate(
      Vector (&head)[kKeyLoads],
      const Pack<float, 8> (&cosines)[kHalf],
      const Pack<float, 8> (&sines)[kHalf]) {
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      Halves<T> halves;
      memcpy(&halves.first, &head[j], sizeof(Vector));
      memcpy(&halves.second, &head[j + kHalf], sizeof(Vector));
      halves.rotate(cosines[j].v, sines[j].v);
      memcpy(&head[j], &halves.first, sizeof(Vector));
      memcpy(&head[j + kHalf], &halves.second, sizeof(Vector));
    }
  }

  // q of the heads, and of the newest token k and v where this warp has the last piece.
  __device__ __forceinline__ void load_row(
      Sums& sums, Newest& newest, bool has_last, const Place& here) const {
    const int lane_row = threadIdx.x % 32 / 4;
    const T* const q = here.qkv() + (kv_head * kGroup + lane_row) * kHeadDim;
    const T* const k = here.qkv() + Sizes::kQ + kv_head * kHeadDim;
    const T* const v = k + Sizes::kKvHeads * kHeadDim + lane_row * Sums::kColumns;
    const bool has_head = lane_row < kGroup;
    Pack<float, 8> cosines[kHalf], sines[kHalf];
    const auto* const angles = reinterpret_cast<const Pack<float, 4>*>(cos_sin);
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      const int at = (j * 4 + threadIdx.x % 4) * 2;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        cosines[j].v[k] = angles[at + k / 4].v[k % 4];
        sines[j].v[k] = angles[kHeadDim / 8 + at + k / 4].v[k % 4];
      }
    }
#pragma unroll
    for (int j = 0; j < kKeyLoads; ++j) {
      sums.queries[j] = newest.key[j] = Vector{};
      if (has_head) sums.queries[j] = looked_at(vector_of(q, j));
      if (has_last) newest.key[j] = looked_at(vector_of(k, j));
    }
#pragma unroll
    for (int j = 0; j < kValueLoads; ++j) {
      newest.value[j] = Vector{};
      if (has_last) newest.value[j] = looked_at(v + j * 8);
    }
    if (has_head) {
#pragma unroll
      for (int j = 0; j < kKeyLoads; ++j) await(sums.queries[j], vector_of(q, j));
    }
    rotate(sums.queries, cosines, sines);
    if (has_last) {
#pragma unroll
      for (int j = 0; j < kKeyLoads; ++j) await(newest.key[j], vector_of(k, j));
#pragma unroll
      for (int j = 0; j < kValueLoads; ++j) await(newest.value[j], v + j * 8);
      rotate(newest.key, cosines, sines);
    }
  }

  // Attends, and puts the KV head's columns of the row if this is the head's first block. `found` is shared
  // memory of kFoundBytes, free once qkv has been multiplied. All threads that multiply call it.
  __device__ __forceinline__ void run(
      const DecodeLayer<T>& layer,
      const Place& here,
      const Place& next,
      float* found,
      int warp) const {
    const int first = first_piece(warp), last = pieces - 1;
    Piece piece;
    if (first < pieces) {
      const long long at = in_cache(block_of(first), first);
      piece.load(layer.k_cache + at, layer.v_cache + at);
    }
    wait_at<Sizes>(here.count(Place::kQkvCount + kv_head), Sizes::kHeadBlocks);
    if (first < pieces) {
      Sums sums;
      Newest newest;
      load_row(sums, newest, last % stride() == first, here);
      for (int n = first;;) {
        if (n == last) {
          const long long at = in_cache(block_of(n), n);
          piece.append(newest, length - 1 - n * kTokens, layer.k_cache + at, layer.v_cache + at);
        }
        piece.add_to(sums, length - n * kTokens, scale_log2);
        n += stride();
        if (n >= pieces) break;
        const long long at = in_cache(block_of(n), n);
        piece.load(layer.k_cache + at, layer.v_cache + at);
      }
      sums.template store<kGroup>(found + warp * kFoundOfWarp, kGroup, kStride);
    }
    sync_block<Sizes>();
    fold(here, next, found, warp);
  }

  // Folds what the block's warps have found, and, in a head's first block, all parts.
  __device__ __forceinline__ void fold(
      const Place& here, const Place& next, const float* found, int warp) const {
    const int column = threadIdx.x % 32 * 4, head = kv_head * kGroup + warp;
    const bool has_columns = warp < kGroup && column < kHeadDim;
    Four all;
    if (has_columns) {
      int warps = 0;  // that have found something
#pragma unroll
      for (int w = 0; w < kWarps; ++w) warps += first_piece(w) < pieces;
      Four each[kWarps];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w < warps) {
          const float* of_head = found + w * kFoundOfWarp + warp * kStride;
          each[w] = Four::of(
              *reinterpret_cast<const float4*>(of_head + column),
              *reinterpret_cast<const float2*>(of_head + kHeadDim));
        }
      }
      all.add(each, warps);
    }
    if (parts > 1) {
      if (has_columns) put_part(here, rank, head, column, all);
      arrive_at<Sizes>(here.count(Place::kFoldedCount + kv_head));
      if (rank == 0) {
        wait_at<Sizes>(here.count(Place::kFoldedCount + kv_head), parts);
        if (has_columns) all = folded_parts(here, head, column);
      }
    }
    if (rank != 0) return;
    if (has_columns) {
      const float inverse = pieces > 0 ? 1.0f / all.total : 0.0f;  // a dead row's are zeros
      const int at = head * kHeadDim + column;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        put_and_clear(
            here.attended() + at + i, next.attended() + at + i, from_float<T>(all.sums[i] * inverse));
      }
    }
    arrive_at<Sizes>(here.count(Place::kAttendedCount));
  }

  static __device__ __forceinline__ void put_part(
      const Place& here, int rank, int head, int column, const Four& all) {
    float* const to = here.part(rank, head);
#pragma unroll
    for (int i = 0; i < 4; ++i) put(to + column + i, all.sums[i]);
    if (column == 0) {
      put(to + kHeadDim, all.highest);
      put(to + kHeadDim + 1, all.total);
    }
  }
  // How many parts the next step has is not known: so each block that may have one clears its own.
  __device__ __forceinline__ void clear_part(const Place& next, int warp) const {
    const int lane = threadIdx.x % 32;
    if (warp >= kGroup) return;
    float* const to = next.part(rank, kv_head * kGroup + warp);
    for (int i = lane; i < kHeadDim + 2; i += 32) clear(to + i);
  }

  __device__ __forceinline__ Four folded_parts(const Place& here, int head, int column) const {
    Four all;
#pragma unroll 1
    for (int begin = 0; begin < parts; begin += kBatch) {
      const auto part_at = [&](int k) { return here.part(min(begin + k, parts - 1), head); };
      PlaceWords<4> sums[kBatch];
      PlaceWords<2> rest[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        sums[k] = look<4>(part_at(k) + column);
        rest[k] = look<2>(part_at(k) + kHeadDim);
      }
      Four each[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        look_until_there(sums[k], part_at(k) + column);
        look_until_there(rest[k], part_at(k) + kHeadDim);
        each[k].highest = __uint_as_float(rest[k].v[0]);
        each[k].total = __uint_as_float(rest[k].v[1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) each[k].sums[i] = __uint_as_float(sums[k].v[i]);
      }
      all.add(each, parts - begin);
    }
    return all;
  }
};
