// logprobs: l - m - log(sum(exp(l - m))), m = max(l), of a target token and of the likeliest tokens;
// and the target's rank, 1 + the number of tokens before it in the order (logit desc, id asc)
//
// Sums in float32 in a fixed order; one rounding at the store. One block per row. A row that wants
// nothing (num_logprobs -1, or no target) leaves at once. Reads of the row: two for the target, and
// three more for the likeliest tokens.
#include "shortest_prefix.cuh"

template <typename T, int kWidth>
__global__ void __launch_bounds__(kRowThreads) logprobs(
    float* __restrict__ target_logprobs,   // [rows]
    int* __restrict__ target_ranks,        // [rows]
    int* __restrict__ top_ids,             // [rows, max_logprobs]
    float* __restrict__ top_logprobs,      // [rows, max_logprobs]
    const T* __restrict__ logits,          // [rows, vocab]
    const int* __restrict__ token_ids,     // [rows]
    const int* __restrict__ target_ids,    // [rows]
    const int* __restrict__ num_logprobs,  // [rows]
    int vocab,
    int max_logprobs) {
  extern __shared__ __align__(16) unsigned char smem[];
  PrefixScratch& scratch = *reinterpret_cast<PrefixScratch*>(smem);
  __shared__ int tokens_before;
  const int row = blockIdx.x;
  const T* row_logits = logits + static_cast<long long>(row) * vocab;
  const int target = target_ids[row] >= 0 ? target_ids[row] : token_ids[row];
  int count = min(min(num_logprobs[row], max_logprobs), vocab);  // tokens to list
  float target_logprob = 0.0f;
  int rank = 0;
  if (target < 0) count = -1;

  if (count >= 0) {
    const Extent extent = row_extent<T, kWidth>(row_logits, vocab);
    if (extent.is_broken()) {
      target_logprob = __int_as_float(0x7fc00000);  // NaN
      count = 0;
    } else {
      const float peak = key_logit(extent.top_key);
      const float target_logit = to_float(row_logits[target]);
      const Prefix up_to_target = {order_key(target_logit), target};
      if (threadIdx.x == 0) tokens_before = 0;
      float sum = 0.0f;
      int up_to = 0;
      visit_row<T, kWidth>(row_logits, vocab, [&](float logit, int id) {
        sum += expf(logit - peak);
        up_to += up_to_target.holds(order_key(logit), id) ? 1 : 0;
      });
      up_to = __reduce_add_sync(0xffffffffu, up_to);
      const float log_sum = logf(block_sum<kRowThreads>(sum));  // its barriers: tokens_before is 0
      if (lane_index() == 0) atomicAdd(&tokens_before, up_to);
      __syncthreads();
      rank = tokens_before;  // the target itself included
      target_logprob = target_logit - peak - log_sum;

      if (count > 0) {
        const Prefix top = shortest_prefix<T, kWidth>(
            row_logits, vocab, extent, kWholeRow, peak - key_logit(extent.bottom_key), CountOne{},
            [&](Sum) { return Sum(count); }, scratch);
        __syncthreads();
        if (threadIdx.x == 0) scratch.num_candidates = 0;
        __syncthreads();
        visit_row<T, kWidth>(row_logits, vocab, [&](float logit, int id) {
          const int key = order_key(logit);
          if (top.holds(key, id)) add_candidate(scratch, key, id);
        });
        __syncthreads();
        sort_candidates(scratch, count);
        for (int i = threadIdx.x; i < count; i += kRowThreads) {
          const long long at = static_cast<long long>(row) * max_logprobs + i;
          const Sum candidate = scratch.candidates[i];
          top_ids[at] = candidate_id(candidate);
          top_logprobs[at] = key_logit(candidate_key(candidate)) - peak - log_sum;
        }
      }
    }
  }
  for (int i = max(count, 0) + threadIdx.x; i < max_logprobs; i += kRowThreads) {
    const long long at = static_cast<long long>(row) * max_logprobs + i;
    top_ids[at] = -1;
    top_logprobs[at] = 0.0f;
  }
  if (threadIdx.x == 0) {
    target_logprobs[row] = target_logprob;
    target_ranks[row] = rank;
  }
}
