// The shortest prefix of a row's order that is large enough, without sorting the row. For a block
// that owns the row.
//
// A histogram over 256 ranges of logits tells in which range the prefix ends. Its tokens are sorted
// in shared memory if they fit; else the histogram is taken of that range alone. Two reads of the
// row a round, and one round unless very many logits are close together. No kernel lives here.
#pragma once
#include "row_order.cuh"

constexpr int kBins = 256;
constexpr int kMaxCandidates = 8192;
constexpr int kGroup = 128;  // candidates whose sum is taken first: 64 groups, 4 a lane

struct PrefixScratch {
  union {
    struct {
      unsigned high[kBins][32], low[kBins][32];  // a bank a lane: lanes do not meet in a bin
    } bins;
    Sum candidates[kMaxCandidates];
  };
  Sum sums[kMaxTiles];  // of bins, groups or tiles
  Sum goal, before;
  int bin, num_candidates, top_key, bottom_key;
  Prefix found;
};

static_assert(sizeof(PrefixScratch) <= 68 * 1024 + 512, "what row_order.py reserves");

// The measure that counts tokens.
struct CountOne {
  __device__ __forceinline__ Fixed operator()(float) const { return {0, 1}; }
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

// Appends to the candidates; those beyond kMaxCandidates are only counted.
__device__ __forceinline__ void add_candidate(PrefixScratch& s, int key, int id) {
  const int index = atomicAdd(&s.num_candidates, 1);
  if (index < kMaxCandidates) s.candidates[index] = pack_candidate(key, id);
}

// Sorts the first `count` candidates (a bitonic network). All threads of the block call it.
__device__ __forceinline__ void sort_candidates(PrefixScratch& s, int count) {
  int padded = 1;
  while (padded < count) padded *= 2;
  for (int i = count + threadIdx.x; i < padded; i += kRowThreads) s.candidates[i] = ~Sum(0);
  __syncthreads();
  for (int size = 2; size <= padded; size *= 2) {
    for (int stride = size / 2; stride > 0; stride /= 2) {
      for (int i = threadIdx.x; i < padded / 2; i += kRowThreads) {
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

// Which bin a token is in. Monotone: a token that is later in the order is in no earlier bin.
struct Bins {
  int top_key, shift;
  float top, scale;  // scale 0: by key

  // Bins of equal width over `span` below the top, the last one open.
  static __device__ __forceinline__ Bins by_logit(int top_key, int bottom_key, float span) {
    Bins bins = by_key(top_key, bottom_key);
    const float scale = __fdividef(kBins, span);
    if (span > 0.0f && scale > 0.0f && scale < 1e30f) bins.scale = scale;
    return bins;
  }

  // Bins over the keys from the top to the bottom, at least two if those differ.
  static __device__ __forceinline__ Bins by_key(int top_key, int bottom_key) {
    const unsigned range = static_cast<unsigned>(top_key) - static_cast<unsigned>(bottom_key);
    return {top_key, max(24 - __clz(static_cast<int>(range)), 0), key_logit(top_key), 0.0f};
  }

  __device__ __forceinline__ int operator()(float logit, int key) const {
    if (scale > 0.0f) return static_cast<int>(fminf((top - logit) * scale, kBins - 1.0f));
    const unsigned distance = static_cast<unsigned>(top_key) - static_cast<unsigned>(key);
    return static_cast<int>(min(distance >> shift, kBins - 1u));
  }
};

// Sums measure(logit) over the tokens of `kept` with keys from bottom_key to top_key, into a sum a
// bin. All threads of the block call it.
template <typename T, int kWidth, typename Measure>
__device__ __forceinline__ void fill_bins(
    const T* row,
    int vocab,
    Prefix kept,
    int top_key,
    int bottom_key,
    Bins bins,
    Measure measure,
    PrefixScratch& s) {
  for (int bin = warp_index(); bin < kBins; bin += kRowWarps) {
    s.bins.high[bin][lane_index()] = s.bins.low[bin][lane_index()] = 0;
  }
  __syncthreads();
  visit_row<T, kWidth>(row, vocab, [&](float logit, int id) {
    const int key = order_key(logit);
    if (key < bottom_key || key > top_key || !kept.holds(key, id)) return;
    const Fixed term = measure(logit);
    const int bin = bins(logit, key);
    if (term.high != 0) atomicAdd(&s.bins.high[bin][lane_index()], term.high);
    if (term.low != 0) atomicAdd(&s.bins.low[bin][lane_index()], term.low);
  });
  __syncthreads();
  for (int bin = warp_index(); bin < kBins; bin += kRowWarps) {
    const Fixed own = {s.bins.high[bin][lane_index()], s.bins.low[bin][lane_index()]};
    const Sum sum = warp_sum(own.joined());
    if (lane_index() == 0) s.sums[bin] = sum;
  }
  __syncthreads();
}

// The prefix that ends at the first of `count` sorted candidates at which the sum reaches the goal.
// All threads of the block call it.
template <typename Measure>
__device__ __forceinline__ Prefix end_in_candidates(int count, Measure measure, PrefixScratch& s) {
  auto value = [&](int index) {
    return index < count ? measure(key_logit(candidate_key(s.candidates[index]))).joined() : Sum(0);
  };
  for (int group = warp_index(); group < kMaxCandidates / kGroup; group += kRowWarps) {
    Sum own = 0;
    for (int i = lane_index(); i < kGroup; i += 32) own += value(group * kGroup + i);
    const Sum sum = warp_sum(own);
    if (lane_index() == 0) s.sums[group] = sum;
  }
  __syncthreads();
  if (warp_index() == 0) {
    const Found group = warp_search<kMaxCandidates / kGroup / 32>(
        0, s.before, s.goal - 1, [&](int index) { return s.sums[index]; });
    const Found last =
        warp_search<kGroup / 32>(group.index * kGroup, group.before, s.goal - 1, value);
    const Sum candidate = s.candidates[min(last.index, count - 1)];
    if (lane_index() == 0) s.found = {candidate_key(candidate), candidate_id(candidate)};
  }
  __syncthreads();
  return s.found;
}

// The shortest prefix whose sum of measure(logit) reaches goal(sum over `kept`), at least 1; or
// `kept`, if the goal is no less than that sum. All threads of the block call it.
//
// The bins of the first round share `span` below the highest logit. They only decide how fast the
// end is found.
template <typename T, int kWidth, typename Measure, typename Goal>
__device__ __forceinline__ Prefix shortest_prefix(
    const T* row,
    int vocab,
    Extent extent,
    Prefix kept,
    float span,
    Measure measure,
    Goal goal,
    PrefixScratch& s) {
  int top_key = extent.top_key, bottom_key = kLowestInt;
  Bins bins = Bins::by_logit(top_key, extent.bottom_key, span);
  __syncthreads();  // the scratch may still be read
  if (threadIdx.x == 0) s.before = s.goal = 0;
  while (true) {
    fill_bins<T, kWidth>(row, vocab, kept, top_key, bottom_key, bins, measure, s);
    if (warp_index() == 0) {
      Sum wanted = s.goal;
      if (wanted == 0) {  // the first round
        Sum own = 0;
        for (int bin = lane_index(); bin < kBins; bin += 32) own += s.sums[bin];
        const Sum total = warp_sum(own);
        wanted = goal(total);
        if (wanted >= total) wanted = 0;
      }
      if (wanted > 0) {
        const Found end = warp_search<kBins / 32>(
            0, s.before, wanted - 1, [&](int index) { return s.sums[index]; });
        __syncwarp();
        if (lane_index() == 0) {
          s.bin = end.index;
          s.before = end.before;
          s.num_candidates = 0;
          s.top_key = kLowestInt;
          s.bottom_key = kHighestInt;
        }
      }
      __syncwarp();
      if (lane_index() == 0) s.goal = wanted;
    }
    __syncthreads();
    if (s.goal == 0) return kept;

    const int bin = s.bin;
    int own_top = kLowestInt, own_bottom = kHighestInt;
    visit_row<T, kWidth>(row, vocab, [&](float logit, int id) {
      const int key = order_key(logit);
      if (key < bottom_key || key > top_key || !kept.holds(key, id)) return;
      if (bins(logit, key) != bin) return;
      add_candidate(s, key, id);
      own_top = max(own_top, key);
      own_bottom = min(own_bottom, key);
    });
    own_top = __reduce_max_sync(0xffffffffu, own_top);
    own_bottom = __reduce_min_sync(0xffffffffu, own_bottom);
    if (lane_index() == 0) {
      atomicMax(&s.top_key, own_top);
      atomicMin(&s.bottom_key, own_bottom);
    }
    __syncthreads();
    const int count = s.num_candidates;
    if (count <= kMaxCandidates) {
      sort_candidates(s, count);
      return end_in_candidates(count, measure, s);
    }
    top_key = s.top_key;
    bottom_key = s.bottom_key;
    if (top_key == bottom_key) {  // ties: the lowest ids
      const Sum wanted = s.goal - s.before;
      auto tied = [&](float logit, int id) {
        const bool is_tied = order_key(logit) == top_key && kept.holds(top_key, id);
        return is_tied ? measure(logit) : Fixed{0, 0};
      };
      auto goal_of_ties = [&](Sum) { return wanted - 1; };
      return {top_key, lowest_id_above<T, kWidth>(row, vocab, s.sums, tied, goal_of_ties)};
    }
    bins = Bins::by_key(top_key, bottom_key);
  }
}
