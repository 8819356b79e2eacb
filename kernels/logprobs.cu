// logprobs: l - m - log(sum(exp(l - m))), m = max(l), of a target token and of the likeliest tokens;
// and the target's rank, 1 + the number of tokens before it in the order (logit desc, id asc)
//
// Sums in float32 in a fixed order, whatever blocks share a row; one rounding at the store. Three
// launches: logprobs_extents and logprobs_sums have blockIdx.y as the row and chunks of it in turns,
// and read it once each; logprobs_list, a block a row, adds up what they found. A row that wants
// nothing (num_logprobs -1, or no target) leaves at once.
#include "ptx.cuh"
#include "shortest_prefix.cuh"

// What the launches hand on of a row.
struct ListWork {
  GroupExtents extents;
  float group_sums[kMaxGroups];
  int groups_before[kMaxGroups];  // tokens up to the target
  Sum candidates[kMaxCandidates];
  int num_candidates, unused;
};

static_assert(sizeof(ListWork) <= 43 * 1024, "what logprobs.py reserves");

// What a row wants: a target, and so many of the likeliest tokens; -1 is nothing at all.
struct Wanted {
  int target, count;

  __device__ __forceinline__ Wanted(
      const int* token_ids,
      const int* target_ids,
      const int* num_logprobs,
      int row,
      int vocab,
      int max_logprobs) {
    target = target_ids[row] >= 0 ? target_ids[row] : token_ids[row];
    count = min(min(num_logprobs[row], max_logprobs), vocab);
    if (target < 0) count = -1;
  }
};

template <typename T>
__device__ __forceinline__ Row<T> plain_row(const T* logits, int row, int vocab) {
  const T* row_logits = logits + static_cast<long long>(row) * vocab;
  return {row_logits, nullptr, nullptr, nullptr, nullptr, 1.0f, 0.0f, 0.0f, vocab, 0, 0};
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, kWidth > 1 ? 2 : 1) logprobs_extents(
    const T* logits,           // [rows, vocab]
    const int* token_ids,      // [rows]
    const int* target_ids,     // [rows]
    const int* num_logprobs,   // [rows]
    unsigned char* workspace,  // ListWork [rows]
    int vocab,
    int max_logprobs) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int row_index = blockIdx.y;
  const Wanted wanted(token_ids, target_ids, num_logprobs, row_index, vocab, max_logprobs);
  if (wanted.count < 0) return;
  ListWork& work = reinterpret_cast<ListWork*>(workspace)[row_index];
  if (blockIdx.x == 0 && threadIdx.x == 0) work.num_candidates = 0;
  const Row<T> row = plain_row(logits, row_index, vocab);
  Vectors<T, kWidth> vectors;
  vectors.load(row.logits, vocab, blockIdx.x);
  for_each_chunk_ahead(
      row, vectors, [&](const Chunk<T, kWidth>& chunk) { work.extents.set(chunk); });
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, kWidth > 1 ? 2 : 1) logprobs_sums(
    const T* logits,           // [rows, vocab]
    const int* token_ids,      // [rows]
    const int* target_ids,     // [rows]
    const int* num_logprobs,   // [rows]
    unsigned char* workspace,  // ListWork [rows]
    int vocab,
    int max_logprobs) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int row_index = blockIdx.y;
  const Wanted wanted(token_ids, target_ids, num_logprobs, row_index, vocab, max_logprobs);
  if (wanted.count < 0) return;
  ListWork& work = reinterpret_cast<ListWork*>(workspace)[row_index];
  const Row<T> row = plain_row(logits, row_index, vocab);
  const Extent own = work.extents.own(row.num_chunks());
  const Extent extent = block_extent(own);
  if (extent.is_broken()) return;
  const float peak = key_logit(extent.top_key);
  const Prefix up_to_target = {order_key(to_float(row.logits[wanted.target])), wanted.target};
  // All that are listed are among the candidates, which are not below it.
  float floor = 0.0f;
  if (wanted.count > 0) floor = floor_of_first(wanted.count, own.top_key, extent);

  for_each_chunk<T, kWidth>(row, [&](const Chunk<T, kWidth>& chunk) {
    float sum = 0.0f;
    int before = 0;
    unsigned chosen = 0;
    chunk.visit([&](float logit, int id, int i) {
      sum += expf(logit - peak);
      before += up_to_target.holds(order_key(logit), id) ? 1 : 0;
      chosen |= logit >= floor ? 1u << i : 0u;
    });
    sum = lanes_sum<32>(sum);
    before = __reduce_add_sync(kAllLanes, before);
    if (lane_index() == 0) {
      work.group_sums[chunk.index * kGroups + warp_index()] = sum;
      work.groups_before[chunk.index * kGroups + warp_index()] = before;
    }
    if (wanted.count > 0) {
      append_candidates(chunk, chosen, &work.num_candidates, work.candidates);
    }
  });
}

// Leaves the `count` first tokens of the row's order in the scratch, sorted. All threads call it.
template <typename T, int kWidth>
__device__ __forceinline__ void sort_likeliest(
    const Row<T>& row, const ListWork& work, Extent extent, int count, RowScratch& s) {
  int num_candidates = work.num_candidates;
  // A floor of -inf, or ties at it: there may be fewer candidates than that, or too many.
  if (num_candidates < count || num_candidates > kMaxCandidates) {
    const Prefix top = shortest_prefix<T, kWidth>(
        row, {kLowestInt, kHighestInt}, extent, CountOne{},
        [&](Sum) { return static_cast<Sum>(count); }, s);
    if (threadIdx.x == 0) s.num_candidates = 0;
    visit_row<T, kWidth>(
        row,
        [&](float logit, int id) {
          const int key = order_key(logit);
          if (!top.holds(key, id)) return;
          s.candidates[atomicAdd(&s.num_candidates, 1)] = pack_candidate(key, id);
        },
        [](int) {});
    num_candidates = count;
  } else {
    for (int i = threadIdx.x; i < num_candidates; i += kThreads) {
      s.candidates[i] = work.candidates[i];
    }
  }
  sort_candidates(s, num_candidates);
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, 1) logprobs_list(
    float* __restrict__ target_logprobs,  // [rows]
    int* __restrict__ target_ranks,       // [rows]
    int* __restrict__ top_ids,            // [rows, max_logprobs]
    float* __restrict__ top_logprobs,     // [rows, max_logprobs]
    const T* logits,                      // [rows, vocab]
    const int* token_ids,                 // [rows]
    const int* target_ids,                // [rows]
    const int* num_logprobs,              // [rows]
    unsigned char* workspace,             // ListWork [rows]
    int vocab,
    int max_logprobs) {
  extern __shared__ __align__(16) unsigned char smem[];
  RowScratch& s = *reinterpret_cast<RowScratch*>(smem);
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int row_index = blockIdx.x;
  const Wanted wanted(token_ids, target_ids, num_logprobs, row_index, vocab, max_logprobs);
  int listed = 0;
  float target_logprob = 0.0f;
  int rank = 0;

  if (wanted.count >= 0) {
    const ListWork& work = reinterpret_cast<ListWork*>(workspace)[row_index];
    const Row<T> row = plain_row(logits, row_index, vocab);
    const int num_groups = row.num_chunks() * kGroups, group = threadIdx.x;
    const Extent extent = block_extent(work.extents.own(row.num_chunks()));
    if (extent.is_broken()) {
      target_logprob = __int_as_float(0x7fc00000);  // NaN
    } else {
      const float peak = key_logit(extent.top_key);
      const bool has_group = group < num_groups;
      const float log_sum = logf(block_sum<kThreads>(has_group ? work.group_sums[group] : 0.0f));
      const Sum before = has_group ? work.groups_before[group] : 0;
      rank = static_cast<int>(block_scan<kThreads>(before).total);  // the target itself included
      target_logprob = to_float(row.logits[wanted.target]) - peak - log_sum;
      listed = wanted.count;
      if (listed > 0) sort_likeliest<T, kWidth>(row, work, extent, listed, s);
      for (int i = threadIdx.x; i < listed; i += kThreads) {
        const long long at = static_cast<long long>(row_index) * max_logprobs + i;
        const Sum candidate = s.candidates[i];
        top_ids[at] = candidate_id(candidate);
        top_logprobs[at] = key_logit(candidate_key(candidate)) - peak - log_sum;
      }
    }
  }
  for (int i = listed + threadIdx.x; i < max_logprobs; i += kThreads) {
    const long long at = static_cast<long long>(row_index) * max_logprobs + i;
    top_ids[at] = -1;
    top_logprobs[at] = 0.0f;
  }
  if (threadIdx.x == 0) {
    target_logprobs[row_index] = target_logprob;
    target_ranks[row_index] = rank;
  }
}
