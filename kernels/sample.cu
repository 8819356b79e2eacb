// sample: token_ids[r] = the lowest kept id with (sum of kept w up to it) > u * (sum of kept w),
// w = exp((l - max l) / temperature), kept by min_p, then top_k, then top_p; or the likeliest token.
// l are the logits with biases, bans and penalties, as row_chunks.cuh adjusts them.
//
// Each weight is computed in float32 and rounded to a multiple of 2^-38; sums of weights are exact,
// so it changes nothing how many blocks share a row. A dead row (row id -1) gives 0, a row that is
// no distribution -1. Four launches: the first three have blockIdx.y as the row and chunks of it in
// turns, the last a block a row. Each reads the row once: sample_extents finds what is likeliest,
// sample_bins sums by ranges of logits, sample_candidates collects the tokens among which the
// filters' prefixes end, and sample_draw, which reads one chunk, draws. A row that is not drawn
// leaves at once after the first, one without top_k and top_p after the second has described it.
#include "ptx.cuh"
#include "sample_few_rows.cuh"
#include "sample_row.cuh"

// What the launches hand on of a row.
template <typename T>
struct RowWork {
  Row<T> row;
  Request request;
  Draw draw;
  Ends ends;
  GroupExtents extents;
  Sum bin_weights[kBins];
  unsigned bin_counts[kBins];  // kept where there is a top_k
  Sum group_sums[kMaxGroups];  // of the tokens that are kept wherever the prefixes end
  Sum candidates[kMaxCandidates];
  int num_candidates, unused;
};

static_assert(sizeof(RowWork<float>) <= 47 * 1024, "what sample.py reserves");

template <typename T>
__device__ __forceinline__ RowWork<T>& work_of(unsigned char* workspace, int row) {
  return reinterpret_cast<RowWork<T>*>(workspace)[row];
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, kWidth > 1 ? 2 : 1) sample_extents(
    const T* logits,                  // [rows, vocab]
    const int* row_ids,               // [rows]
    const int* sample_positions,      // [rows]
    int* token_counts,                // [slots, vocab]
    const float* repetition_penalty,  // [slots]
    const float* presence_penalty,    // [slots]
    const float* frequency_penalty,   // [slots]
    const int* bias_ids,              // [slots, max_bias]
    const float* bias_values,         // [slots, max_bias]
    const int* stop_ids,              // [slots, max_stop_ids]
    const int* min_position,          // [slots]
    const float* temperature,         // [slots]
    const int* top_k,                 // [slots]
    const float* top_p,               // [slots]
    const float* min_p,               // [slots]
    const unsigned* seeds,            // [slots, 2]
    const int* sample_index,          // [slots]
    const int* count_tokens,          // [slots]
    unsigned char* workspace,         // RowWork<T> [rows]
    int vocab,
    int max_bias,
    int max_stop_ids) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  RowWork<T>& work = work_of<T>(workspace, blockIdx.y);
  const T* row_logits = logits + static_cast<long long>(blockIdx.y) * vocab;
  Vectors<T, kWidth> vectors;
  vectors.load(row_logits, vocab, blockIdx.x);
  const int slot = row_ids[blockIdx.y];
  const bool describes = blockIdx.x == 0;  // the row to the launches that follow
  if (slot < 0) {
    if (describes && threadIdx.x == 0) work.request = Request{};
    return;
  }
  const Asked asked = {token_counts,
                       repetition_penalty,
                       presence_penalty,
                       frequency_penalty,
                       bias_ids,
                       bias_values,
                       stop_ids,
                       min_position,
                       temperature,
                       top_k,
                       top_p,
                       min_p,
                       seeds,
                       sample_index,
                       count_tokens,
                       vocab,
                       max_bias,
                       max_stop_ids};
  const int position = sample_positions[blockIdx.y];
  const Row<T> row = asked.row(row_logits, slot, position);
  if (describes) {
    const bool is_drawn = asked.is_drawn(slot);
    if (threadIdx.x == 0) {
      work.row = row;
      work.request = asked.request(slot, position);
      work.num_candidates = 0;
    }
    if (is_drawn && threadIdx.x < kBins) {
      work.bin_weights[threadIdx.x] = 0;
      work.bin_counts[threadIdx.x] = 0;
    }
  }
  for_each_chunk_ahead(
      row, vectors, [&](const Chunk<T, kWidth>& chunk) { work.extents.set(chunk); });
}

// The logit below which neither top_k's nor top_p's prefix ends, unless the distribution is odd;
// what is below it is one bin. All threads of the block call it.
__device__ __forceinline__ float filter_floor(
    const Request& request, Extent own, Extent extent, int vocab) {
  if (request.top_k > 0) return floor_of_first(request.top_k, own.top_key, extent);
  const float peak = key_logit(extent.top_key), t = request.temperature;
  // Tokens that each weigh less than (1 - top_p) / vocab of the total cannot fill the part that is
  // cut off, so the prefix ends before them. The groups' likeliest tokens are a part of the total.
  float weight = 0.0f;
  if (own.top_key > -kInfinityKey) weight = expf(__fdividef(key_logit(own.top_key) - peak, t));
  const float total = fmaxf(block_sum<kThreads>(weight), 1.0f);
  const float log_share = logf((1.0f - request.top_p) * total / static_cast<float>(vocab));
  return peak + t * log_share;
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, kWidth > 4 ? 2 : 1)
    sample_bins(unsigned char* workspace) {  // RowWork<T> [rows]
  __shared__ Draw shared_draw;
  __shared__ BinSums weights;
  __shared__ unsigned counts[kBins];
  let_next_kernel_start();
  wait_for_previous_kernel();
  RowWork<T>& work = work_of<T>(workspace, blockIdx.y);
  const Request request = work.request;
  const bool is_filtered = request.top_k > 0 || request.top_p < 1.0f;
  if (!request.is_drawn || (!is_filtered && blockIdx.x > 0)) {
    if (blockIdx.x == 0 && threadIdx.x == 0) work.draw.is_drawn = 0;
    return;
  }
  const Row<T>& row = work.row;  // by reference: to hold it would take registers
  const int vocab = row.vocab;
  const Extent own = work.extents.own(row.num_chunks());
  const Extent extent = block_extent(own);
  if (extent.is_broken()) {
    if (blockIdx.x == 0 && threadIdx.x == 0) work.draw.is_drawn = 0;
    return;
  }
  const float floor = is_filtered ? filter_floor(request, own, extent, vocab) : 0.0f;
  if (threadIdx.x == 0) {
    shared_draw = drawing(request, extent, floor);
    if (blockIdx.x == 0) work.draw = shared_draw;
  }
  if (!is_filtered) return;
  weights.clear();
  if (threadIdx.x < kBins) counts[threadIdx.x] = 0;
  __syncthreads();
  const Draw draw = shared_draw;
  const bool has_counts = request.top_k > 0, has_weights = request.top_p < 1.0f;

  Sum bin_weight = 0;  // of the bin that is this thread's
  for_each_chunk<T, kWidth>(row, [&](const Chunk<T, kWidth>& chunk) {
    Fixed rest = {0, 0};  // of the last bin, which most tokens are in
    int rest_count = 0;
    chunk.visit([&](float logit, int, int) {
      if (logit < draw.min_logit) return;
      const int bin = Places::bin(draw.places(logit));
      const bool is_rest = bin == kBins - 1;
      if (has_counts) {
        if (is_rest) {
          ++rest_count;
        } else {
          atomicAdd(&counts[bin], 1u);
        }
      }
      if (has_weights) {
        const Fixed term = draw.weight(logit);
        if (is_rest) {
          rest.add(term);
        } else {
          weights.add(bin, term);
        }
      }
    });
    rest = warp_sum(rest);
    rest_count = __reduce_add_sync(kAllLanes, rest_count);
    if (lane_index() == 0) {
      weights.add(kBins - 1, rest);
      if (rest_count > 0) atomicAdd(&counts[kBins - 1], static_cast<unsigned>(rest_count));
    }
    __syncthreads();
    if (threadIdx.x < kBins) bin_weight += weights.take(threadIdx.x);
    __syncthreads();
  });
  if (threadIdx.x < kBins) {
    const unsigned count = counts[threadIdx.x];
    if (bin_weight != 0) atomicAdd(&work.bin_weights[threadIdx.x], bin_weight);
    if (count != 0) atomicAdd(&work.bin_counts[threadIdx.x], count);
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, kWidth > 1 ? 2 : 1)
    sample_candidates(unsigned char* workspace) {  // RowWork<T> [rows]
  let_next_kernel_start();
  wait_for_previous_kernel();
  RowWork<T>& work = work_of<T>(workspace, blockIdx.y);
  if (!work.draw.is_drawn) return;
  const Draw draw = work.draw;
  const Row<T>& row = work.row;
  const int vocab = row.vocab;
  Ends ends = {kBins, kBins, kBins, 0, 0, 0, 0};
  if (draw.is_filtered) {
    const int bin = min(static_cast<int>(threadIdx.x), kBins - 1);
    const bool has_bin = threadIdx.x < kBins;
    ends = find_ends(
        work.request, has_bin ? work.bin_weights[bin] : Sum(0), has_bin ? work.bin_counts[bin] : 0u,
        [](Sum own) { return block_scan<kThreads>(own); });
    if (blockIdx.x == 0 && threadIdx.x == 0) work.ends = ends;
  }
  // Kept before `kept_end`; candidates from there up to `top_p_end`, and in top_k's last bin.
  const float kept_end = Places::edge(min(ends.first, ends.k_bin));
  const float top_p_end = ends.first < kBins ? Places::edge(ends.last + 1) : 0.0f;
  const float k_begin = Places::edge(ends.k_bin), k_end = Places::edge(ends.k_bin + 1);

  for_each_chunk<T, kWidth>(row, [&](const Chunk<T, kWidth>& chunk) {
    Fixed kept = {0, 0};
    unsigned chosen = 0;
    chunk.visit([&](float logit, int, int i) {
      if (logit < draw.min_logit) return;
      const float place = draw.places(logit);
      if (place < kept_end) {
        kept.add(draw.weight(logit));
      } else if (place < top_p_end || (place >= k_begin && place < k_end)) {
        chosen |= 1u << i;
      }
    });
    kept = warp_sum(kept);
    if (lane_index() == 0) work.group_sums[chunk.index * kGroups + warp_index()] = kept.joined();
    append_candidates(chunk, chosen, &work.num_candidates, work.candidates);
  });
}

// What the filters keep, from the candidates, with their weights added to the chunks' sums.
template <typename T>
__device__ __forceinline__ Prefix
end_of_filters(const RowWork<T>& work, const Draw& draw, RowScratch& s) {
  const Request& request = work.request;
  const Ends ends = work.ends;
  const int count = work.num_candidates;
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) s.candidates[i] = work.candidates[i];
  sort_candidates(s, count);
  const auto weight_of = [&](int i) {
    return draw.weight(key_logit(candidate_key(s.candidates[i])));
  };
  Prefix kept = {order_key(draw.min_logit), kHighestInt};
  Sum total = 0;
  if (ends.k_bin < kBins) {
    const int first = count - static_cast<int>(work.bin_counts[ends.k_bin]);
    const int end = first + static_cast<int>(ends.k_left) - 1;
    kept = up_to_candidate(s.candidates[end]);
    Sum own = 0;
#pragma unroll 1
    for (int i = first + threadIdx.x; i <= end; i += kThreads) own += weight_of(i).joined();
    total = ends.k_before + block_scan<kThreads>(own).total;
  } else {
    total = block_scan<kThreads>(threadIdx.x < kBins ? work.bin_weights[threadIdx.x] : 0).total;
  }
  if (request.top_p < 1.0f) {
    const Sum wanted = share_of_prefix(total, request.top_p);
    const int end = end_in_candidates(count, ends.before, wanted, draw.weight, s);
    kept = up_to_candidate(s.candidates[end]);
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const Sum candidate = s.candidates[i];
    const int id = candidate_id(candidate);
    if (kept.holds(candidate_key(candidate), id)) {
      const Fixed term = weight_of(i);
      atomicAdd(&s.chunk_high[id / kChunk], term.high);
      atomicAdd(&s.chunk_low[id / kChunk], term.low);
    }
  }
  __syncthreads();
  if (threadIdx.x < kMaxChunks) {
    const Fixed added = {s.chunk_high[threadIdx.x], s.chunk_low[threadIdx.x]};
    s.chunk_sums[threadIdx.x] += added.joined();
  }
  __syncthreads();
  return kept;
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, 1) sample_draw(
    int* __restrict__ token_ids,  // [rows]
    unsigned char* workspace) {   // RowWork<T> [rows]
  extern __shared__ __align__(16) unsigned char smem[];
  RowScratch& s = *reinterpret_cast<RowScratch*>(smem);
  let_next_kernel_start();
  wait_for_previous_kernel();
  RowWork<T>& work = work_of<T>(workspace, blockIdx.x);
  if (!work.request.is_live) {
    if (threadIdx.x == 0) token_ids[blockIdx.x] = 0;
    return;
  }
  int token;
  const int num_chunks = work.row.num_chunks();
  if (!work.draw.is_drawn) {
    const Extent extent = block_extent(work.extents.own(num_chunks));
    token = extent.is_broken() ? -1 : extent.top_id;
  } else {
    const Draw& draw = work.draw;
    Prefix kept = {order_key(draw.min_logit), kHighestInt};
    if (draw.is_filtered && work.num_candidates > kMaxCandidates) {
      const Extent extent = block_extent(work.extents.own(num_chunks));
      kept = end_of_filters_in_row<T, kWidth>(work.row, work.request, draw, extent, s);
    } else {
      const int group = threadIdx.x, chunk = group / kGroups;
      Sum sum = group < num_chunks * kGroups ? work.group_sums[group] : Sum(0);
#pragma unroll
      for (int offset = kGroups / 2; offset > 0; offset >>= 1) {
        sum += __shfl_xor_sync(kAllLanes, sum, offset);
      }
      if (group % kGroups == 0) {
        s.chunk_sums[chunk] = sum;
        s.chunk_high[chunk] = s.chunk_low[chunk] = 0;
      }
      __syncthreads();
      if (draw.is_filtered) kept = end_of_filters(work, draw, s);
    }
    const unsigned u = work.request.draw;
    token = lowest_id_above<T, kWidth>(
        work.row,
        [&](float logit, int id) {
          return kept.holds(order_key(logit), id) ? draw.weight(logit) : Fixed{0, 0};
        },
        [&](Sum total) { return share_of_draw(total, u); }, s);
  }
  if (threadIdx.x == 0) {
    token_ids[blockIdx.x] = token;
    int* counted = work.request.counted;
    if (token >= 0 && counted != nullptr) atomicAdd(&counted[token], 1);
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, 1) sample_few_rows(
    int* __restrict__ token_ids,      // [rows]
    const T* logits,                  // [rows, vocab]
    const int* row_ids,               // [rows]
    const int* sample_positions,      // [rows]
    int* token_counts,                // [slots, vocab]
    const float* repetition_penalty,  // [slots]
    const float* presence_penalty,    // [slots]
    const float* frequency_penalty,   // [slots]
    const int* bias_ids,              // [slots, max_bias]
    const float* bias_values,         // [slots, max_bias]
    const int* stop_ids,              // [slots, max_stop_ids]
    const int* min_position,          // [slots]
    const float* temperature,         // [slots]
    const int* top_k,                 // [slots]
    const float* top_p,               // [slots]
    const float* min_p,               // [slots]
    const unsigned* seeds,            // [slots, 2]
    const int* sample_index,          // [slots]
    const int* count_tokens,          // [slots]
    int vocab,
    int max_bias,
    int max_stop_ids,
    int run_bits) {  // a thread has 1 << run_bits tokens
  extern __shared__ __align__(16) unsigned char smem[];
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int slot = row_ids[blockIdx.y], rank = blockIdx.x;
  const int block_tokens = kThreads << run_bits, begin = rank * block_tokens;
  const T* row_logits = logits + static_cast<long long>(blockIdx.y) * vocab;
  PartLoads<T, kWidth> loads;
  loads.load(row_logits, vocab, begin, block_tokens, threadIdx.x * kWidth);
  if (slot < 0) {
    if (rank == 0 && threadIdx.x == 0) token_ids[blockIdx.y] = 0;
    return;
  }
  using Sampler = FewRowsSampler<T, kWidth>;
  typename Sampler::Work& work = *reinterpret_cast<typename Sampler::Work*>(smem);
  if (threadIdx.x == 0) {
    const Asked asked = {token_counts,
                         repetition_penalty,
                         presence_penalty,
                         frequency_penalty,
                         bias_ids,
                         bias_values,
                         stop_ids,
                         min_position,
                         temperature,
                         top_k,
                         top_p,
                         min_p,
                         seeds,
                         sample_index,
                         count_tokens,
                         vocab,
                         max_bias,
                         max_stop_ids};
    const int position = sample_positions[blockIdx.y];
    work.row = asked.row(row_logits, slot, position);
    work.request = asked.request(slot, position);
  }
  const PartTile tile = {reinterpret_cast<float*>(smem + sizeof(work)), run_bits};
  Sampler sampler = {work, tile, rank, begin, block_tokens};
  const int token = sampler.sample(row_logits, vocab, loads);
  if (token != Sampler::kNotHere && threadIdx.x == 0) {
    token_ids[blockIdx.y] = token;
    int* counted = work.request.counted;
    if (token >= 0 && counted != nullptr) atomicAdd(&counted[token], 1);
  }
  cluster_wait();  // nobody leaves while others read its shared memory
}
