// Sampling of few rows on sm_90a: a cluster of blocks to a row, which has the row in shared memory.
//
// With few rows a launch is a chain of latencies, so the row is read once, and the blocks meet where many
// rows have a launch: to know what is likeliest, the sums of the filters' bins, and the candidates. What
// a block finds, the others read from its shared memory, and all of them go on with the same numbers: the
// one that has the token writes it. Candidates are not sorted: bins of a bin tell which of them is the last.
#pragma once
#include "row_cluster.cuh"
#include "sample_row.cuh"

constexpr int kCopies = 8;   // of a block's bins: no half of a sum has more than 4,096 terms
constexpr int kFew = 128;    // candidates that are compared with each other
constexpr int kMaxRun = 64;  // tokens of a thread

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
template <typename T>
struct RankWork {
  // What the other blocks read.
  RankExtent extent;
  RankSum sum;
  BinTotal bins[kBins];
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
  Row<T> row;
  Request request;
  Draw draw;
  Sum before;  // of the tokens before the run that has the token
  int run;
};

static_assert(sizeof(RankWork<float>) <= 51 * 1024, "what sample.py reserves");

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
    const Sum reached = before + scan_of_block(own).reached;
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
  // Some threads add up what is not after a candidate.
  constexpr int kTeam = kThreads / kFew;
  const int few = s.count, which = threadIdx.x / kTeam;
  Sum sum = 0;
  const Sum own = which < few ? s.few[which] : Sum(0);
#pragma unroll 4
  for (int i = threadIdx.x % kTeam; i < few; i += kTeam) {
    sum += s.few[i] <= own ? s.few_terms[i] : Sum(0);
  }
#pragma unroll
  for (int offset = kTeam / 2; offset > 0; offset >>= 1)
    sum += __shfl_xor_sync(kAllLanes, sum, offset);
  const Sum reached = before + sum;
  if (threadIdx.x % kTeam == 0 && which < few) {
    if (reached >= wanted && reached - s.few_terms[which] < wanted) s.found = own;
  }
  __syncthreads();
  return s.found;
}

// Looks through a row alone, in the memory of the tile: for odd rows. It loads tokens one by one, which takes
// fewer registers. All threads of the block call it.
template <typename T>
__device__ __noinline__ int draw_alone(
    const Row<T>& row, const Request& request, const Draw& draw, int top_key, RowScratch& scratch) {
  const Extent extent = {top_key, 0, 0};
  const Prefix kept = end_of_filters_in_row<T, 1>(row, request, draw, extent, scratch);
  return lowest_id_above<T, 1>(
      row,
      [&](float logit, int id) {
        return kept.holds(order_key(logit), id) ? draw.weight(logit) : Fixed{0, 0};
      },
      [&](Sum total) { return share_of_draw(total, request.draw); }, scratch);
}

// Samples a row. The cluster's blocks call it; the one that has the token gets it, the others get -2.
template <typename T, int kWidth>
struct FewRowsSampler {
  using Work = RankWork<T>;
  static constexpr int kNotHere = -2;

  Work& s;  // of which thread 0 knows the row, and what it asks for
  PartTile tile;
  int rank, begin, tokens;  // the block's part of the row

  __device__ __forceinline__ int sample(
      const T* logits, int vocab, PartLoads<T, kWidth>& loads) const {
    fill_part(logits, vocab, loads, begin, tokens, tile);
    if (s.row.is_adjusted()) {
      adjust_part<T, kWidth>(s.row, begin, min(begin + tokens, vocab), tile);
    }
    Extent own = Extent::nothing();
    tile.visit([&](float logit, int i) { own.include(logit, begin + i); });
    const Extent of_block = block_extent(own);
    const bool is_drawn = s.request.is_drawn;
    tell_extent(s.extent, of_block, is_drawn ? estimate_of(own, of_block, vocab) : 0.0f);
    meet();
    int top_key;  // lane r: of block r
    float estimate;
    const Extent extent = extent_of_ranks(s.extent, top_key, estimate);
    if (!is_drawn || extent.is_broken()) {
      cluster_arrive();
      if (rank > 0) return kNotHere;
      return extent.is_broken() ? -1 : extent.top_id;
    }
    return draw(extent, floor_of(extent, top_key, estimate, vocab));
  }

  // Of a block's tokens: a logit that its share of top_k's tokens is not below; or a part of the sum of
  // weights, relative to the block's likeliest.
  __device__ __forceinline__ float estimate_of(Extent own, Extent of_block, int vocab) const {
    const int used = used_ranks(vocab, tokens);
    if (s.request.top_k > 0) return floor_of_share(s.request.top_k, used, own, of_block);
    if (s.request.top_p >= 1.0f || of_block.top_key <= -kInfinityKey) return 0.0f;
    const float below = key_logit(own.top_key) - key_logit(of_block.top_key);
    const bool counts = own.top_key > -kInfinityKey;
    return block_sum<kThreads>(counts ? expf(__fdividef(below, s.request.temperature)) : 0.0f);
  }

  // As filter_floor, from what lane r knows of block r.
  __device__ __forceinline__ float floor_of(
      Extent extent, int top_key, float estimate, int vocab) const {
    if (s.request.top_k > 0) return lowest_of_ranks(estimate, used_ranks(vocab, tokens));
    const float peak = key_logit(extent.top_key), t = s.request.temperature;
    float weight = 0.0f;
    if (lane_index() < kRanks && estimate > 0.0f) {
      weight = estimate * expf(__fdividef(key_logit(top_key) - peak, t));
    }
    const float total = fmaxf(lanes_sum<32>(weight), 1.0f);
    return peak + t * logf((1.0f - s.request.top_p) * total / static_cast<float>(vocab));
  }

  __device__ __forceinline__ int draw(Extent extent, float floor) const {
    if (threadIdx.x == 0) {
      s.draw = drawing(s.request, extent, floor);
      s.sum = {0, 0, 0};
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < kCopies * kBins; i += kThreads) s.high[i] = s.low[i] = 0;
    if (threadIdx.x < kBins) s.counts[threadIdx.x] = 0;
    __syncthreads();
    const bool is_filtered = s.draw.is_filtered;
    Ends ends = {kBins, kBins, kBins, 0, 0, 0, 0};
    if (is_filtered) ends = fill_bins();

    // Once with all that min_p keeps; or, in the block that has the token, with what the filters keep.
    Prefix kept = {order_key(s.draw.min_logit), kHighestInt};
    Sum goal = 0, before = 0, own = 0;
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {
      if (is_filtered == (turn == 1)) own = weigh_run(kept);
      if (turn == 1) break;
      if (is_filtered) {
        list_candidates(ends);
      } else {
        add_to_block(own);
      }
      meet();
      const RanksSums known(s.sum);
      if (__any_sync(kAllLanes, known.theirs > kOwnCandidates) || known.all > kMaxCandidates) {
        cluster_arrive();
        RowScratch& scratch = *reinterpret_cast<RowScratch*>(tile.words);
        if (rank > 0) return kNotHere;
        return draw_alone<T>(s.row, s.request, s.draw, extent.top_key, scratch);
      }
      Sum of_rank = known.sum;  // in lane r: of what is kept in block r
      if (is_filtered) {
        gather_candidates(s.candidates, known, s.gathered);
        cluster_arrive();  // what others have has been read
        kept = last_of_filters(ends, known.all, kept);
        of_rank += kept_candidates(kept, known);
      } else {
        cluster_arrive();
      }
      Sum up_to = of_rank;
#pragma unroll
      for (int offset = 1; offset < kRanks; offset <<= 1) {
        const Sum left = __shfl_up_sync(kAllLanes, up_to, offset);
        if (lane_index() >= offset) up_to += left;
      }
      goal = share_of_draw(__shfl_sync(kAllLanes, up_to, kRanks - 1), s.request.draw);
      const Sum end = __shfl_sync(kAllLanes, up_to, rank);
      before = end - __shfl_sync(kAllLanes, of_rank, rank);
      if (before > goal || end <= goal) return kNotHere;
    }
    return token_of(kept, own, before, goal);
  }

  // The sums of the row's bins, and where the filters' prefixes end in them.
  __device__ __forceinline__ Ends fill_bins() const {
    const Draw draw = s.draw;
    const bool has_counts = s.request.top_k > 0;
    const int copy = warp_index() % kCopies * kBins;
    Fixed rest = {0, 0};  // of the last bin, which most tokens are in
    int rest_count = 0;
    tile.visit([&](float logit, int) {
      const int bin = Places::bin(draw.places(logit));
      const Fixed term = draw.weight(logit);
      const bool counts = logit >= draw.min_logit, is_rest = counts & (bin == kBins - 1);
      const bool has_bin = counts & !is_rest;
      if (has_bin) atomicAdd(&s.high[copy + bin], term.high);
      if (has_bin) atomicAdd(&s.low[copy + bin], term.low);
      if (has_bin & has_counts) atomicAdd(&s.counts[bin], 1u);
      rest_count += is_rest ? 1 : 0;
      rest.add({is_rest ? term.high : 0u, is_rest ? term.low : 0});
    });
    rest = warp_sum(rest);
    rest_count = __reduce_add_sync(kAllLanes, rest_count);
    if (lane_index() == 0) {
      atomicAdd(&s.high[copy + kBins - 1], rest.high);
      atomicAdd(&s.low[copy + kBins - 1], rest.low);
      atomicAdd(&s.counts[kBins - 1], static_cast<unsigned>(rest_count));
    }
    __syncthreads();
    const int bin = threadIdx.x;
    if (bin < kBins) {
      Sum weight = 0;
#pragma unroll
      for (int i = bin; i < kCopies * kBins; i += kBins)
        weight += Fixed{s.high[i], s.low[i]}.joined();
      s.bins[bin] = {weight, s.counts[bin]};
    }
    meet();
    BinTotal total = {0, 0};
    if (bin < kBins) {
#pragma unroll
      for (int r = 0; r < kRanks; ++r) {
        const uint4 found = four_words_of(&s.bins[bin], r);
        total.weight += sum_of(found.x, found.y);
        total.count += sum_of(found.z, found.w);
      }
    }
    return find_ends(
        s.request, total.weight, total.count, [](Sum own) { return scan_of_block(own); });
  }

  // Lists the tokens among which the prefixes end, and adds up those that are kept wherever they do.
  __device__ __forceinline__ void list_candidates(const Ends& ends) const {
    const Draw draw = s.draw;
    const int first = min(ends.first, ends.k_bin);
    const float begin_place = Places::edge(first);
    const float end_place = ends.first < kBins ? Places::edge(ends.last + 1) : begin_place;
    const float k_begin = Places::edge(ends.k_bin), k_end = Places::edge(ends.k_bin + 1);
    const int begin_of_run = tile.first();
    unsigned chosen[kMaxRun / 32] = {};  // by the last bits of their places
    tile.visit([&](float logit, int i) {
      const float place = draw.places(logit);
      const bool may_end =
          ((place >= begin_place) & (place < end_place)) | ((place >= k_begin) & (place < k_end));
      const unsigned bit = (may_end & (logit >= draw.min_logit)) ? 1u << (i & 31) : 0u;
      const bool is_first = i - begin_of_run < 32;
      chosen[0] |= is_first ? bit : 0u;
      chosen[1] |= is_first ? 0u : bit;
    });
#pragma unroll
    for (int half = 0; half < kMaxRun / 32; ++half) {
      if (!__any_sync(kAllLanes, chosen[half] != 0)) continue;
      const int own = __popc(chosen[half]);
      int at = own;
#pragma unroll
      for (int offset = 1; offset < 32; offset <<= 1) {
        const int left = __shfl_up_sync(kAllLanes, at, offset);
        if (lane_index() >= offset) at += left;
      }
      int before = 0;
      if (lane_index() == 31) before = atomicAdd(&s.sum.num_candidates, at);
      at += __shfl_sync(kAllLanes, before, 31) - own;
      const int first_bit = (begin_of_run & ~31) + 32 * half;
#pragma unroll 1
      for (unsigned left = chosen[half]; left != 0; left &= left - 1, ++at) {
        const int i = first_bit + __ffs(static_cast<int>(left)) - 1;
        if (at < kOwnCandidates) s.candidates[at] = pack_candidate(order_key(tile[i]), begin + i);
      }
    }
    if (threadIdx.x < kBins)
      add_to_block(threadIdx.x < first ? s.bins[threadIdx.x].weight : Sum(0));
  }

  // Adds to the block's sum. All lanes of the warp call it.
  __device__ __forceinline__ void add_to_block(Sum own) const {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) own += __shfl_xor_sync(kAllLanes, own, offset);
    if (lane_index() == 0) atomicAdd(&s.sum.sum, own);
  }

  // What the filters keep, by the candidates that are gathered.
  __device__ __forceinline__ Prefix
  last_of_filters(const Ends& ends, int count, Prefix kept) const {
    const Draw draw = s.draw;
    const auto weight_of = [&](Sum candidate) {
      return draw.weight(key_logit(candidate_key(candidate)));
    };
    Sum total = ends.all;
#pragma unroll 1  // both filters in one copy of the code
    for (int filter = 0; filter < 2; ++filter) {
      const bool is_top_k = filter == 0;
      if (is_top_k ? ends.k_bin >= kBins : s.request.top_p >= 1.0f) continue;
      const float from = is_top_k ? Places::edge(ends.k_bin) : 0.0f;
      const auto counts = [&](Sum candidate) {
        return draw.places(key_logit(candidate_key(candidate))) >= from;
      };
      const Sum end = first_to_reach(
          s.gathered, count, counts, is_top_k ? Sum(0) : ends.before,
          is_top_k ? Sum(ends.k_left) : share_of_prefix(total, s.request.top_p),
          [&](Sum candidate) { return is_top_k ? Fixed{0, 1} : weight_of(candidate); },
          s.selection);
      kept = up_to_candidate(end);
      if (is_top_k && s.request.top_p < 1.0f) {
        Sum own = 0;
#pragma unroll 1
        for (int i = threadIdx.x; i < count; i += kThreads) {
          const Sum candidate = s.gathered[i];
          if (counts(candidate) && candidate <= end) own += weight_of(candidate).joined();
        }
        total = ends.k_before + scan_of_block(own).total;
      }
    }
    return kept;
  }

  // In lane r: the sum of the candidates of block r that are kept.
  __device__ __forceinline__ Sum kept_candidates(Prefix kept, const RanksSums& known) const {
    const Draw draw = s.draw;
    const int rank = warp_index() / 2;
    const int count = __shfl_sync(kAllLanes, known.theirs, rank);
    const Sum* from = s.gathered + __shfl_sync(kAllLanes, known.up_to - known.theirs, rank);
    Fixed sum = {0, 0};
#pragma unroll 1
    for (int i = warp_index() % 2 * 32 + lane_index(); i < count; i += 64) {
      const Sum candidate = from[i];
      const int key = candidate_key(candidate);
      if (kept.holds(key, candidate_id(candidate))) sum.add(draw.weight(key_logit(key)));
    }
    sum = warp_sum(sum);
    if (lane_index() == 0) s.selection.few_terms[warp_index()] = sum.joined();
    __syncthreads();
    if (lane_index() >= kRanks) return 0;
    const Sum* of_rank = s.selection.few_terms + 2 * lane_index();
    return of_rank[0] + of_rank[1];
  }

  // The sum of the thread's kept tokens.
  __device__ __forceinline__ Sum weigh_run(Prefix kept) const {
    const Draw draw = s.draw;
    Fixed sum = {0, 0};
    tile.visit([&](float logit, int i) { sum.add(weigh(draw, kept, logit, i)); });
    return sum.joined();
  }

  __device__ __forceinline__ Fixed weigh(const Draw& draw, Prefix kept, float logit, int i) const {
    const Fixed term = draw.weight(logit);  // of all: a branch would take longer
    const bool holds = kept.holds(order_key(logit), begin + i);
    return {holds ? term.high : 0u, holds ? term.low : 0};
  }

  // The token at which the sum exceeds the goal, in the block that has it; `own` is the thread's.
  __device__ __forceinline__ int token_of(Prefix kept, Sum own, Sum before, Sum goal) const {
    const Sum reached = before + scan_of_block(own).reached;
    if (reached > goal && reached - own <= goal) {
      s.run = threadIdx.x;
      s.before = reached - own;
    }
    __syncthreads();
    const Draw draw = s.draw;
    const int first = s.run << tile.run_bits;
    Sum passed = s.before;
    int i = 0, found;
#pragma unroll 1
    while (true) {  // 32 tokens at a time
      const bool is_token = i + lane_index() < tile.run();
      const int token = first + (is_token ? i + lane_index() : 0);
      const Sum of_lane = is_token ? weigh(draw, kept, tile[token], token).joined() : Sum(0);
      Sum up_to = of_lane;
#pragma unroll
      for (int offset = 1; offset < 32; offset <<= 1) {
        const Sum left = __shfl_up_sync(kAllLanes, up_to, offset);
        if (lane_index() >= offset) up_to += left;
      }
      up_to += passed;
      found = __ffs(static_cast<int>(__ballot_sync(kAllLanes, up_to > goal))) - 1;
      if (found >= 0) break;
      passed = __shfl_sync(kAllLanes, up_to, 31);
      i += 32;
    }
    return begin + first + i + found;
  }
};
