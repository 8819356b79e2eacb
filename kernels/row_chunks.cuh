// A row of logits in chunks that a block takes one at a time, adjusted on the way, in shared memory:
// l += bias; -inf for stop ids that come too early; then penalties:
// l = l > 0 ? l / repetition : l * repetition; l -= frequency * count; l -= presence * (count > 0)
//
// Every operation of an adjustment is rounded to float32 on its own. Which block takes a chunk
// changes nothing, so a launch may give a row as many blocks as it likes. No kernel lives here.
#pragma once
#include "row_order.cuh"

constexpr int kChunk = 8192;
constexpr int kMaxChunks = 32;                    // of a row
constexpr int kThreads = 512;                     // of a block
constexpr int kGroups = kThreads / 32;            // of a chunk: the tokens of one warp
constexpr int kMaxGroups = kMaxChunks * kGroups;  // of a row
static_assert(kMaxGroups <= kThreads, "a thread for each group");

constexpr int kPromptBit = 1 << 30;  // of a count: the token is in the prompt

// Where the logits of a row are, and what its sequence asks for.
template <typename T>
struct Row {
  const T* logits;           // [vocab]
  const int* token_counts;   // [vocab]; null where no penalty is asked for
  const int* bias_ids;       // [max_bias]; null where no bias is
  const float* bias_values;  // [max_bias]
  const int* stop_ids;       // [max_stop_ids]; null where they may stand
  float repetition, presence, frequency;
  int vocab, max_bias, max_stop_ids;

  __device__ __forceinline__ int num_chunks() const { return (vocab + kChunk - 1) / kChunk; }
  __device__ __forceinline__ bool is_adjusted() const {
    return token_counts != nullptr || bias_ids != nullptr || stop_ids != nullptr;
  }
};

// A chunk of the row that a block works on, in float32: adjusted logits, or any. Between blocks of 16
// lies a word, so that threads with 16 tokens each do not meet in a bank.
struct Tile {
  float words[kChunk + kChunk / 16];

  __device__ __forceinline__ float& operator[](int i) { return words[i + i / 16]; }
};

__device__ __forceinline__ Tile& shared_tile() {
  __shared__ Tile tile;
  return tile;
}

// What a thread has of a chunk: vectors of kWidth tokens each, as the model gives them.
template <typename T, int kWidth>
struct Vectors {
  static constexpr int kCount = kChunk / kThreads / kWidth;
  Pack<T, kWidth> packs[kCount];

  static __device__ __forceinline__ int id(int chunk, int v) {
    return chunk * kChunk + (v * kThreads + static_cast<int>(threadIdx.x)) * kWidth;
  }
  __device__ __forceinline__ void load(const T* logits, int vocab, int chunk) {
#pragma unroll
    for (int v = 0; v < kCount; ++v) {
      if (id(chunk, v) < vocab) {
        packs[v] = *reinterpret_cast<const Pack<T, kWidth>*>(logits + id(chunk, v));
      }
    }
  }
};

// Adjusts the logits of the ids from `begin` on in a tile. All threads of the block call it, after a
// barrier; one stands at its end where it has changed any.
template <int kWidth, typename T, typename AnyTile>
__device__ __forceinline__ void adjust(const Row<T>& row, int begin, int end, AnyTile& tile) {
  if (row.bias_ids != nullptr) {
    for (int i = threadIdx.x; i < row.max_bias; i += kThreads) {
      const int id = row.bias_ids[i];
      if (id >= begin && id < end) {
        tile[id - begin] = __fadd_rn(tile[id - begin], row.bias_values[i]);
      }
    }
    __syncthreads();
  }
  if (row.stop_ids != nullptr) {
    for (int i = threadIdx.x; i < row.max_stop_ids; i += kThreads) {
      const int id = row.stop_ids[i];
      // An id may be in the list twice.
      if (id >= begin && id < end) atomicExch(&tile[id - begin], __int_as_float(0xff800000));
    }
    __syncthreads();
  }
  if (row.token_counts != nullptr) {
    constexpr int kCounts = kWidth > 1 ? 4 : 1;  // of one load
#pragma unroll 2
    for (int id = begin + threadIdx.x * kCounts; id < end; id += kThreads * kCounts) {
      const auto counts = *reinterpret_cast<const Pack<int, kCounts>*>(row.token_counts + id);
#pragma unroll
      for (int k = 0; k < kCounts; ++k) {
        if (counts.v[k] == 0) continue;
        const int count = counts.v[k] & (kPromptBit - 1);
        float logit = tile[id - begin + k];
        logit = logit > 0.0f ? __fdiv_rn(logit, row.repetition) : __fmul_rn(logit, row.repetition);
        logit = __fadd_rn(logit, -__fmul_rn(row.frequency, static_cast<float>(count)));
        tile[id - begin + k] = __fadd_rn(logit, count > 0 ? -row.presence : -0.0f);
      }
    }
    __syncthreads();
  }
}

// Fills the tile with the adjusted logits of a chunk. All threads of the block call it; a barrier
// stands at its beginning and at its end.
template <typename T, int kWidth>
__device__ __forceinline__ void fill_tile(
    const Row<T>& row, int chunk, const Vectors<T, kWidth>& vectors, Tile& tile) {
  const int begin = chunk * kChunk, end = min(begin + kChunk, row.vocab);
  __syncthreads();  // the tile may still be read
#pragma unroll
  for (int v = 0; v < vectors.kCount; ++v) {
    const int first = vectors.id(chunk, v);
    if (first >= row.vocab) continue;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) tile[first - begin + k] = to_float(vectors.packs[v].v[k]);
  }
  __syncthreads();
  adjust<kWidth>(row, begin, end, tile);
}

// A chunk as a launch that shares the row with others sees it.
template <typename T, int kWidth>
struct Chunk {
  int index, vocab;
  bool is_adjusted;  // then its logits are in the tile
  Vectors<T, kWidth> vectors;

  // Calls visit(logit, id, i) for this thread's tokens, ids ascending, with adjusted logits; i is the
  // number of the token among those of the thread.
  template <typename Visit>
  __device__ __forceinline__ void visit(Visit visit) const {
    Tile& tile = shared_tile();
#pragma unroll
    for (int v = 0; v < vectors.kCount; ++v) {
      const int first = vectors.id(index, v);
      if (first >= vocab) continue;
      float logits[kWidth];
#pragma unroll
      for (int k = 0; k < kWidth; ++k) logits[k] = to_float(vectors.packs[v].v[k]);
      if (is_adjusted) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) logits[k] = tile[first - index * kChunk + k];
      }
#pragma unroll
      for (int k = 0; k < kWidth; ++k) visit(logits[k], first + k, v * kWidth + k);
    }
  }
};

// Calls use(chunk) for every gridDim.x-th chunk of the row from the first one on, of which `vectors`
// are loaded; the next chunk is on its way meanwhile. All threads of the block call it.
template <typename T, int kWidth, typename Use>
__device__ __forceinline__ void for_each_chunk_ahead(
    const Row<T>& row, const Vectors<T, kWidth>& vectors, Use use) {
  const int num_chunks = row.num_chunks();
  Chunk<T, kWidth> chunk = {static_cast<int>(blockIdx.x), row.vocab, row.is_adjusted(), vectors};
#pragma unroll 1
  for (; chunk.index < num_chunks; chunk.index += gridDim.x) {
    if (chunk.is_adjusted) fill_tile(row, chunk.index, chunk.vectors, shared_tile());
    Vectors<T, kWidth> next = chunk.vectors;
    const int next_index = chunk.index + gridDim.x;
    if (next_index < num_chunks) next.load(row.logits, chunk.vocab, next_index);
    use(chunk);
    chunk.vectors = next;
  }
}

// The same, with nothing loaded ahead, which takes registers: for rows that are in the L2 cache.
template <typename T, int kWidth, typename Use>
__device__ __forceinline__ void for_each_chunk(const Row<T>& row, Use use) {
  const int num_chunks = row.num_chunks();
  Chunk<T, kWidth> chunk;
  chunk.vocab = row.vocab;
  chunk.is_adjusted = row.is_adjusted();
#pragma unroll 1
  for (chunk.index = blockIdx.x; chunk.index < num_chunks; chunk.index += gridDim.x) {
    chunk.vectors.load(row.logits, chunk.vocab, chunk.index);
    if (chunk.is_adjusted) fill_tile(row, chunk.index, chunk.vectors, shared_tile());
    use(chunk);
  }
}

// Leaves a chunk in the tile, for a block that has the row to itself: what reads it from there needs
// little code, which such a block runs but once. All threads of the block call it.
template <typename T, int kWidth>
__device__ __forceinline__ void stage_chunk(const Row<T>& row, int chunk, Tile& tile) {
  Vectors<T, kWidth> vectors;
  vectors.load(row.logits, row.vocab, chunk);
  fill_tile(row, chunk, vectors, tile);
}

// Calls visit(logit, id) for every token of the row, in one thread each, and done(chunk) after each
// chunk; between calls of either lies a barrier. All threads of the block call it.
template <typename T, int kWidth, typename Visit, typename Done>
__device__ __forceinline__ void visit_row(const Row<T>& row, Visit visit, Done done) {
  Tile& tile = shared_tile();
  const int num_chunks = row.num_chunks();
#pragma unroll 1
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    const int begin = chunk * kChunk, end = min(begin + kChunk, row.vocab);
    stage_chunk<T, kWidth>(row, chunk, tile);
#pragma unroll 1
    for (int id = begin + threadIdx.x; id < end; id += kThreads) visit(tile[id - begin], id);
    __syncthreads();
    done(chunk);
  }
}

// The extents of a row's groups, of which warp w has group `chunk * kGroups + w`.
struct GroupExtents {
  int top_keys[kMaxGroups], top_ids[kMaxGroups], bottom_keys[kMaxGroups];

  template <typename T, int kWidth>
  __device__ __forceinline__ void set(const Chunk<T, kWidth>& chunk) {
    Extent own = Extent::nothing();
    chunk.visit([&](float logit, int id, int) { own.include(logit, id); });
    const int top = __reduce_max_sync(kAllLanes, own.top_key);
    const int id = __reduce_min_sync(kAllLanes, own.top_key == top ? own.top_id : kHighestInt);
    const int bottom = __reduce_min_sync(kAllLanes, own.bottom_key);
    if (lane_index() == 0) {
      const int group = chunk.index * kGroups + warp_index();
      top_keys[group] = top;
      top_ids[group] = id;
      bottom_keys[group] = bottom;
    }
  }

  // The extent of the group that is this thread's; nothing where there is none.
  __device__ __forceinline__ Extent own(int num_chunks) const {
    const int group = threadIdx.x;
    if (group >= num_chunks * kGroups) return Extent::nothing();
    return {top_keys[group], top_ids[group], bottom_keys[group]};
  }
};

// The extent over the threads' own ones. All threads of the block call it.
__device__ __forceinline__ Extent block_extent(Extent own) {
  __shared__ Extent extent;
  if (threadIdx.x == 0) extent = Extent::nothing();
  __syncthreads();
  const int top = __reduce_max_sync(kAllLanes, own.top_key);
  const int bottom = __reduce_min_sync(kAllLanes, own.bottom_key);
  if (lane_index() == 0) {
    atomicMax(&extent.top_key, top);
    atomicMin(&extent.bottom_key, bottom);
  }
  __syncthreads();
  const int id = own.top_key == extent.top_key ? own.top_id : kHighestInt;
  const int lowest_id = __reduce_min_sync(kAllLanes, id);
  if (lane_index() == 0) atomicMin(&extent.top_id, lowest_id);
  __syncthreads();
  return extent;
}

// A logit that the k first of the order are not below, if there are as many groups: the k-th
// highest of the groups' tops, or a little less. Else the lowest. All threads of the block call it.
__device__ __forceinline__ float floor_of_first(int k, int own_top_key, Extent extent) {
  constexpr int kSteps = 10;
  float floor = key_logit(extent.bottom_key), ceiling = key_logit(extent.top_key);
  const float own = own_top_key > -kInfinityKey ? key_logit(own_top_key) : -3e38f;
  if (__syncthreads_count(own >= floor) < k) return floor;
#pragma unroll 1
  for (int i = 0; i < kSteps; ++i) {
    const float middle = 0.5f * floor + 0.5f * ceiling;
    if (__syncthreads_count(own >= middle) >= k) {
      floor = middle;
    } else {
      ceiling = middle;
    }
  }
  return floor;
}
