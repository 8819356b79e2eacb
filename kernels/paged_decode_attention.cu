// paged_decode_attention: out[r, h, :] = softmax(scale * q[r, h, :] @ K.T) @ V, K and V the first
// seq_lens[r] tokens of the blocks block_tables[row_ids[r]], of the KV head h / (heads/kv_heads)
//
// Rounding and orders as in attend_row.cuh: float32, one rounding at the store, and a row's bits
// follow from its own length. blockIdx.x is the row, blockIdx.y the KV head, blockIdx.z the part of
// its query heads: kHeads of them share one read of K and V. A dead row (length 0) gives zeros.
// Does not split a sequence over blocks, so few rows leave most of the GPU idle; does not load ahead
// of the arithmetic, and uses no tensor cores.
#include "attend_row.cuh"

template <typename T, int kHeadDim, int kWidth, int kHeads, int kTokens, int kThreads>
__global__ void __launch_bounds__(kThreads, 1) paged_decode_attention(
    T* __restrict__ out,                   // [rows, kv_heads*group*head_dim]
    const T* __restrict__ q,               // [rows, kv_heads*group*head_dim]
    const T* __restrict__ k_cache,         // [num_blocks, kv_heads, block_size, head_dim]
    const T* __restrict__ v_cache,         // [num_blocks, kv_heads, block_size, head_dim]
    const int* __restrict__ block_tables,  // [slots, max_blocks]
    const int* __restrict__ row_ids,       // [rows]
    const int* __restrict__ seq_lens,      // [rows]
    int kv_heads,
    int group,
    int block_size,
    int max_blocks,
    float scale_log2) {  // scale * log2(e)
  const long long row = blockIdx.x;
  const int kv_head = blockIdx.y, first_head = blockIdx.z * kHeads;
  const int heads = min(kHeads, group - first_head);
  const long long at = ((row * kv_heads + kv_head) * group + first_head) * kHeadDim;
  const int length = seq_lens[row];
  if (length <= 0) {
    for (int i = threadIdx.x; i < heads * kHeadDim; i += kThreads)
      out[at + i] = from_float<T>(0.0f);
    return;
  }
  attend_row<T, kHeadDim, kWidth, kHeads, kTokens, kThreads>(
      out + at, q + at, k_cache, v_cache,
      block_tables + static_cast<long long>(row_ids[row]) * max_blocks, length, heads, kv_head,
      kv_heads, block_size, scale_log2);
}
