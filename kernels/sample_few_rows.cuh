// Sampling of few rows on sm_90a: a cluster of blocks to a row, which has the row in shared memory.
//
// With few rows a launch is a chain of latencies, so the row is read once, and the blocks meet where many
// rows have a launch: to know what is likeliest, the sums of the filters' bins, and the candidates. What
// a block finds, the others read from its shared memory, and all of them go on with the same numbers: the
// one that has the token writes it. Candidates are not sorted: bins of a bin tell which of them is the last.
#pragma once
#include "row_cluster.cuh"
#include "sample_row.cuh"

constexpr int kCopies = 8;  // of a block's bins: no half of a sum has more than 4,096 terms
constexpr int kFew = 64;    // candidates that are compared with each other

struct alignas(16) BinTotal {
  Sum weight, count;
};

// What it takes to find a candidate among others.
struct Selection {
  unsigned high[kBins];
  int low[kBins];
  unsigned lowest, highest;
  int count, num_few, bin;
  Sum before, found;
  Sum few[kFew], few_terms[kFew];
};

// The beginning of a block's dynamic shared memory. Behind it lies its part of the row, in float32.
struct RankWork {
  // What the other blocks read.
  RankExtent extent;
  alignas(16) int num_candidates[4];
  BinTotal bins[kBins];
  Sum kept[kGroups];  // by warp
  Sum candidates[kOwnCandidates];
  // The block's own.
  union {
    struct {
      unsigned high[kCopies * kBins];
      int low[kCopies * kBins];
      unsigned counts[kBins];
    };
    Sum gathered[kMaxCandidates];
  };
  Selection selection;
  Sum group_sums[kMaxOwnChunks * kChunk / 128];
};

static_assert(sizeof(RankWork) <= 60 * 1024, "what sample.py reserves");
static_assert(sizeof(RankWork) % 16 == 0, "the row is read in vectors");

// Calls visit(candidate) for those from `first` to `last` that `counts` holds for, in one thread each.
template <typename Counts, typename Visit>
__device__ __forceinline__ void visit_candidates(
    const Sum* candidates, int num_candidates, Sum first, Sum last, Counts counts, Visit visit) {
#pragma unroll 1
  for (int i = threadIdx.x; i < num_candidates; i += kThreads) {
    const Sum candidate = candidates[i];
    if (candidate >= first && candidate <= last && counts(candidate)) visit(candidate);
  }
}

// Of the candidates that `counts` holds for, in the order, the first at which `before` and the measures up
// to it reach `wanted`, which all of them do. All threads of the block call it.
template <typename Counts, typename Measure>
__device__ __forceinline__ Sum first_to_reach(
    const Sum* candidates,
    int num_candidates,
    Counts counts,
    Sum before,
    Sum wanted,
    Measure measure,
    Selection& s) {
  Sum first = 0, last = ~Sum(0);  // it is one of these
#pragma unroll 1
  while (true) {
    const bool by_id = first >> 32 == last >> 32;  // their logits are equal
    const auto part = [&](Sum candidate) {
      return static_cast<unsigned>(by_id ? candidate : candidate >> 32);
    };
    __syncthreads();  // the selection may still be read
    if (threadIdx.x < kBins) s.high[threadIdx.x] = s.low[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
      s.lowest = ~0u;
      s.highest = 0;
      s.count = s.num_few = 0;
    }
    __syncthreads();
    unsigned own_lowest = ~0u, own_highest = 0;
    int own_count = 0;
    visit_candidates(candidates, num_candidates, first, last, counts, [&](Sum candidate) {
      own_lowest = min(own_lowest, part(candidate));
      own_highest = max(own_highest, part(candidate));
      ++own_count;
    });
    own_lowest = __reduce_min_sync(kAllLanes, own_lowest);
    own_highest = __reduce_max_sync(kAllLanes, own_highest);
    own_count = __reduce_add_sync(kAllLanes, own_count);
    if (lane_index() == 0 && own_count > 0) {
      atomicMin(&s.lowest, own_lowest);
      atomicMax(&s.highest, own_highest);
      atomicAdd(&s.count, own_count);
    }
    __syncthreads();
    if (s.count <= kFew) break;
    const unsigned lowest = s.lowest, range = s.highest - lowest;
    if (range == 0) {
      first = static_cast<Sum>(lowest) << 32;
      last = first | 0xffffffffu;
      continue;
    }
    const int shift = max(24 - __clz(static_cast<int>(range)), 0);
    visit_candidates(candidates, num_candidates, first, last, counts, [&](Sum candidate) {
      const Fixed term = measure(candidate);
      const unsigned bin = (part(candidate) - lowest) >> shift;
      if (term.high != 0) atomicAdd(&s.high[bin], term.high);
      if (term.low != 0) atomicAdd(&s.low[bin], term.low);
    });
    __syncthreads();
    const int bin = threadIdx.x;
    const Sum own = bin < kBins ? Fixed{s.high[bin], s.low[bin]}.joined() : Sum(0);
    const Sum reached = before + block_scan<kThreads>(own).reached;
    if (reached >= wanted && reached - own < wanted) {
      s.bin = bin;
      s.before = reached - own;
    }
    __syncthreads();
    before = s.before;
    const unsigned from = lowest + (static_cast<unsigned>(s.bin) << shift);
    const unsigned to = from + min((1u << shift) - 1, s.highest - from);
    if (by_id) {
      const Sum tied = first >> 32 << 32;
      first = tied | from;
      last = tied | to;
    } else {
      first = static_cast<Sum>(from) << 32;
      last = static_cast<Sum>(to) << 32 | 0xffffffffu;
    }
  }
  visit_candidates(candidates, num_candidates, first, last, counts, [&](Sum candidate) {
    const int at = atomicAdd(&s.num_few, 1);
    s.few[at] = candidate;
    s.few_terms[at] = measure(candidate).joined();
  });
  __syncthreads();
  const int few = s.count;
  if (threadIdx.x < few) {
    const Sum own = s.few[threadIdx.x];
    Sum reached = before;
#pragma unroll 4
    for (int i = 0; i < few; ++i) reached += s.few[i] <= own ? s.few_terms[i] : Sum(0);
    if (reached >= wanted && reached - s.few_terms[threadIdx.x] < wanted) s.found = own;
  }
  __syncthreads();
  return s.found;
}

// Samples a row. The cluster's blocks call it; the one that has the token gets it, the others get -2.
template <typename T, int kWidth>
struct FewRowsSampler {
  static constexpr int kNotHere = -2;

  const Row<T>& row;
  const Request& request;
  int rank, begin, tokens;  // the block's part of the row
  float* tile;
  RankWork& s;

  __device__ __forceinline__ int sample(PartLoads<T, kWidth>& loads) {
    fill_part(row, loads, begin, tokens, tile);
    Extent own = Extent::nothing();
    visit_tile(tile, begin, tokens, [&](float logit, int id) { own.include(logit, id); });
    const Extent of_block = block_extent(own);
    const float estimate = request.is_drawn ? estimate_of(own, of_block) : 0.0f;
    tell_extent(s.extent, of_block, estimate);
    meet();
    int top_key;  // lane r: of block r
    float their_estimate;
    const Extent extent = extent_of_ranks(s.extent, top_key, their_estimate);
    if (!request.is_drawn || extent.is_broken()) {
      cluster_arrive();
      if (rank > 0) return kNotHere;
      return extent.is_broken() ? -1 : extent.top_id;
    }
    return draw(extent, floor_of(extent, top_key, their_estimate));
  }

  // Of a block's tokens: a logit that its share of top_k's tokens is not below; or a part of the sum of
  // weights, relative to the block's likeliest.
  __device__ __forceinline__ float estimate_of(Extent own, Extent of_block) const {
    if (request.top_k > 0) return floor_of_share(request.top_k, own, of_block);
    const bool has_any = of_block.top_key > -kInfinityKey;
    if (request.top_p >= 1.0f || !has_any) return 0.0f;
    const float below = key_logit(own.top_key) - key_logit(of_block.top_key);
    const bool counts = own.top_key > -kInfinityKey;
    return block_sum<kThreads>(counts ? expf(__fdividef(below, request.temperature)) : 0.0f);
  }

  // As filter_floor, from what lane r knows of block r.
  __device__ __forceinline__ float floor_of(Extent extent, int top_key, float estimate) const {
    const bool knows = lane_index() < kRanks;
    if (request.top_k > 0) return lowest_of_ranks(estimate);
    const float peak = key_logit(extent.top_key), t = request.temperature;
    float weight = 0.0f;
    if (knows && estimate > 0.0f) {
      weight = estimate * expf(__fdividef(key_logit(top_key) - peak, t));
    }
    const float total = fmaxf(lanes_sum<32>(weight), 1.0f);
    return peak + t * logf((1.0f - request.top_p) * total / static_cast<float>(row.vocab));
  }

  __device__ __forceinline__ int draw(Extent extent, float floor) {
    __shared__ Draw shared_draw;
    if (threadIdx.x == 0) shared_draw = drawing(request, extent, floor);
    if (threadIdx.x < 4) s.num_candidates[threadIdx.x] = 0;
    const bool is_filtered = request.top_k > 0 || request.top_p < 1.0f;
    if (is_filtered) {
      for (int i = threadIdx.x; i < kCopies * kBins; i += kThreads) {
        s.high[i] = s.low[i] = 0;
      }
      if (threadIdx.x < kBins) s.counts[threadIdx.x] = 0;
    }
    __syncthreads();
    const Draw draw = shared_draw;
    Ends ends = {kBins, kBins, kBins, 0, 0, 0};
    Sum all_weights = 0;
    unsigned k_count = 0;
    if (is_filtered) {
      fill_bins(draw);
      meet();
      BinTotal total = {0, 0};
      if (threadIdx.x < kBins) {
#pragma unroll
        for (int r = 0; r < kRanks; ++r) {
          const uint4 found = four_words_of(&s.bins[threadIdx.x], r);
          total.weight += sum_of(found.x, found.y);
          total.count += sum_of(found.z, found.w);
        }
      }
      ends = find_ends(request, total.weight, total.count);
      all_weights = block_scan<kThreads>(total.weight).total;
    }
    classify(draw, ends);
    meet();

    // Two warps fetch the candidates of a block.
    int theirs, up_to;
    const int count = candidates_of_ranks(s.num_candidates, theirs, up_to);
    if (__any_sync(kAllLanes, theirs > kOwnCandidates) || count > kMaxCandidates) {
      cluster_arrive();
      return rank == 0 ? draw_alone(draw, extent) : kNotHere;
    }
    static_assert(kGroups == 2 * kRanks, "two warps for each block");
    const int from_rank = warp_index() / 2, first = warp_index() % 2 * 32 + lane_index();
    const int num_from = __shfl_sync(kAllLanes, theirs, from_rank);
    Sum* gathered = s.gathered + __shfl_sync(kAllLanes, up_to - theirs, from_rank);
#pragma unroll 1
    for (int i = first; i < num_from; i += 64) {
      gathered[i] = sum_of_rank(&s.candidates[i], from_rank);
    }
    Sum sure = 0;  // thread 16 * r + w: of warp w of block r
    if (threadIdx.x < kRanks * kGroups) {
      sure = sum_of_rank(&s.kept[threadIdx.x % kGroups], threadIdx.x / kGroups);
    }
    cluster_arrive();  // what others have has been read

    Prefix kept = {order_key(draw.min_logit), kHighestInt};
    if (is_filtered) {
      kept = last_of_filters(draw, ends, count, all_weights, kept);
      Fixed term = {0, 0};
#pragma unroll 1
      for (int i = first; i < num_from; i += 64) {
        const Sum candidate = gathered[i];
        const int key = candidate_key(candidate);
        if (kept.holds(key, candidate_id(candidate))) term.add(draw.weight(key_logit(key)));
      }
      term = warp_sum(term);
      if (lane_index() == 0) s.selection.few_terms[warp_index()] = term.joined();
      __syncthreads();
      if (threadIdx.x < kRanks * kGroups && threadIdx.x % kGroups < 2) {
        sure += s.selection.few_terms[threadIdx.x / kGroups * 2 + threadIdx.x % kGroups];
      }
    }
    return token_of(draw, kept, sure);
  }

  __device__ __forceinline__ void fill_bins(const Draw& draw) {
    const bool has_counts = request.top_k > 0, has_weights = request.top_p < 1.0f;
    const int copy = warp_index() % kCopies * kBins;
    Fixed rest = {0, 0};  // of the last bin, which most tokens are in
    int rest_count = 0;
    visit_tile(tile, begin, tokens, [&](float logit, int) {
      if (logit < draw.min_logit) return;
      const int bin = Places::bin(draw.places(logit));
      const bool is_rest = bin == kBins - 1;
      if (has_counts) {
        if (is_rest) {
          ++rest_count;
        } else {
          atomicAdd(&s.counts[bin], 1u);
        }
      }
      const Fixed term = draw.weight(logit);
      if (is_rest) {
        rest.add(term);
      } else {
        if (term.high != 0) atomicAdd(&s.high[copy + bin], term.high);
        if (term.low != 0) atomicAdd(&s.low[copy + bin], term.low);
      }
    });
    rest = warp_sum(rest);
    rest_count = __reduce_add_sync(kAllLanes, rest_count);
    if (lane_index() == 0) {
      atomicAdd(&s.high[copy + kBins - 1], rest.high);
      atomicAdd(&s.low[copy + kBins - 1], rest.low);
      if (rest_count > 0) atomicAdd(&s.counts[kBins - 1], static_cast<unsigned>(rest_count));
    }
    __syncthreads();
    const int bin = threadIdx.x;
    if (bin < kBins) {
      Sum weight = 0;
#pragma unroll
      for (int i = bin; i < kCopies * kBins; i += kBins) weight += Fixed{s.high[i], s.low[i]}.joined();
      s.bins[bin] = {weight, s.counts[bin]};
    }
  }

  // Leaves the sums of what is kept wherever the prefixes end, and lists the candidates.
  __device__ __forceinline__ void classify(const Draw& draw, const Ends& ends) {
    const float kept_end = Places::edge(min(ends.first, ends.k_bin));
    const float top_p_end = ends.first < kBins ? Places::edge(ends.last + 1) : 0.0f;
    const float k_begin = Places::edge(ends.k_bin), k_end = Places::edge(ends.k_bin + 1);
    Fixed kept = {0, 0};
    visit_tile(tile, begin, tokens, [&](float logit, int id) {
      if (logit < draw.min_logit) return;
      const float place = draw.places(logit);
      if (place < kept_end) {
        kept.add(draw.weight(logit));
      } else if (place < top_p_end || (place >= k_begin && place < k_end)) {
        const int at = atomicAdd(&s.num_candidates[0], 1);
        if (at < kOwnCandidates) s.candidates[at] = pack_candidate(order_key(logit), id);
      }
    });
    kept = warp_sum(kept);
    if (lane_index() == 0) s.kept[warp_index()] = kept.joined();
  }

  // What the filters keep, by the candidates that are gathered.
  __device__ __forceinline__ Prefix last_of_filters(
      const Draw& draw, const Ends& ends, int count, Sum total, Prefix kept) {
    const auto weight_of = [&](Sum candidate) {
      return draw.weight(key_logit(candidate_key(candidate)));
    };
    if (ends.k_bin < kBins) {
      const float k_begin = Places::edge(ends.k_bin);
      const auto is_of_bin = [&](Sum candidate) {
        return draw.places(key_logit(candidate_key(candidate))) >= k_begin;
      };
      const Sum end = first_to_reach(
          s.gathered, count, is_of_bin, 0, ends.k_left, [](Sum) { return Fixed{0, 1}; },
          s.selection);
      kept = up_to_candidate(end);
      if (request.top_p < 1.0f) {
        Sum own = 0;
#pragma unroll 1
        for (int i = threadIdx.x; i < count; i += kThreads) {
          const Sum candidate = s.gathered[i];
          if (is_of_bin(candidate) && candidate <= end) own += weight_of(candidate).joined();
        }
        total = ends.k_before + block_scan<kThreads>(own).total;
      }
    }
    if (request.top_p < 1.0f) {
      kept = up_to_candidate(first_to_reach(
          s.gathered, count, [](Sum) { return true; }, ends.before,
          share_of_prefix(total, request.top_p), weight_of, s.selection));
    }
    return kept;
  }

  // The token, in the block that has it; `own` is a sum of kept weights of block threadIdx.x / 16.
  __device__ __forceinline__ int token_of(const Draw& draw, Prefix kept, Sum own) {
    const auto weigh = [&](float logit, int id) {
      return kept.holds(order_key(logit), id) ? draw.weight(logit) : Fixed{0, 0};
    };
    const Scan of_ranks = block_scan<kThreads>(own);
    const Sum goal = share_of_draw(of_ranks.total, request.draw);
    Sum* edges = s.selection.few_terms + kGroups;  // of the block's part
    if (threadIdx.x == rank * kGroups) edges[0] = of_ranks.reached - own;
    if (threadIdx.x == rank * kGroups + kGroups - 1) edges[1] = of_ranks.reached;
    __syncthreads();
    const Sum before = edges[0];
    if (before > goal || edges[1] <= goal) return kNotHere;

    // Groups are of the 128 tokens that a warp visits at a time.
#pragma unroll 1
    for (int i = threadIdx.x * 4; i < tokens; i += kThreads * 4) {
      Fixed sum = {0, 0};
#pragma unroll
      for (int k = 0; k < 4; ++k) sum.add(weigh(tile[i + k], begin + i + k));
      sum = warp_sum(sum);
      if (lane_index() == 0) s.group_sums[i / 128] = sum.joined();
    }
    __syncthreads();
    const int group = threadIdx.x;
    const Sum of_group = group < tokens / 128 ? s.group_sums[group] : Sum(0);
    const Sum reached = before + block_scan<kThreads>(of_group).reached;
    if (reached > goal && reached - of_group <= goal) {
      s.selection.bin = group;
      s.selection.before = reached - of_group;
    }
    __syncthreads();
    const int first = s.selection.bin * 128 + lane_index() * 4;
    Sum of_lane = 0, up_to = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) of_lane += weigh(tile[first + k], begin + first + k).joined();
    up_to = of_lane;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
      const Sum left = __shfl_up_sync(kAllLanes, up_to, offset);
      if (lane_index() >= offset) up_to += left;
    }
    up_to += s.selection.before;
    const int lane = __ffs(__ballot_sync(kAllLanes, up_to > goal)) - 1;
    Sum passed = up_to - of_lane;
    int k = 0;
#pragma unroll 1
    for (; k < 3; ++k) {
      passed += weigh(tile[first + k], begin + first + k).joined();
      if (passed > goal) break;
    }
    return begin + __shfl_sync(kAllLanes, first + k, lane);
  }

  // For odd rows: this block looks through all of it, in the memory of its tile.
  __device__ __forceinline__ int draw_alone(const Draw& draw, Extent extent) {
    RowScratch& scratch = *reinterpret_cast<RowScratch*>(tile);
    const Prefix kept = end_of_filters_in_row<T, kWidth>(row, request, draw, extent, scratch);
    return lowest_id_above<T, kWidth>(
        row,
        [&](float logit, int id) {
          return kept.holds(order_key(logit), id) ? draw.weight(logit) : Fixed{0, 0};
        },
        [&](Sum total) { return share_of_draw(total, request.draw); }, scratch);
  }
};
