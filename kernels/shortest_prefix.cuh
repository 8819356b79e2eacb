// The shortest prefix of a row's order that is large enough, without sorting the row; and the token
// at which a sum over ids becomes large enough.
//
// Sums over 256 ranges of logits, the bins, tell in which of them a prefix ends. The tokens of that
// bin, the candidates, are sorted in shared memory. `shortest_prefix` does all of it with one block;
// where they are too many it sums over bins of that bin alone. No kernel lives here.
#pragma once
#include "row_chunks.cuh"

constexpr int kBins = 256;
constexpr int kMaxCandidates = 4096;

// Which bin a token is in, 0 to kBins - 1. Monotone: a token that is later in the order is in no
// earlier bin.
struct Bins {
  int top_key, shift;

  // Over the keys from the top to the bottom, at least two bins if those differ.
  __device__ __forceinline__ Bins(int top_key, int bottom_key) : top_key(top_key) {
    const unsigned range = static_cast<unsigned>(top_key) - static_cast<unsigned>(bottom_key);
    shift = max(24 - __clz(static_cast<int>(range)), 0);
  }
  __device__ __forceinline__ int operator()(int key) const {
    return static_cast<int>((static_cast<unsigned>(top_key) - static_cast<unsigned>(key)) >> shift);
  }
};

// Sums of measures by bin, of one chunk at a time: half the warps add to either copy, so that no
// half of a sum has more than 4,096 terms.
struct BinSums {
  unsigned high[2][kBins];
  int low[2][kBins];

  __device__ __forceinline__ void clear() {
    for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) {
      high[0][bin] = high[1][bin] = low[0][bin] = low[1][bin] = 0;
    }
  }
  __device__ __forceinline__ void add(int bin, Fixed term) {
    const int copy = warp_index() & 1;
    if (term.high != 0) atomicAdd(&high[copy][bin], term.high);
    if (term.low != 0) atomicAdd(&low[copy][bin], term.low);
  }
  // The sum of a bin, which begins anew.
  __device__ __forceinline__ Sum take(int bin) {
    Sum sum = 0;
#pragma unroll
    for (int copy = 0; copy < 2; ++copy) {
      sum += Fixed{high[copy][bin], low[copy][bin]}.joined();
      high[copy][bin] = low[copy][bin] = 0;
    }
    return sum;
  }
};

// A candidate as one number, ascending in the order.
__device__ __forceinline__ Sum pack_candidate(int key, int id) {
  return static_cast<Sum>(0x7fffffffu - static_cast<unsigned>(key)) << 32 |
         static_cast<unsigned>(id);
}
__device__ __forceinline__ int candidate_key(Sum candidate) {
  return static_cast<int>(0x7fffffffu - static_cast<unsigned>(candidate >> 32));
}
__device__ __forceinline__ int candidate_id(Sum candidate) {
  return static_cast<int>(candidate & 0xffffffffu);
}
__device__ __forceinline__ Prefix up_to_candidate(Sum candidate) {
  return {candidate_key(candidate), candidate_id(candidate)};
}

// Appends those of the thread's tokens of a chunk whose bits are set to a list in global memory; those
// beyond kMaxCandidates are only counted. All lanes of the warp call it.
template <typename T, int kWidth>
__device__ __forceinline__ void append_candidates(
    const Chunk<T, kWidth>& chunk,
    unsigned chosen,
    int* __restrict__ num_candidates,
    Sum* __restrict__ candidates) {
  if (!__any_sync(kAllLanes, chosen != 0)) return;
  const int own = __popc(chosen);
  int index = own;
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const int left = __shfl_up_sync(kAllLanes, index, offset);
    if (lane_index() >= offset) index += left;
  }
  int first = 0;
  if (lane_index() == 31) first = atomicAdd(num_candidates, index);
  index += __shfl_sync(kAllLanes, first, 31) - own;
  chunk.visit([&](float logit, int id, int i) {
    if ((chosen >> i & 1) == 0) return;
    if (index < kMaxCandidates) candidates[index] = pack_candidate(order_key(logit), id);
    ++index;
  });
}

// Shared memory of a block that has a row to itself.
struct RowScratch {
  Sum candidates[kMaxCandidates];
  BinSums bins;
  Sum chunk_sums[kMaxChunks];
  unsigned chunk_high[kMaxChunks];  // of what is added to the sums
  int chunk_low[kMaxChunks];
  Sum before;
  int bin, num_candidates, top_key, bottom_key, end, found_id;
};

static_assert(sizeof(RowScratch) <= 37 * 1024, "what row_order.py reserves");

// Sorts the first `count` candidates (a bitonic network). All threads of the block call it.
__device__ __forceinline__ void sort_candidates(RowScratch& s, int count) {
  int padded = 1;
  while (padded < count) padded *= 2;
#pragma unroll 1
  for (int i = count + threadIdx.x; i < padded; i += kThreads) s.candidates[i] = ~Sum(0);
  __syncthreads();
  for (int size = 2; size <= padded; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
#pragma unroll 1
      for (int i = threadIdx.x; i < padded / 2; i += kThreads) {
        const int left = 2 * i - (i & (stride - 1)), right = left + stride;
        const Sum a = s.candidates[left], b = s.candidates[right];
        if ((a > b) == ((left & size) == 0)) {
          s.candidates[left] = b;
          s.candidates[right] = a;
        }
      }
      __syncthreads();
    }
  }
}

// The index of the first of `count` sorted candidates at which `before` and the measures up to it
// reach `wanted`, which all of them do. All threads of the block call it.
template <typename Measure>
__device__ __forceinline__ int end_in_candidates(
    int count, Sum before, Sum wanted, Measure measure, RowScratch& s) {
#pragma unroll 1
  for (int first = 0; first < count && before < wanted; first += kThreads) {
    const int i = first + threadIdx.x;
    Sum own = 0;
    if (i < count) own = measure(key_logit(candidate_key(s.candidates[i]))).joined();
    const Scan sums = block_scan<kThreads>(own);
    const Sum reached = before + sums.reached;
    if (reached >= wanted && reached - own < wanted) s.end = i;
    before += sums.total;
  }
  __syncthreads();
  return s.end;
}

// chunk_sums[c] = the sum of measure(logit, id) over the tokens of chunk c. All threads call it.
template <typename T, int kWidth, typename Measure>
__device__ __forceinline__ void sum_chunks(const Row<T>& row, Measure measure, RowScratch& s) {
  for (int chunk = threadIdx.x; chunk < kMaxChunks; chunk += kThreads) s.chunk_sums[chunk] = 0;
  __syncthreads();
  Fixed own = {0, 0};
  visit_row<T, kWidth>(
      row, [&](float logit, int id) { own.add(measure(logit, id)); },
      [&](int chunk) {
        const Sum sum = warp_sum(own).joined();
        if (lane_index() == 0) atomicAdd(&s.chunk_sums[chunk], sum);
        own = {0, 0};
      });
  __syncthreads();
}

// The lowest id at which the sum of measure(logit, id) over the ids up to it exceeds target(sum of
// all), which is below that sum; chunk_sums has the chunks' sums. All threads of the block call it.
template <typename T, int kWidth, typename Measure, typename Target>
__device__ __forceinline__ int lowest_id_above(
    const Row<T>& row, Measure measure, Target target, RowScratch& s) {
  static_assert(kMaxChunks == 32, "a lane for each chunk");
  const Sum own_chunk = s.chunk_sums[lane_index()];
  Sum reached = own_chunk;
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const Sum left = __shfl_up_sync(kAllLanes, reached, offset);
    if (lane_index() >= offset) reached += left;
  }
  const Sum goal = target(__shfl_sync(kAllLanes, reached, 31));
  const int chunk = max(__ffs(__ballot_sync(kAllLanes, reached > goal)) - 1, 0);
  const Sum before = __shfl_sync(kAllLanes, reached - own_chunk, chunk);

  Tile& tile = shared_tile();
  stage_chunk<T, kWidth>(row, chunk, tile);
  constexpr int kOwn = kChunk / kThreads;
  const int begin = threadIdx.x * kOwn, end = min(begin + kOwn, row.vocab - chunk * kChunk);
  Fixed own = {0, 0};
#pragma unroll 2
  for (int i = begin; i < end; ++i) own.add(measure(tile[i], chunk * kChunk + i));
  Sum passed = before + block_scan<kThreads>(own.joined()).reached - own.joined();
  if (passed <= goal && passed + own.joined() > goal) {
    int i = begin;
#pragma unroll 1
    for (; i < end - 1; ++i) {
      passed += measure(tile[i], chunk * kChunk + i).joined();
      if (passed > goal) break;
    }
    s.found_id = chunk * kChunk + i;
  }
  __syncthreads();
  return s.found_id;
}

// The shortest prefix whose sum of measure(logit) reaches goal(sum over `kept`), at least 1; or
// `kept`, if the goal is no less than that sum. All threads of the block call it.
template <typename T, int kWidth, typename Measure, typename Goal>
__device__ __forceinline__ Prefix shortest_prefix(
    const Row<T>& row, Prefix kept, Extent extent, Measure measure, Goal goal, RowScratch& s) {
  int top_key = extent.top_key, bottom_key = -kInfinityKey;
  Sum before = 0, wanted = 0;
  while (true) {
    const Bins bins(top_key, bottom_key);
    auto is_inside = [&](float logit, int id) {
      const int key = order_key(logit);
      return key >= bottom_key && key <= top_key && kept.holds(key, id);
    };
    __syncthreads();  // the scratch may still be read
    s.bins.clear();
    if (threadIdx.x == 0) {
      s.num_candidates = 0;
      s.top_key = kLowestInt;
      s.bottom_key = kHighestInt;
    }
    __syncthreads();
    Sum own = 0;  // of the bin that is this thread's
    visit_row<T, kWidth>(
        row,
        [&](float logit, int id) {
          if (is_inside(logit, id)) s.bins.add(bins(order_key(logit)), measure(logit));
        },
        [&](int) {
          if (threadIdx.x < kBins) own += s.bins.take(threadIdx.x);
        });
    const Scan sums = block_scan<kThreads>(own);
    if (wanted == 0) {  // the first round
      wanted = goal(sums.total);
      if (wanted >= sums.total) return kept;
    }
    const Sum reached = before + sums.reached;
    if (reached >= wanted && reached - own < wanted) {
      s.bin = threadIdx.x;
      s.before = reached - own;
    }
    __syncthreads();
    const int bin = s.bin;
    before = s.before;

    int own_top = kLowestInt, own_bottom = kHighestInt;
    visit_row<T, kWidth>(
        row,
        [&](float logit, int id) {
          const int key = order_key(logit);
          if (!is_inside(logit, id) || bins(key) != bin) return;
          const int index = atomicAdd(&s.num_candidates, 1);
          if (index < kMaxCandidates) s.candidates[index] = pack_candidate(key, id);
          own_top = max(own_top, key);
          own_bottom = min(own_bottom, key);
        },
        [](int) {});
    own_top = __reduce_max_sync(kAllLanes, own_top);
    own_bottom = __reduce_min_sync(kAllLanes, own_bottom);
    if (lane_index() == 0) {
      atomicMax(&s.top_key, own_top);
      atomicMin(&s.bottom_key, own_bottom);
    }
    __syncthreads();
    const int count = s.num_candidates;
    if (count <= kMaxCandidates) {
      sort_candidates(s, count);
      return up_to_candidate(s.candidates[end_in_candidates(count, before, wanted, measure, s)]);
    }
    top_key = s.top_key;
    bottom_key = s.bottom_key;
    if (top_key == bottom_key) {  // ties: the lowest ids
      const Sum goal_of_ties = wanted - before - 1;
      auto tied = [&](float logit, int id) {
        const bool is_tied = order_key(logit) == top_key && kept.holds(top_key, id);
        return is_tied ? measure(logit) : Fixed{0, 0};
      };
      sum_chunks<T, kWidth>(row, tied, s);
      auto target = [&](Sum) { return goal_of_ties; };
      return {top_key, lowest_id_above<T, kWidth>(row, tied, target, s)};
    }
  }
}
