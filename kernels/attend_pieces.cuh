// Attention of the query heads of one KV head to a run of tokens in the paged cache, by a block, on
// sm_90a: fp16 and bf16, head_dim 64 or 128, blocks of 16 tokens or a multiple.
//
// What `Tiles` does, but 16 tokens of a head, which lie in one piece, are one copy: an H200 reads pieces
// of 4 KiB faster than the same bytes asked for in rows or in vectors of 16 bytes. So they lie in shared memory
// as they do in the cache, where the same vector of all tokens is in the same banks: ldmatrix would wait
// eight times. Fragments are loaded vector by vector instead, in an order of columns that suits it.
#pragma once
#include "attend_tiles.cuh"
#include "ptx_sm90.cuh"

// Words of 32 bits that are loaded as one.
template <int kCount>
struct alignas(4 * kCount) Words {
  unsigned words[kCount];
};

// Each warp takes tiles of 16 tokens, the block's warps in turn. Its ring has kPlaces places, which hold a
// tile of K and one of V by turns; as soon as one has been used the copy engine fills it again.
//
// The order of columns of K and Q is of no account, as long as it is the same: lane l has every fourth
// vector of tokens l/4 and l/4 + 8. Odd tokens take them in pairs the other way round, so that two tokens
// lie in different banks; the queries in that order are rows 8 to 15 of Q's fragment, which 8 heads leave
// empty.
//
// V.T's fragment has columns as rows: lane l has a run of columns, the same for all lanes with its l/4,
// of the tokens 2*(l%4), the next, and 8 later. Odd lanes load the second half of these columns first, so
// that two of such four lanes wait for each other and not all.
//
// kAppends: the launch itself appends the last token, which may be the one before `end`, and begins its
// first copies before it waits for the launch before.
template <typename T, int kHeadDim_, int kWarps_, int kPlaces, int kBlocks_, bool kAppends = false>
struct Pieces {
  using Element = T;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kHeads = 8;  // at most so many
  static constexpr int kWarps = kWarps_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocks =
      kBlocks_;  // on a multiprocessor, that registers must leave room for

  static constexpr int kTileTokens = 16;
  static constexpr int kTile = kTileTokens * kHeadDim;
  static constexpr int kRing = kPlaces * kTile;  // of a warp
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr int kKeyLoads = kHeadDim / 32;   // of 8 elements, of a lane, for a token
  static constexpr int kColumns = kHeadDim / 8;     // of V, of a lane
  static constexpr int kValueWidth = kColumns / 2;  // of a load
  static constexpr int kSumsStride = kHeadDim + 4;
  static_assert(kHeadDim == 64 || kHeadDim == 128, "two loads of V's columns for each lane");
  static_assert(kHeads * kSumsStride * 4 <= kRing * 2, "a warp's sums take the place of its ring");

  using Vector = Words<4>;  // of 8 elements
  // Of the head lane / 4: its vectors lane % 4, 4 + lane % 4 and so on.
  using Queries = Vector[kKeyLoads];

  const T* k_cache;        // [num_blocks, kv_heads, block_size, head_dim]
  const T* v_cache;        // [num_blocks, kv_heads, block_size, head_dim]
  const int* block_table;  // [max_blocks]
  int begin, end;          // tokens; begin is a multiple of 16
  int kv_head, kv_heads, block_size;
  const T* newest;  // K and V of token end - 1 in shared memory; null: they are in the cache

  // Of this lane and its warp, from begin_copies on.
  int warp, lane;
  T* ring;
  unsigned barriers;
  int tiles;
  int blocks, later_blocks;  // of a tile a lane

  // What this lane has of a head; zeros where the head is none.
  static __device__ __forceinline__ void load_head(Queries& head, const T* from, bool exists) {
#pragma unroll
    for (int j = 0; j < kKeyLoads; ++j) {
      head[j] = Vector{};
      if (exists) head[j] = reinterpret_cast<const Vector*>(from)[j * 4 + threadIdx.x % 4];
    }
  }

  // K and V of tile n are numbers 2*n and 2*n + 1 of what passes through the ring.
  __device__ __forceinline__ int token_of(int n) const {
    return begin + (n * kWarps + warp) * kTileTokens;
  }
  __device__ __forceinline__ T* tile_at(int number) const {
    return ring + number % kPlaces * kTile;
  }
  __device__ __forceinline__ unsigned barrier_of(int number) const {
    return barriers + number % kPlaces * 8;
  }
  __device__ __forceinline__ void wait_for(int number) const {
    mbarrier_wait(barrier_of(number), number / kPlaces % 2);
  }
  __device__ __forceinline__ int block_of(int n) const {
    if (n >= tiles) return 0;
    const int* block = block_table + token_of(n) / block_size;
    return load_early(block);
  }
  // Whether this warp has the tile of the last token.
  __device__ __forceinline__ bool has_last() const {
    return tiles > 0 && token_of(tiles - 1) + kTileTokens >= end;
  }

  // Whether the launch before wrote none of what is copied: it may have appended the last token.
  __device__ __forceinline__ bool is_settled(int number) const {
    return kAppends || token_of(number / 2) + kTileTokens < end;
  }

  // Called for all numbers in order. A token that is not in the cache is not copied, nor is what comes
  // after it.
  __device__ __forceinline__ void copy(int number) {
    const int n = number / 2;
    if (n >= tiles) return;
    if (number > 0 && number % 64 == 0) {
      blocks = later_blocks;
      later_blocks = block_of(n + 32 + lane);
    }
    const int block = __shfl_sync(0xffffffffu, blocks, n % 32);
    if (lane != 0) return;
    const long long head = static_cast<long long>(block) * kv_heads + kv_head;
    const T* from = (number % 2 ? v_cache : k_cache) +
                    (head * block_size + token_of(n) % block_size) * kHeadDim;
    int bytes = kTile * 2;
    if (kAppends && newest != nullptr)
      bytes = min(end - 1 - token_of(n), kTileTokens) * kHeadDim * 2;
    mbarrier_arrive_expecting(barrier_of(number), bytes);
    if (bytes > 0) copy_bytes(shared_address(tile_at(number)), from, bytes, barrier_of(number));
  }

  // Begins the first copies.
  __device__ __forceinline__ void begin_copies() {
    extern __shared__ __align__(128) unsigned char smem[];  // rings, then barriers
    warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    ring = reinterpret_cast<T*>(smem) + warp * kRing;
    barriers = shared_address(smem + kWarps * kRing * 2) + warp * kPlaces * 8;
    const int all_tiles = (end - begin + kTileTokens - 1) / kTileTokens;
    tiles = (all_tiles - warp + kWarps - 1) / kWarps;
    blocks = block_of(lane);
    later_blocks = block_of(lane + 32);
    if (lane == 0) {
      for (int place = 0; place < kPlaces; ++place) mbarrier_init(barrier_of(place), 1);
      mbarrier_init_done();
    }
    __syncwarp();
#pragma unroll
    for (int number = 0; number < kPlaces; ++number) {
      if (is_settled(number)) copy(number);
    }
  }

  // The rest of the first copies, after the wait for the launch before.
  __device__ __forceinline__ void begin_late_copies() {
#pragma unroll
    for (int number = 0; number < kPlaces; ++number) {
      if (!is_settled(number)) copy(number);
    }
  }

  // After attend_from, by all threads of the block: another such object may begin its copies.
  __device__ __forceinline__ void give_back() const {
    if (lane == 0) {
      for (int place = 0; place < kPlaces; ++place) mbarrier_end(barrier_of(place));
    }
    fence_shared_memory();
    __syncthreads();
  }

  // Writes what was not copied of the last tile: the token that is not in the cache, and after it zeros.
  __device__ __forceinline__ void complete(T* tile, const T* token, int place) const {
    for (int i = place * kHeadDim + lane * 8; i < kTile; i += 32 * 8) {
      const int column = i - place * kHeadDim;
      Vector vector{};
      if (column < kHeadDim) vector = *reinterpret_cast<const Vector*>(token + column);
      *reinterpret_cast<Vector*>(tile + i) = vector;
    }
    __syncwarp();
  }

  // What attend does after the first copies.
  template <typename Result>
  __device__ __forceinline__ void attend_from(
      const Result& result, const Queries& queries, int heads, float scale_log2) {
    extern __shared__ __align__(128) unsigned char smem[];
    const int lane_row = lane / 4, lane_pair = lane % 4 * 2;  // in a fragment
    float sums[kSteps][4] = {};
    float highest = kLowest, total = 0.0f;  // of the head lane_row

    for (int n = 0; n < tiles; ++n) {
      const bool completes = kAppends && newest != nullptr && token_of(n) + kTileTokens >= end;
      wait_for(2 * n);
      if (completes) complete(tile_at(2 * n), newest, end - 1 - token_of(n));
      float scores[2][4] = {};  // of tokens 0 to 7 and 8 to 15
      const T* keys = tile_at(2 * n) + lane_row * kHeadDim + lane % 4 * 8;
#pragma unroll
      for (int j = 0; j < kKeyLoads; ++j) {
        const Words<4>&first = queries[j], &second = queries[j ^ 1];
        const int place = j ^ lane_row % 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const auto loaded =
              *reinterpret_cast<const Words<4>*>(keys + half * 8 * kHeadDim + place * 32);
#pragma unroll
          for (int w = 0; w < 4; w += 2) {
            const unsigned a[4] = {first.words[w], second.words[w], first.words[w + 1],
                                   second.words[w + 1]};
            const unsigned b[2] = {loaded.words[w], loaded.words[w + 1]};
            mma_m16n8k16<T>(scores[half], a, b);
          }
        }
      }
      fence_shared_memory();
      __syncwarp();
      copy(2 * n + kPlaces);

      unsigned high[2], low[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) scores[j][1] = scores[j][3];
      const float before = highest;
      const float keep =
          weigh_tokens<T>(scores, 0, end - token_of(n), scale_log2, highest, total, high, low);
      if (__any_sync(0xffffffffu, highest > before)) rescale(sums, keep);

      wait_for(2 * n + 1);
      if (completes) {
        complete(tile_at(2 * n + 1), newest + kHeadDim, end - 1 - token_of(n));
      } else if (token_of(n) + kTileTokens > end) {  // what lies there may be NaN
        const int first = (end - token_of(n)) * kHeadDim;
        for (int i = first + lane * 8; i < kTile; i += 32 * 8) {
          *reinterpret_cast<Words<4>*>(tile_at(2 * n + 1) + i) = Words<4>{};
        }
        __syncwarp();
      }
      using Values = Words<kValueWidth / 2>;
      const T* values = tile_at(2 * n + 1) + lane_pair * kHeadDim + lane_row * kColumns;
      Values loaded[2][4];  // of tokens lane_pair, the next, and 8 later
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = i / 2 * 8 + i % 2, column = (half ^ lane % 2) * kValueWidth;
          loaded[half][i] = *reinterpret_cast<const Values*>(values + token * kHeadDim + column);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int w = 0; w < kValueWidth / 2; ++w) {
          unsigned of[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            of[i] = lane % 2 ? loaded[half ^ 1][i].words[w] : loaded[half][i].words[w];
          }
          const unsigned a[4] = {
              __byte_perm(of[0], of[1], 0x5410), __byte_perm(of[0], of[1], 0x7632),
              __byte_perm(of[2], of[3], 0x5410), __byte_perm(of[2], of[3], 0x7632)};
          const int step = half * (kValueWidth / 2) + w;
          mma_m16n8k16<T>(sums[step], a, high);
          mma_m16n8k16<T>(sums[step], a, low);
        }
      }
      fence_shared_memory();
      __syncwarp();
      copy(2 * n + 1 + kPlaces);
    }

    // Merge the warps, whose sums take the place of their rings.
    __shared__ float warp_highest[kWarps][kHeads], warp_totals[kWarps][kHeads];
    float* warp_sums = reinterpret_cast<float*>(ring);  // [heads][kSumsStride]
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    if (lane % 4 == 0) {
      warp_highest[warp][lane_row] = highest;
      warp_totals[warp][lane_row] = total;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (lane_pair + i >= heads) continue;
      float* of_lane = warp_sums + (lane_pair + i) * kSumsStride + lane_row * kColumns;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        of_lane[step * 2] = sums[step][i];
        of_lane[step * 2 + 1] = sums[step][i + 2];
      }
    }
    __syncthreads();
    const float* block_sums = reinterpret_cast<const float*>(smem);
    fold_warps<T, kHeadDim, kRing / 2, kSumsStride>(
        result, warp_highest, warp_totals, block_sums, heads);
  }
};
