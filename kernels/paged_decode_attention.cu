// paged_decode_attention: out[r, h, :] = softmax(scale * q[r, h, :] @ K.T) @ V, K and V the first
// seq_lens[r] tokens of the blocks block_tables[row_ids[r]], of the KV head h / group,
// group = heads/kv_heads
//
// Scores, softmax (in base 2, online) and sums in float32, one rounding to T at the store; weights
// enter the tensor cores as two numbers of T. A dead row (length 0) gives zeros, and its row_id is
// not used. Blocks of the table after the last token are not read, nor slots after it.
//
// The grid knows the largest sizes only, so every block reads seq_lens and works out the same list of
// items: a row's part, a KV head, and up to Form::kHeads of its query heads, which share one read of
// K and V. Block b takes the items b, b + gridDim.x, ... Rows are cut so that all rows together make
// enough items for every GPU, or, batch invariant, by their own length alone; a second launch folds
// the parts of a row together in their order.
#include "attend_row.cuh"

// The workspace: for each row, its first item and its parts; then, of each item of a row with several
// parts, the results of its heads: a sum for each column, the highest score, the total.
__device__ __forceinline__ long long partials_at(int rows) {
  return (static_cast<long long>(rows) * 2 + 63) / 64 * 64;
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
    int most_parts,  // of a row that is cut by its own length; otherwise of all rows together
    int least_units) {
  using T = typename Form::Element;
  constexpr int kHeads = Form::kHeads, kHeadDim = Form::kHeadDim, kThreads = Form::kThreads;
  let_next_kernel_start();
  const int head_parts = (group + kHeads - 1) / kHeads;
  const int items_of_part = kv_heads * head_parts;
  int* plan = reinterpret_cast<int*>(workspace);
  float* partials = workspace + partials_at(rows);

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
    return cut_row(length, work, most_parts, least_units);
  };
  int items = 0;
  for (int row = first_row; row < end_row; ++row) {
    items += parts_of(seq_lens[row]).count * items_of_part;
  }
  int end_item = items;  // of the lane, and of those before
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, end_item, offset);
    if (lane >= offset) end_item += before;
  }
  const int all_items = __shfl_sync(0xffffffffu, end_item, 31);
  if (blockIdx.x == 0 && threadIdx.x < 32) {
    int item = end_item - items;
    for (int row = first_row; row < end_row; ++row) {
      const int count = parts_of(seq_lens[row]).count;
      plan[2 * row] = item;
      plan[2 * row + 1] = count;
      item += count * items_of_part;
    }
  }

  for (int item = blockIdx.x; item < all_items; item += gridDim.x) {
    const unsigned later = __ballot_sync(0xffffffffu, item < end_item);
    const int owner = __ffs(later) - 1;  // the first lane whose items end after this one
    int row = first_row, row_id = first_row_id, length = 0, at_item = item - (end_item - items);
    if (lane == owner) {
      length = seq_lens[row];
      for (; row < end_row - 1; length = seq_lens[row]) {
        const int items_of_row = parts_of(length).count * items_of_part;
        if (at_item < items_of_row) break;
        at_item -= items_of_row;
        row_id = row_ids[++row];
      }
    }
    row = __shfl_sync(0xffffffffu, row, owner);
    row_id = __shfl_sync(0xffffffffu, row_id, owner);
    length = __shfl_sync(0xffffffffu, length, owner);
    at_item = __shfl_sync(0xffffffffu, at_item, owner);
    const int part = at_item / items_of_part;
    const int kv_head = at_item % items_of_part / head_parts;
    const int first_head = at_item % head_parts * kHeads;
    const int heads = min(kHeads, group - first_head);
    const long long at =
        ((static_cast<long long>(row) * kv_heads + kv_head) * group + first_head) * kHeadDim;
    const Parts parts = parts_of(length);
    const int begin = part * parts.tokens, end = min(begin + parts.tokens, length);
    if (length <= 0) {
      for (int i = threadIdx.x; i < heads * kHeadDim; i += kThreads) {
        out[at + i] = from_float<T>(0.0f);
      }
      continue;
    }
    float* partial = partials + static_cast<long long>(item) * kHeads * (kHeadDim + 2);
    const auto store = [&](int head, int column, const Attended& all) {
      if (parts.count == 1) {
        out[at + head * kHeadDim + column] = from_float<T>(all.sum / all.total);
        return;
      }
      float* of_head = partial + head * (kHeadDim + 2);
      of_head[column] = all.sum;
      if (column == 0) {
        of_head[kHeadDim] = all.highest;
        of_head[kHeadDim + 1] = all.total;
      }
    };
    Form::attend(
        store, q + at, k_cache, v_cache, block_tables + static_cast<long long>(row_id) * max_blocks,
        begin, end, heads, kv_head, kv_heads, block_size, scale_log2);
  }
}

constexpr int kFoldThreads = 256;  // at most

// Folds the parts of rows that have several. blockIdx.y is the query head; block x takes the rows x,
// x + gridDim.x, ...
template <typename T>
__global__ void __launch_bounds__(kFoldThreads, 1) paged_decode_attention_fold(
    T* __restrict__ out,  // [rows, kv_heads*group*head_dim]
    const float* __restrict__ workspace,
    int rows,
    int kv_heads,
    int group,
    int head_dim,
    int heads_of_item) {
  wait_for_previous_kernel();
  constexpr int kAhead = 16;  // parts that are loaded before they are folded
  const int head_parts = (group + heads_of_item - 1) / heads_of_item;
  const int kv_head = blockIdx.y / group, head = blockIdx.y % group;
  const int item_in_part = kv_head * head_parts + head / heads_of_item;
  const int* plan = reinterpret_cast<const int*>(workspace);
  const long long item_floats = static_cast<long long>(heads_of_item) * (head_dim + 2);
  const long long part_floats = item_floats * kv_heads * head_parts;
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    const int count = plan[2 * row + 1];
    if (count == 1) continue;
    const float* of_row = workspace + partials_at(rows) +
                          (plan[2 * row] + item_in_part) * item_floats +
                          head % heads_of_item * (head_dim + 2);
    for (int column = threadIdx.x; column < head_dim; column += blockDim.x) {
      Attended all = nothing();
      for (int first = 0; first < count; first += kAhead) {
        Attended next[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const float* partial = of_row + min(first + i, count - 1) * part_floats;
          next[i] = {partial[head_dim], partial[head_dim + 1], partial[column]};
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (first + i < count) fold<T>(all, next[i]);
        }
      }
      out[(static_cast<long long>(row) * gridDim.y + blockIdx.y) * head_dim + column] =
          from_float<T>(all.sum / all.total);
    }
  }
}
