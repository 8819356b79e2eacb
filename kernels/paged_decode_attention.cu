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
// in its share. A second launch folds the parts of a row together.
#include "attend_row.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(CPU_EMU)  // sm_90a
#include "attend_few_rows.cuh"
#include "attend_pieces.cuh"

// One row and KV head is of the blocks x of a y and z.
template <typename T, int kHeadDim, int kWarps, int kAhead, bool kClusters>
__global__ void __launch_bounds__(32 * kWarps, 1) paged_decode_attention_few_rows(
    T* __restrict__ out,      // [rows, kv_heads*group*head_dim]
    const T* q,               // [rows, kv_heads*group*head_dim]
    const T* k_cache,         // [num_blocks, kv_heads, block_size, head_dim]
    const T* v_cache,         // [num_blocks, kv_heads, block_size, head_dim]
    const int* block_tables,  // [slots, max_blocks]
    const int* row_ids,       // [rows]
    const int* seq_lens,      // [rows]
    float* workspace,         // [rows, kv_heads, gridDim.x, group, head_dim + 4], not for clusters
    unsigned* counters,       // [rows, kv_heads], not for clusters
    int kv_heads,
    int group,
    int block_size,
    int max_blocks,
    float scale_log2) {  // scale * log2(e)
  FewRows<T, kHeadDim, kWarps, kAhead, kClusters>::run(
      out, q, k_cache, v_cache, block_tables, row_ids, seq_lens, workspace, counters, kv_heads,
      group, block_size, max_blocks, scale_log2);
}
#endif

// A row and a set of heads, of which several blocks compute parts.
struct alignas(16) Cut {
  int row, head_set;
  int parts;        // 0 or 1: there is nothing to fold
  int first_block;  // the others are those after it
};

// The workspace: cuts, one for each row and set of heads, or for each block where blocks are fewer,
// since only the last row of a block's share can be cut; then, from a multiple of 256 bytes on, what
// parts of rows give for each head of their set: a sum for each column, the highest score, the total.
// The first part of a row is in place 2*b + 1, if block b computed it, and later ones are in place
// 2*b: of the parts that a block computes only its first one can begin within a row, and only its last
// one can end within a row. Batch invariant, there are no cuts, and parts are in places
// (row*head_sets + head_set)*max_parts and following.
__device__ __forceinline__ long long places_at(int cuts) { return (cuts * 4 + 63ll) / 64 * 64; }

template <typename Form>
__global__ void __launch_bounds__(Form::kThreads, Form::kBlocks) paged_decode_attention(
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
  const int least = max_parts ? 1 : min_units;
  const int shares = min(static_cast<int>(gridDim.x), max(1, all_units / least));
  // The first of them are longer by one unit.
  const int share = all_units / shares, longer = all_units % shares, block = blockIdx.x;
  const auto share_of = [&](int unit) {
    const int of_longer = longer * (share + 1);
    return unit < of_longer ? unit / (share + 1) : longer + (unit - of_longer) / share;
  };
  const int cuts = min(rows * head_sets, static_cast<int>(gridDim.x));
  const bool all_cuts = cuts == rows * head_sets;
  Cut* cut_list = reinterpret_cast<Cut*>(workspace);
  bool has_cut = all_cuts;

  int unit = block * share + min(block, longer);
  const int end_of_share = block < shares ? unit + share + (block < longer) : unit;
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
    long long place = 2 * block + (first == 0);
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
    if (!max_parts && first == 0 && (all_cuts || last < units)) {
      has_cut = true;
      const Cut cut = {row, head_set, share_of(unit + units - 1) - block + 1, block};
      if (threadIdx.x == 0) cut_list[all_cuts ? row * head_sets + head_set : block] = cut;
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
    float* partial =
        workspace + (max_parts ? 0 : places_at(cuts)) + place * kHeads * (kHeadDim + 2);
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
  if (!max_parts && !has_cut && threadIdx.x == 0) cut_list[block] = Cut{0, 0, 0, 0};
}

constexpr int kFoldThreads = 1024;  // at most
constexpr int kAhead = 4;           // parts that are loaded before they are folded

// Adds parts begin to end - 1 to `all`, in their order; part p of the head is at at_part(p).
template <typename T, typename AtPart>
__device__ __forceinline__ void fold_parts(
    Attended& all, int begin, int end, int head_dim, int column, const AtPart& at_part) {
  for (int first = begin; first < end; first += kAhead) {
    Attended next[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const float* partial = at_part(min(first + i, end - 1));
      next[i] = {partial[head_dim], partial[head_dim + 1], partial[column]};
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i < end) fold<T>(all, next[i]);
    }
  }
}

// Folds the parts of rows that are cut. blockIdx.x is the cut, blockIdx.y the head of its set. The
// block's threads are groups of `columns`, each of which folds some of the parts first.
template <typename T>
__global__ void __launch_bounds__(kFoldThreads, 1) paged_decode_attention_fold(
    T* __restrict__ out,  // [rows, kv_heads*group*head_dim]
    const float* workspace,
    int rows,
    int kv_heads,
    int group,
    int head_dim,
    int heads_of_set,
    int columns) {
  __shared__ Attended of_groups[kFoldThreads];
  wait_for_previous_kernel();
  if (rows <= kFewRows) let_next_kernel_start();
  const Cut cut = reinterpret_cast<const Cut*>(workspace)[blockIdx.x];
  if (cut.parts <= 1) return;
  const int sets_of_kv_head = (group + heads_of_set - 1) / heads_of_set;
  const int head = cut.head_set % sets_of_kv_head * heads_of_set + blockIdx.y;
  if (head >= group) return;
  const auto at_part = [&](int part) {
    const long long place = 2 * (cut.first_block + part) + (part == 0);
    return workspace + places_at(gridDim.x) + (place * heads_of_set + blockIdx.y) * (head_dim + 2);
  };
  const int groups = blockDim.x / columns, own_group = threadIdx.x / columns;
  const int of_group = (cut.parts + groups - 1) / groups;
  const int begin = min(own_group * of_group, cut.parts), end = min(begin + of_group, cut.parts);
  const int kv_head = cut.head_set / sets_of_kv_head;
  T* result =
      out + ((static_cast<long long>(cut.row) * kv_heads + kv_head) * group + head) * head_dim;
  for (int first_column = 0; first_column < head_dim; first_column += columns) {
    const int column = first_column + threadIdx.x % columns;
    Attended all = nothing();
    if (column < head_dim) fold_parts<T>(all, begin, end, head_dim, column, at_part);
    of_groups[threadIdx.x] = all;
    __syncthreads();
    if (own_group == 0 && column < head_dim) {
      for (int g = 1; g < groups; ++g) fold<T>(all, of_groups[g * columns + threadIdx.x]);
      result[column] = from_float<T>(all.sum / all.total);
    }
    __syncthreads();
  }
}

// The same, batch invariant. blockIdx.y is the query head; block x takes the rows x, x + gridDim.x, ...
template <typename T>
__global__ void __launch_bounds__(kFoldThreads, 1) paged_decode_attention_fold_rows(
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
  wait_for_previous_kernel();
  if (rows <= kFewRows) let_next_kernel_start();
  const int sets_of_kv_head = (group + heads_of_set - 1) / heads_of_set;
  const int head_sets = kv_heads * sets_of_kv_head, head = blockIdx.y % group;
  const int head_set = blockIdx.y / group * sets_of_kv_head + head / heads_of_set;
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    const int units = units_of(seq_lens[row]);
    const int part_units = units_of_part(units, max_parts, min_units);
    const int parts = (units + part_units - 1) / part_units;
    if (parts == 1) continue;
    const long long place = (static_cast<long long>(row) * head_sets + head_set) * max_parts;
    const auto at_part = [&](int part) {
      return workspace + ((place + part) * heads_of_set + head % heads_of_set) * (head_dim + 2);
    };
    for (int column = threadIdx.x; column < head_dim; column += blockDim.x) {
      Attended all = nothing();
      fold_parts<T>(all, 0, parts, head_dim, column, at_part);
      out[(static_cast<long long>(row) * gridDim.y + blockIdx.y) * head_dim + column] =
          from_float<T>(all.sum / all.total);
    }
  }
}
