// paged_decode_attention: out[r, h, :] = softmax(scale * q[r, h, :] @ K.T) @ V, K and V the first
// seq_lens[r] tokens of the blocks block_tables[row_ids[r]], of the KV head h / group,
// group = heads/kv_heads
//
// Scores, softmax (in base 2, online) and sums in float32, one rounding to T at the store; weights
// enter the tensor cores as two numbers of T. A dead row (length 0) gives zeros, and its row_id is
// not used. Blocks of the table after the last token are not read, nor slots after it.
//
// A block takes a part of a row, as attention_parts has cut it, and a set of heads: up to Form::kHeads
// query heads of one KV head, which share one read of K and V. Neighbouring blocks take the sets of one
// part. Batch invariant, what attention_parts gives are whole rows; they are cut by their own length
// alone, and gridDim.y blocks take the parts of a row by turns. The last block of a cut row to arrive
// folds its parts together, in their order.
#include "block_of_row.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(CPU_EMU)  // sm_90a
#include "attend_few_rows.cuh"
#include "attend_pieces.cuh"

// One row and KV head is of the blocks x of a y and z: a cluster, where kCluster > 1.
template <typename T, int kHeadDim, int kWarps, int kAhead, int kCluster>
__global__ void __launch_bounds__(32 * kWarps, 1) paged_decode_attention_few_rows(
    T* __restrict__ out,      // [rows, kv_heads*group*head_dim]
    const T* q,               // [rows, kv_heads*group*head_dim]
    const T* k_cache,         // [num_blocks, kv_heads, block_size, head_dim]
    const T* v_cache,         // [num_blocks, kv_heads, block_size, head_dim]
    const int* block_tables,  // [slots, max_blocks]
    const int* row_ids,       // [rows]
    const int* seq_lens,      // [rows]
    float* workspace,         // [rows, kv_heads, gridDim.x, group, head_dim + 4], not for clusters
    int* arrivals,            // [rows, heads], zeros; not for clusters
    int kv_heads,
    int group,
    int block_shift,  // block_size is 16 << block_shift
    int max_blocks,
    float scale_log2) {  // scale * log2(e)
  FewRows<T, kHeadDim, kWarps, kAhead, kCluster>::run(
      out, q, k_cache, v_cache, block_tables, row_ids, seq_lens, workspace, arrivals, kv_heads,
      group, block_shift, max_blocks, scale_log2);
}

// As paged_decode_attention, of at most 8 query heads to a KV head. What earlier launches left in the cache is
// under way before the wait: all but the tile of a part's last token, which the launch before may have appended.
template <typename Form>
__global__ void __launch_bounds__(Form::kThreads, Form::kBlocks) paged_decode_attention_pieces(
    typename Form::Element* __restrict__ out,  // [rows, kv_heads*group*head_dim]
    int* arrivals,                             // [rows, kv_heads*group], 0 between launches
    const typename Form::Element* q,           // [rows, kv_heads*group*head_dim]
    const typename Form::Element* k_cache,     // [num_blocks, kv_heads, block_size, head_dim]
    const typename Form::Element* v_cache,     // [num_blocks, kv_heads, block_size, head_dim]
    const int* block_tables,                   // [slots, max_blocks]
    const int* parts,                          // [rows+spare, 8]
    float* workspace,  // [parts of cut rows, kv_heads, group, head_dim + 2]: sums, highest, total
    int rows,
    int kv_heads,
    int group,
    int block_size,
    int max_blocks,
    float scale_log2) {  // scale * log2(e)
  using T = typename Form::Element;
  using Block = BlockOfRow<T, Form::kHeadDim, Form::kThreads>;
  const int place = blockIdx.x / kv_heads, kv_head = blockIdx.x % kv_heads;
  const Part given = part_early(parts, place);
  const Block block = {given, place, kv_head, kv_heads, group};
  Form pieces = {
      k_cache,     v_cache,    block_tables + static_cast<long long>(given.slot) * max_blocks,
      given.begin, given.end,  kv_head,
      kv_heads,    block_size, nullptr};
  const bool is_live = given.row >= 0 && given.end > 0;
  if (is_live) pieces.begin_copies();
  wait_for_previous_kernel();
  if (rows <= kEarlyRows) let_next_kernel_start();
  if (given.row < 0) return;
  if (!is_live) {
    block.store_zeros(out);
    return;
  }
  pieces.begin_late_copies();
  typename Form::Queries queries;
  const int lane_row = threadIdx.x % 32 / 4;  // the head of this lane
  const T* of_lane = q + block.first_element() + lane_row * Form::kHeadDim;
  Form::load_head(queries, of_lane, lane_row < group);

  __shared__ Block kept;  // what is wanted at the end only would take registers meanwhile
  if (threadIdx.x == 0) kept = block;
  const auto store = [&](int head, int column, const Attended& found) {
    kept.store(out, workspace, head, column, found);
  };
  pieces.attend_from(store, queries, group, scale_log2);
  kept.fold_if_last(out, workspace, arrivals);
}
#endif

// kByLength: batch invariant.
template <typename Form, bool kByLength>
__global__ void __launch_bounds__(Form::kThreads, Form::kBlocks) paged_decode_attention(
    typename Form::Element* __restrict__ out,  // [rows, kv_heads*group*head_dim]
    int* arrivals,                             // [rows, kv_heads*group], 0 between launches
    const typename Form::Element* q,           // [rows, kv_heads*group*head_dim]
    const typename Form::Element* k_cache,     // [num_blocks, kv_heads, block_size, head_dim]
    const typename Form::Element* v_cache,     // [num_blocks, kv_heads, block_size, head_dim]
    const int* block_tables,                   // [slots, max_blocks]
    const int* parts,                          // [rows+spare, 8]
    float* workspace,  // [parts of cut rows, head sets, heads, head_dim + 2]: sums, highest, total
    int rows,
    int kv_heads,
    int group,
    int block_size,
    int max_blocks,
    float scale_log2,  // scale * log2(e)
    int max_parts,     // of a row, batch invariant; otherwise 0
    int min_units) {   // of a part, batch invariant
  using T = typename Form::Element;
  constexpr int kHeads = Form::kHeads, kHeadDim = Form::kHeadDim, kThreads = Form::kThreads;
  wait_for_previous_kernel();
  if (rows <= kEarlyRows) let_next_kernel_start();
  const int sets_of_kv_head = (group + kHeads - 1) / kHeads, head_sets = kv_heads * sets_of_kv_head;
  const int place = blockIdx.x / head_sets, head_set = blockIdx.x % head_sets;
  const Part given = reinterpret_cast<const Part*>(parts)[place];
  if (given.row < 0) return;

  const int kv_head = head_set / sets_of_kv_head;
  const int first_head = head_set % sets_of_kv_head * kHeads;
  const int heads = min(kHeads, group - first_head);
  const long long at =
      ((static_cast<long long>(given.row) * kv_heads + kv_head) * group + first_head) * kHeadDim;
  if (given.end == 0) {
    if (blockIdx.y > 0) return;
    for (int i = threadIdx.x; i < heads * kHeadDim; i += kThreads) {
      out[at + i] = from_float<T>(0.0f);
    }
    return;
  }

  // The row's parts, the first of them that this block takes, and where the results of all are.
  int all = given.parts, part = given.index, part_units = 0;
  long long first_place = place - given.index;
  if constexpr (kByLength) {
    const int units = units_of(given.end);
    part_units = units_of_part(units, max_parts, min_units);
    all = (units + part_units - 1) / part_units;
    part = blockIdx.y;
    first_place = static_cast<long long>(given.row) * max_parts;
    if (part >= all) return;
  }
  const auto result_of = [&](int part, int head) {
    const long long of_set = (first_place + part) * head_sets + head_set;
    return workspace + (of_set * min(kHeads, group) + head) * (kHeadDim + 2);
  };
  do {
    int begin = given.begin, end = given.end;
    if constexpr (kByLength) {
      begin = part * part_units * kUnitTokens;
      end = min(begin + part_units * kUnitTokens, given.end);
    }
    const auto store = [&](int head, int column, const Attended& found) {
      if (all == 1) {
        out[at + head * kHeadDim + column] = from_float<T>(found.sum / found.total);
        return;
      }
      float* result = result_of(part, head);
      result[column] = found.sum;
      if (column == 0) {
        result[kHeadDim] = found.highest;
        result[kHeadDim + 1] = found.total;
      }
    };
    Form::attend(
        store, q + at, k_cache, v_cache,
        block_tables + static_cast<long long>(given.slot) * max_blocks, begin, end, heads, kv_head,
        kv_heads, block_size, scale_log2);
    part += gridDim.y;
  } while (kByLength && part < all);
  if (all == 1) return;

  int* count = arrivals + static_cast<long long>(given.row) * kv_heads * group + head_set;
  if (!arrives_last(count, kByLength ? min(static_cast<int>(gridDim.y), all) : all)) return;
  for (int i = threadIdx.x; i < heads * kHeadDim; i += kThreads) {
    const int head = i / kHeadDim;
    const auto at_part = [&](int part) { return result_of(part, head); };
    out[at + i] = from_float<T>(folded<T>(all, kHeadDim, i % kHeadDim, at_part));
  }
}
