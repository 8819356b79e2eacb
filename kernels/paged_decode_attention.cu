// paged_decode_attention: out[r, h, :] = softmax(scale * q[r, h, :] @ K.T) @ V, K and V the first
// seq_lens[r] tokens of the blocks block_tables[row_ids[r]], of the KV head h / group,
// group = heads/kv_heads
//
// Scores, softmax (in base 2, online) and sums in float32, one rounding to T at the store; weights
// enter the tensor cores as two numbers of T. A dead row (length 0) gives zeros, and its row_id is
// not used. Blocks of the table after the last token are not read, nor slots after it.
//
// The grid knows the largest sizes only, so every warp reads seq_lens and works out the same list of
// items: a row's part, a KV head, and up to Form::kHeads of its query heads, which share one read of
// K and V. Block b takes item b first, then the next one that is left, as long as there are any: some
// multiprocessors are faster than others. Rows are cut so that all rows together make enough items,
// or, batch invariant, by their own length alone. The block that finishes a row's last part folds its
// parts together, in their order. A first launch clears the counters that this takes.
#include "attend_row.cuh"

// The workspace: the number of items that were taken, beyond the first of each block; for each row
// and set of heads, the number of parts that are done; then, from 256 bytes on, for each item of a row
// with several parts the results of its heads: highest score, total, 2 floats that are not used, and
// a sum for each column.
__device__ __forceinline__ long long counters_of(int rows, int head_sets) {
  return 1 + static_cast<long long>(rows) * head_sets;
}
constexpr int kSumsAt = 4;

__global__ void __launch_bounds__(256)
    paged_decode_attention_clear(int* __restrict__ workspace, int counters) {
  let_next_kernel_start();
  const int at = blockIdx.x * 256 + threadIdx.x;
  if (at < counters) workspace[at] = 0;
}

// Folds the parts of some heads of a row, whose results lie part_floats apart, and stores them.
template <typename Form>
__device__ __forceinline__ void fold_parts(
    typename Form::Element* __restrict__ out,  // [heads, head_dim]
    const float* partials,
    int count,
    long long part_floats,
    int heads) {
  using T = typename Form::Element;
  constexpr int kHeadDim = Form::kHeadDim, kColumns = kHeadDim % 4 == 0 ? 4 : 1;
  constexpr int kAhead = 8;  // parts that are loaded before they are folded
  using Columns = Pack<float, kColumns>;
  for (int at = threadIdx.x * kColumns; at < heads * kHeadDim; at += Form::kThreads * kColumns) {
    const float* of_head = partials + at / kHeadDim * (kHeadDim + kSumsAt);
    Attended<kColumns> all;
    for (int first = 0; first < count; first += kAhead) {
      Attended<kColumns> next[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const float* partial = of_head + min(first + i, count - 1) * part_floats;
        const auto columns = *reinterpret_cast<const Columns*>(partial + kSumsAt + at % kHeadDim);
        next[i].highest = partial[0];
        next[i].total = partial[1];
#pragma unroll
        for (int k = 0; k < kColumns; ++k) next[i].sums[k] = columns.v[k];
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i < count) fold<T, kColumns>(all, next[i]);
      }
    }
    Pack<T, kColumns> result;
#pragma unroll
    for (int k = 0; k < kColumns; ++k) result.v[k] = from_float<T>(all.sums[k] / all.total);
    *reinterpret_cast<Pack<T, kColumns>*>(out + at) = result;
  }
}

template <typename Form>
__global__ void __launch_bounds__(Form::kThreads, 1) paged_decode_attention(
    typename Form::Element* __restrict__ out,      // [rows, kv_heads*group*head_dim]
    const typename Form::Element* __restrict__ q,  // [rows, kv_heads*group*head_dim]
    const typename Form::
        Element* __restrict__ k_cache,  // [num_blocks, kv_heads, block_size, head_dim]
    const typename Form::
        Element* __restrict__ v_cache,     // [num_blocks, kv_heads, block_size, head_dim]
    const int* __restrict__ block_tables,  // [slots, max_blocks]
    const int* __restrict__ row_ids,       // [rows]
    const int* __restrict__ seq_lens,      // [rows]
    float* __restrict__ workspace,
    int rows,
    int kv_heads,
    int group,
    int block_size,
    int max_blocks,
    float scale_log2,  // scale * log2(e)
    int by_own_length,
    int few_parts,
    int many_parts,
    int least_units,
    int enough_units) {
  using T = typename Form::Element;
  constexpr int kHeads = Form::kHeads, kHeadDim = Form::kHeadDim, kThreads = Form::kThreads;
  wait_for_previous_kernel();
  const int sets_of_kv_head = (group + kHeads - 1) / kHeads, head_sets = kv_heads * sets_of_kv_head;
  int* taken = reinterpret_cast<int*>(workspace);
  int* done = taken + 1;  // [rows, head_sets]
  float* partials = workspace + (counters_of(rows, head_sets) + 63) / 64 * 64;

  // Every warp makes the whole list, so that none waits for another. Each lane has some rows one after
  // the other.
  const int lane = threadIdx.x % 32, rows_of_lane = (rows + 31) / 32;
  const int first_row = min(lane * rows_of_lane, rows);
  const int end_row = min(first_row + rows_of_lane, rows);
  const int first_row_id = first_row < rows ? row_ids[first_row] : 0;
  int all_units = 0;
  for (int row = first_row; row < end_row; ++row) all_units += units_of(seq_lens[row]);
  all_units = __reduce_add_sync(0xffffffffu, all_units);
  const auto parts_of = [&](int length) {
    const int work = by_own_length ? units_of(length) : all_units;
    return cut_row(length, work, {few_parts, many_parts, least_units, enough_units});
  };
  int items = 0;
  for (int row = first_row; row < end_row; ++row) {
    items += parts_of(seq_lens[row]).count * head_sets;
  }
  int end_item = items;  // of the lane, and of those before
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, end_item, offset);
    if (lane >= offset) end_item += before;
  }
  const int all_items = __shfl_sync(0xffffffffu, end_item, 31);

  __shared__ int next_item, parts_done;
  int item = blockIdx.x;
  while (item < all_items) {
    int next = 0;  // known long before it is needed
    if (threadIdx.x == 0) next = gridDim.x + atomicAdd(taken, 1);

    const unsigned later = __ballot_sync(0xffffffffu, item < end_item);
    const int owner = __ffs(later) - 1;  // the first lane whose items end after this one
    int row = first_row, row_id = first_row_id, length = 0, at_item = item - (end_item - items);
    if (lane == owner) {
      length = seq_lens[row];
      for (; row < end_row - 1; length = seq_lens[row]) {
        const int items_of_row = parts_of(length).count * head_sets;
        if (at_item < items_of_row) break;
        at_item -= items_of_row;
        row_id = row_ids[++row];
      }
    }
    row = __shfl_sync(0xffffffffu, row, owner);
    row_id = __shfl_sync(0xffffffffu, row_id, owner);
    length = __shfl_sync(0xffffffffu, length, owner);
    at_item = __shfl_sync(0xffffffffu, at_item, owner);
    const int part = at_item / head_sets, head_set = at_item % head_sets;
    const int kv_head = head_set / sets_of_kv_head;
    const int first_head = head_set % sets_of_kv_head * kHeads;
    const int heads = min(kHeads, group - first_head);
    const long long at =
        ((static_cast<long long>(row) * kv_heads + kv_head) * group + first_head) * kHeadDim;
    const Parts parts = parts_of(length);
    const int begin = part * parts.tokens, end = min(begin + parts.tokens, length);
    if (length <= 0) {
      for (int i = threadIdx.x; i < heads * kHeadDim; i += kThreads) {
        out[at + i] = from_float<T>(0.0f);
      }
    } else {
      const long long item_floats = kHeads * (kHeadDim + kSumsAt);
      float* partial = partials + item * item_floats;
      const auto store = [&](int head, int column, const Attended<1>& all) {
        if (parts.count == 1) {
          out[at + head * kHeadDim + column] = from_float<T>(all.sums[0] / all.total);
          return;
        }
        float* of_head = partial + head * (kHeadDim + kSumsAt);
        of_head[kSumsAt + column] = all.sums[0];
        if (column == 0) {
          of_head[0] = all.highest;
          of_head[1] = all.total;
        }
      };
      Form::attend(
          store, q + at, k_cache, v_cache,
          block_tables + static_cast<long long>(row_id) * max_blocks, begin, end, heads, kv_head,
          kv_heads, block_size, scale_log2);
      if (parts.count > 1) {
        __threadfence();  // the parts' results before their number
        __syncthreads();
        if (threadIdx.x == 0) {
          parts_done = atomicAdd(done + static_cast<long long>(row) * head_sets + head_set, 1) + 1;
        }
        __syncthreads();
        if (parts_done == parts.count) {
          __threadfence();  // their number before the parts' results
          fold_parts<Form>(
              out + at, partial - part * head_sets * item_floats, parts.count,
              head_sets * item_floats, heads);
        }
      }
    }
    if (threadIdx.x == 0) next_item = next;
    __syncthreads();
    item = next_item;
    __syncthreads();  // before it is written again
  }
}
