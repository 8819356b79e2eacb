// paged_decode_attention: out[r, h, :] = softmax(scale * q[r, h, :] @ K.T) @ V, K and V the first
// seq_lens[r] tokens of the blocks block_tables[row_ids[r]], of the KV head h / group,
// group = heads/kv_heads
//
// Scores, softmax (in base 2, online) and sums in float32, one rounding to T at the store; weights
// enter the tensor cores as two numbers of T. A dead row (length 0) gives zeros, and its row_id is
// not used. Blocks of the table after the last token are not read, nor slots after it.
//
// The grid knows the largest sizes only, so every warp reads seq_lens and works out the same list: the
// units of 64 tokens of all rows, for each row first those of the first set of heads (up to
// Form::kHeads query heads of one KV head, which share one read of K and V), then those of the next
// set. Each block takes an equal share of the list, so it may begin and end within a row. Batch
// invariant, rows are cut into parts by their own length alone, and a block takes the parts that begin
// in its share. A second launch folds the parts of a row together, in their order.
#include "attend_row.cuh"

// The workspace: for each row, where it begins in the list, and the units of a block's share; then,
// from a multiple of 256 bytes on, what parts of rows give for each head of their set: a sum for each
// column, the highest score, the total. The first part of a row is in place 2*b + 1, if block b
// computed it, and later ones are in place 2*b: of the parts that a block computes only its first one
// can begin within a row, and only its last one can end within a row. Batch invariant, they are in
// places (row*head_sets + head_set)*max_parts and following.
__device__ __forceinline__ long long places_at(int rows) { return (rows + 1 + 63ll) / 64 * 64; }

template <typename Form>
__global__ void __launch_bounds__(Form::kThreads, 1) paged_decode_attention(
    typename Form::Element* __restrict__ out,  // [rows, kv_heads*group*head_dim]
    const typename Form::Element* q,           // [rows, kv_heads*group*head_dim]
    const typename Form::Element* k_cache,     // [num_blocks, kv_heads, block_size, head_dim]
    const typename Form::Element* v_cache,     // [num_blocks, kv_heads, block_size, head_dim]
    const int* block_tables,                   // [slots, max_blocks]
    const int* row_ids,                        // [rows]
    const int* seq_lens,                       // [rows]
    float* workspace,
    int rows,
    int kv_heads,
    int group,
    int block_size,
    int max_blocks,
    float scale_log2,  // scale * log2(e)
    int max_parts,     // of a row, batch invariant; otherwise 0
    int min_units) {   // of a part, batch invariant; otherwise of a block's share
  using T = typename Form::Element;
  constexpr int kHeads = Form::kHeads, kHeadDim = Form::kHeadDim, kThreads = Form::kThreads;
  wait_for_previous_kernel();
  if (rows <= kFewRows) let_next_kernel_start();
  const int sets_of_kv_head = (group + kHeads - 1) / kHeads, head_sets = kv_heads * sets_of_kv_head;

  // Each lane has some rows one after the other.
  const int lane = threadIdx.x % 32, rows_of_lane = (rows + 31) / 32;
  const int first_row = min(lane * rows_of_lane, rows);
  const int end_row = min(first_row + rows_of_lane, rows);
  const int first_row_id = first_row < rows ? row_ids[first_row] : 0;
  const int first_length = first_row < rows ? seq_lens[first_row] : 0;
  int own_units = first_row < rows ? units_of(first_length) : 0;
  for (int row = first_row + 1; row < end_row; ++row) own_units += units_of(seq_lens[row]);
  own_units *= head_sets;
  int end_unit = own_units;  // in the list, of the lane and of those before
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, end_unit, offset);
    if (lane >= offset) end_unit += before;
  }
  const int all_units = __shfl_sync(0xffffffffu, end_unit, 31);
  const int blocks = gridDim.x;
  const int share = max(max_parts ? 1 : min_units, (all_units + blocks - 1) / blocks);
  if (blockIdx.x == 0 && threadIdx.x < 32) {
    int* plan = reinterpret_cast<int*>(workspace);
    int unit = end_unit - own_units;
    for (int row = first_row; row < end_row; ++row) {
      plan[row] = unit;
      unit += units_of(seq_lens[row]) * head_sets;
    }
    if (lane == 0) plan[rows] = share;
  }

  int unit = blockIdx.x * share;
  const int end_of_share = min(unit + share, all_units);
  while (unit < end_of_share) {
    // The first lane whose rows end after this unit knows what it is of.
    const int owner = __ffs(__ballot_sync(0xffffffffu, unit < end_unit)) - 1;
    int row = first_row, row_id = first_row_id, length = first_length;
    int in_row = unit - (end_unit - own_units);
    if (lane == owner) {
      while (in_row >= units_of(length) * head_sets) {
        in_row -= units_of(length) * head_sets;
        ++row;
        row_id = row_ids[row];
        length = seq_lens[row];
      }
    }
    row = __shfl_sync(0xffffffffu, row, owner);
    row_id = __shfl_sync(0xffffffffu, row_id, owner);
    length = __shfl_sync(0xffffffffu, length, owner);
    in_row = __shfl_sync(0xffffffffu, in_row, owner);

    const int units = units_of(length), head_set = in_row / units, first = in_row % units;
    int last = min(units, first + end_of_share - unit);  // the part is the units before this one
    long long place = 2 * blockIdx.x + (first == 0);
    if (max_parts) {
      const int part_units = units_of_part(units, max_parts, min_units);
      const int rest = first % part_units;
      if (rest) {  // an earlier block has this part
        unit += min(units - first, part_units - rest);
        continue;
      }
      last = min(units, first + part_units);
      place = (static_cast<long long>(row) * head_sets + head_set) * max_parts + first / part_units;
    }
    unit += last - first;

    const int kv_head = head_set / sets_of_kv_head;
    const int first_head = head_set % sets_of_kv_head * kHeads;
    const int heads = min(kHeads, group - first_head);
    const long long at =
        ((static_cast<long long>(row) * kv_heads + kv_head) * group + first_head) * kHeadDim;
    if (length <= 0) {
      for (int i = threadIdx.x; i < heads * kHeadDim; i += kThreads) {
        out[at + i] = from_float<T>(0.0f);
      }
      continue;
    }
    const bool whole = first == 0 && last == units;
    float* partial = workspace + places_at(rows) + place * kHeads * (kHeadDim + 2);
    const auto store = [&](int head, int column, const Attended& all) {
      if (whole) {
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
        first * kUnitTokens, min(last * kUnitTokens, length), heads, kv_head, kv_heads, block_size,
        scale_log2);
  }
}

constexpr int kFoldThreads = 256;  // at most

// Folds the parts of rows that have several. blockIdx.y is the query head; block x takes the rows x,
// x + gridDim.x, ...
template <typename T>
__global__ void __launch_bounds__(kFoldThreads, 1) paged_decode_attention_fold(
    T* __restrict__ out,  // [rows, kv_heads*group*head_dim]
    const int* seq_lens,  // [rows]
    const float* workspace,
    int rows,
    int kv_heads,
    int group,
    int head_dim,
    int heads_of_set,
    int max_parts,  // as above
    int min_units) {
  constexpr int kAhead = 16;  // parts that are loaded before they are folded
  wait_for_previous_kernel();
  if (rows <= kFewRows) let_next_kernel_start();
  const int sets_of_kv_head = (group + heads_of_set - 1) / heads_of_set;
  const int head_sets = kv_heads * sets_of_kv_head, head = blockIdx.y % group;
  const int head_set = blockIdx.y / group * sets_of_kv_head + head / heads_of_set;
  const int* plan = reinterpret_cast<const int*>(workspace);
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    const int units = units_of(seq_lens[row]), begin = plan[row] + head_set * units;
    const int first_block = begin / plan[rows], last_block = (begin + units - 1) / plan[rows];
    int parts = last_block - first_block + 1, step = 2, first_step = 1;  // between their places
    long long place = 2 * first_block + 1;
    if (max_parts) {
      const int part_units = units_of_part(units, max_parts, min_units);
      parts = (units + part_units - 1) / part_units;
      step = first_step = 1;
      place = (static_cast<long long>(row) * head_sets + head_set) * max_parts;
    }
    if (parts == 1) continue;
    for (int column = threadIdx.x; column < head_dim; column += blockDim.x) {
      Attended all = nothing();
      for (int first = 0; first < parts; first += kAhead) {
        Attended next[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int part = min(first + i, parts - 1);
          const long long at = part ? place + first_step + (part - 1) * step : place;
          const float* partial = workspace + places_at(rows) +
                                 (at * heads_of_set + head % heads_of_set) * (head_dim + 2);
          next[i] = {partial[head_dim], partial[head_dim + 1], partial[column]};
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (first + i < parts) fold<T>(all, next[i]);
        }
      }
      out[(static_cast<long long>(row) * gridDim.y + blockIdx.y) * head_dim + column] =
          from_float<T>(all.sum / all.total);
    }
  }
}
