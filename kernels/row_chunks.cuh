// A row of logits in chunks that a block takes one at a time, adjusted on the way into registers:
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
};

// The id of this thread's v-th vector in a chunk.
template <int kWidth>
__device__ __forceinline__ int vector_id(int chunk, int v) {
  return chunk * kChunk + (v * kThreads + static_cast<int>(threadIdx.x)) * kWidth;
}

// This thread's tokens of a chunk, as the model gives them.
template <typename T, int kWidth>
struct RawTokens {
  static constexpr int kVectors = kChunk / kThreads / kWidth;
  Pack<T, kWidth> packs[kVectors];

  __device__ __forceinline__ void load(const T* logits, int vocab, int chunk) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int id = vector_id<kWidth>(chunk, v);
      if (id < vocab) packs[v] = *reinterpret_cast<const Pack<T, kWidth>*>(logits + id);
    }
  }
};

// A block's only tile, [kChunk].
__device__ __forceinline__ float* shared_tile() {
  __shared__ float tile[kChunk];
  return tile;
}

// This thread's tokens of a chunk in float32.
template <int kWidth>
struct Tokens {
  static constexpr int kVectors = kChunk / kThreads / kWidth;
  float logits[kVectors * kWidth];

  // Calls visit(logit, id) in ascending order of ids, for those below `vocab`.
  template <typename Visit>
  __device__ __forceinline__ void visit(int vocab, int chunk, Visit visit) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int id = vector_id<kWidth>(chunk, v);
      if (id < vocab) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) visit(logits[v * kWidth + k], id + k);
      }
    }
  }

  template <typename T>
  __device__ __forceinline__ void widen(const RawTokens<T, kWidth>& raw, int vocab, int chunk) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const bool is_token = vector_id<kWidth>(chunk, v) < vocab;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        logits[v * kWidth + k] = is_token ? to_float(raw.packs[v].v[k]) : 0.0f;
      }
    }
  }

  // All threads of the block call it.
  template <typename T>
  __device__ __forceinline__ void adjust(const Row<T>& row, int chunk) {
    if (row.bias_ids != nullptr || row.stop_ids != nullptr) set_listed(row, chunk);
    if (row.token_counts != nullptr) penalise(row, chunk);
  }

 private:
  // Biases and stop ids are lists of tokens: they are looked up through shared memory.
  template <typename T>
  __device__ __forceinline__ void set_listed(const Row<T>& row, int chunk) {
    float* tile = shared_tile();
    const int begin = chunk * kChunk, end = min(begin + kChunk, row.vocab);
    visit(row.vocab, chunk, [&](float logit, int id) { tile[id - begin] = logit; });
    __syncthreads();
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
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int id = vector_id<kWidth>(chunk, v);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        if (id < row.vocab) logits[v * kWidth + k] = tile[id - begin + k];
      }
    }
    __syncthreads();  // the tile can be filled again
  }

  template <typename T>
  __device__ __forceinline__ void penalise(const Row<T>& row, int chunk) {
    constexpr int kCounts = kWidth < 4 ? kWidth : 4;  // of one load
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int id = vector_id<kWidth>(chunk, v);
      if (id >= row.vocab) continue;
#pragma unroll
      for (int part = 0; part < kWidth; part += kCounts) {
        const auto counts =
            *reinterpret_cast<const Pack<int, kCounts>*>(row.token_counts + id + part);
#pragma unroll
        for (int k = 0; k < kCounts; ++k) {
          float& logit = logits[v * kWidth + part + k];
          if (counts.v[k] != 0) logit = penalised(row, logit, counts.v[k] & (kPromptBit - 1));
        }
      }
    }
  }

  template <typename T>
  static __device__ __forceinline__ float penalised(const Row<T>& row, float logit, int count) {
    logit = logit > 0.0f ? __fdiv_rn(logit, row.repetition) : __fmul_rn(logit, row.repetition);
    logit = __fadd_rn(logit, -__fmul_rn(row.frequency, static_cast<float>(count)));
    return __fadd_rn(logit, count > 0 ? -row.presence : -0.0f);
  }
};

// This thread's tokens of a chunk, adjusted. All threads of the block call it.
template <typename T, int kWidth>
__device__ __forceinline__ Tokens<kWidth> tokens_of(const Row<T>& row, int chunk) {
  RawTokens<T, kWidth> raw;
  raw.load(row.logits, row.vocab, chunk);
  Tokens<kWidth> tokens;
  tokens.widen(raw, row.vocab, chunk);
  tokens.adjust(row, chunk);
  return tokens;
}

// Calls use(tokens, chunk) for every step-th chunk of the row from the first one on, whose tokens
// `raw` holds already; the next chunk is on its way meanwhile. All threads of the block call it.
template <typename T, int kWidth, typename Use>
__device__ __forceinline__ void for_each_chunk(
    const Row<T>& row, int first, int step, RawTokens<T, kWidth> raw, Use use) {
  const int num_chunks = row.num_chunks();
#pragma unroll 1
  for (int chunk = first; chunk < num_chunks; chunk += step) {
    Tokens<kWidth> tokens;
    tokens.widen(raw, row.vocab, chunk);
    if (chunk + step < num_chunks) raw.load(row.logits, row.vocab, chunk + step);
    tokens.adjust(row, chunk);
    use(tokens, chunk);
  }
}

// The same where nothing is loaded yet.
template <typename T, int kWidth, typename Use>
__device__ __forceinline__ void for_each_chunk(const Row<T>& row, int first, int step, Use use) {
  RawTokens<T, kWidth> raw;
  raw.load(row.logits, row.vocab, first);
  for_each_chunk(row, first, step, raw, use);
}

// Calls visit(logit, id) for every token of the row, in one thread each, and done(chunk) after each
// chunk; between calls of either lies a barrier. From shared memory, with little code and few
// registers, for a block that has the row to itself and much to do with it. All threads call it.
template <typename T, int kWidth, typename Visit, typename Done>
__device__ __forceinline__ void visit_row(const Row<T>& row, Visit visit, Done done) {
  float* tile = shared_tile();
  const int num_chunks = row.num_chunks();
#pragma unroll 1
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    const int begin = chunk * kChunk, end = min(begin + kChunk, row.vocab);
    tokens_of<T, kWidth>(row, chunk).visit(row.vocab, chunk, [&](float logit, int id) {
      tile[id - begin] = logit;
    });
    __syncthreads();
#pragma unroll 1
    for (int id = begin + threadIdx.x; id < end; id += kThreads) visit(tile[id - begin], id);
    __syncthreads();
    done(chunk);
  }
}

// The extents of a row's groups, of which warp w has group `chunk * kGroups + w`.
struct GroupExtents {
  int top_keys[kMaxGroups], top_ids[kMaxGroups], bottom_keys[kMaxGroups];

  template <int kWidth>
  __device__ __forceinline__ void set(const Tokens<kWidth>& tokens, int vocab, int chunk) {
    Extent own = Extent::nothing();
    tokens.visit(vocab, chunk, [&](float logit, int id) { own.include(logit, id); });
    const int top = __reduce_max_sync(kAllLanes, own.top_key);
    const int id = __reduce_min_sync(kAllLanes, own.top_key == top ? own.top_id : kHighestInt);
    const int bottom = __reduce_min_sync(kAllLanes, own.bottom_key);
    if (lane_index() == 0) {
      const int group = chunk * kGroups + warp_index();
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
