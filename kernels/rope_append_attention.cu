// rope_append_attention: out[r, h, :] = softmax(scale * q[r, h, :] @ K.T) @ V, as paged_decode_attention,
// where q, and the newest token of K and V, are those of qkv, as rope_append rotates and appends them
//
// Rounded where those two round: q and k to T once they are rotated, the result at the store. A dead row
// (length 0) stores no k and v, and gives zeros; its qkv, position and slot may hold anything.
//
// A block takes a part of a row, as attention_parts has cut it, and the query heads of a KV head, at most 8;
// neighbouring blocks take the KV heads of one part. It rotates its queries itself. The block whose part
// has the row's last token appends that to the cache, and attends to what it has in shared memory, so
// nobody waits for memory. The last block of a cut row to arrive folds its parts together, in order.
#include "block_of_row.cuh"
#include "rotated_halves.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(CPU_EMU)  // sm_90a
#include "attend_pieces.cuh"
#endif

// Where a block's queries, key and value are, and its slot of the cache.
template <typename T, int kHeadDim, int kThreads>
struct AppendingBlock : BlockOfRow<T, kHeadDim, kThreads> {
  using Base = BlockOfRow<T, kHeadDim, kThreads>;
  using Base::given, Base::group, Base::kv_head, Base::kv_heads;

  // Of qkv's row: where this KV head's queries begin, its key, its value.
  __device__ __forceinline__ const T* queries(const T* qkv) const {
    return row_of(qkv) + kv_head * group * kHeadDim;
  }
  __device__ __forceinline__ const T* key(const T* qkv) const {
    return row_of(qkv) + (kv_heads * group + kv_head) * kHeadDim;
  }
  __device__ __forceinline__ const T* value(const T* qkv) const {
    return key(qkv) + kv_heads * kHeadDim;
  }
  __device__ __forceinline__ const T* row_of(const T* qkv) const {
    return qkv + static_cast<long long>(given.row) * kv_heads * (group + 2) * kHeadDim;
  }

  // Where a cache has this KV head of a slot.
  __device__ __forceinline__ long long in_cache(int slot, int block_size) const {
    const long long head = static_cast<long long>(slot / block_size) * kv_heads + kv_head;
    return (head * block_size + slot % block_size) * kHeadDim;
  }

  // Whether the row's last token is in the block's part.
  __device__ __forceinline__ bool appends() const { return given.index == given.parts - 1; }
};

// For any architecture.
template <typename Form>
__global__ void __launch_bounds__(Form::kThreads, Form::kBlocks) rope_append_attention(
    typename Form::Element* __restrict__ out,  // [rows, kv_heads*group*head_dim]
    typename Form::Element* k_cache,           // [num_blocks, kv_heads, block_size, head_dim]
    typename Form::Element* v_cache,           // [num_blocks, kv_heads, block_size, head_dim]
    int* arrivals,                             // [rows, kv_heads*group], 0 between launches
    const typename Form::Element* qkv,         // [rows, kv_heads*(group + 2)*head_dim]
    const int* positions,                      // [rows]
    const int* slot_mapping,                   // [rows]
    const int* block_tables,                   // [slots, max_blocks]
    const int* parts,                          // [rows+spare, 8]
    const float* __restrict__ cos_sin,         // [max_position, head_dim]: cosines, then sines
    float* workspace,  // [parts of cut rows, kv_heads, group, head_dim + 2]: sums, highest, total
    int rows,
    int kv_heads,
    int group,
    int block_size,
    int max_blocks,
    float scale_log2) {  // scale * log2(e)
  using T = typename Form::Element;
  constexpr int kHeadDim = Form::kHeadDim, kThreads = Form::kThreads;
  constexpr int kVectors = kHeadDim / 2 / 8;  // of half a head
  __shared__ __align__(16) T queries[Form::kHeads * kHeadDim];
  wait_for_previous_kernel();
  if (rows <= kEarlyRows) let_next_kernel_start();
  const int place = blockIdx.x / kv_heads, kv_head = blockIdx.x % kv_heads;
  const Part given = reinterpret_cast<const Part*>(parts)[place];
  if (given.row < 0) return;
  const AppendingBlock<T, kHeadDim, kThreads> block = {{given, place, kv_head, kv_heads, group}};
  if (given.end == 0) {
    block.store_zeros(out);
    return;
  }

  // Heads of the group, then the key, then the value.
  const long long in_cache = block.in_cache(slot_mapping[given.row], block_size);
  const float* angles = cos_sin + static_cast<long long>(positions[given.row]) * kHeadDim;
  const int heads = block.appends() ? group + 2 : group;
  for (int i = threadIdx.x; i < heads * kVectors; i += kThreads) {
    const int head = i / kVectors, column = i % kVectors * 8;
    const T* from = block.queries(qkv) + head * kHeadDim;
    T* to = queries + head * kHeadDim;
    if (head == group) {
      from = block.key(qkv);
      to = k_cache + in_cache;
    } else if (head > group) {
      from = block.value(qkv);
      to = v_cache + in_cache;
    }
    Halves<T> halves = {*reinterpret_cast<const Pack<T, 8>*>(from + column),
                        *reinterpret_cast<const Pack<T, 8>*>(from + column + kHeadDim / 2)};
    if (head <= group) halves.rotate(angles + column, angles + column + kHeadDim / 2);
    *reinterpret_cast<Pack<T, 8>*>(to + column) = halves.first;
    *reinterpret_cast<Pack<T, 8>*>(to + column + kHeadDim / 2) = halves.second;
  }
  __syncthreads();

  const auto store = [&](int head, int column, const Attended& found) {
    block.store(out, workspace, head, column, found);
  };
  Form::attend(
      store, queries, k_cache, v_cache,
      block_tables + static_cast<long long>(given.slot) * max_blocks, given.begin, given.end, group,
      kv_head, kv_heads, block_size, scale_log2);
  block.fold_if_last(out, workspace, arrivals);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(CPU_EMU)
// For sm_90a. What lies in the cache is under way before the wait: it does not depend on qkv, which the
// launch before computes. A block that has a multiprocessor for itself takes every so many parts as there are
// blocks of its KV head; others take one.
template <typename Form>
__global__ void __launch_bounds__(Form::kThreads, Form::kBlocks) rope_append_attention_pieces(
    typename Form::Element* __restrict__ out,  // [rows, kv_heads*group*head_dim]
    typename Form::Element* k_cache,           // [num_blocks, kv_heads, block_size, head_dim]
    typename Form::Element* v_cache,           // [num_blocks, kv_heads, block_size, head_dim]
    int* arrivals,                             // [rows, kv_heads*group], 0 between launches
    const typename Form::Element* qkv,         // [rows, kv_heads*(group + 2)*head_dim]
    const int* positions,                      // [rows]
    const int* slot_mapping,                   // [rows]
    const int* block_tables,                   // [slots, max_blocks]
    const int* parts,                          // [rows+spare, 8]
    const float* __restrict__ cos_sin,         // [max_position, head_dim]: cosines, then sines
    float* workspace,  // [parts of cut rows, kv_heads, group, head_dim + 2]: sums, highest, total
    int rows,
    int places,  // parts that there are at most
    int kv_heads,
    int group,
    int block_size,
    int max_blocks,
    float scale_log2) {  // scale * log2(e)
  using T = typename Form::Element;
  using Vector = typename Form::Vector;
  using Block = AppendingBlock<T, Form::kHeadDim, Form::kThreads>;
  constexpr int kHeadDim = Form::kHeadDim;
  constexpr int kHalf = Form::kKeyLoads / 2;  // vectors of half a head, of a lane
  constexpr bool kLone = Form::kBlocks == 1;
  __shared__ __align__(16) T newest[2 * kHeadDim];
  const int kv_head = blockIdx.x % kv_heads, stride = gridDim.x / kv_heads;
  const int lane_row = threadIdx.x % 32 / 4;  // the head of this lane
  int place = blockIdx.x / kv_heads;
  Part given;
  Form pieces;
  Pack<float, 8> cosines[kHalf], sines[kHalf];
  long long in_cache = 0;
  const auto begin_part = [&] {
    given = part_early(parts, place);
    const Block block = {{given, place, kv_head, kv_heads, group}};
    pieces = {
        k_cache,     v_cache,    block_tables + static_cast<long long>(given.slot) * max_blocks,
        given.begin, given.end,  kv_head,
        kv_heads,    block_size, block.appends() ? newest : nullptr};
    if (given.row < 0 || given.end == 0) return;
    const long long position = load_early(positions + given.row);
    in_cache = block.in_cache(load_early(slot_mapping + given.row), block_size);
    pieces.begin_copies();
    const auto* angles = reinterpret_cast<const Pack<float, 4>*>(cos_sin + position * kHeadDim);
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      const int at = (j * 4 + threadIdx.x % 4) * 2;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        cosines[j].v[k] = angles[at + k / 4].v[k % 4];
        sines[j].v[k] = angles[kHeadDim / 8 + at + k / 4].v[k % 4];
      }
    }
  };
  const auto rotate = [&](typename Form::Queries& head) {
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      Halves<T> halves;
      memcpy(&halves.first, &head[j], sizeof(Vector));
      memcpy(&halves.second, &head[j + kHalf], sizeof(Vector));
      halves.rotate(cosines[j].v, sines[j].v);
      memcpy(&head[j], &halves.first, sizeof(Vector));
      memcpy(&head[j + kHalf], &halves.second, sizeof(Vector));
    }
  };

  const auto row_of = [&](int place) {
    return place < places ? load_early(parts + place * static_cast<int>(sizeof(Part) / 4)) : -1;
  };
  begin_part();
  int next_row = kLone ? row_of(place + stride) : -1;
  wait_for_previous_kernel();
  if (rows <= kEarlyRows) let_next_kernel_start();
  if (given.row < 0) return;
  while (true) {
    const Block block = {{given, place, kv_head, kv_heads, group}};
    if (given.end == 0) {
      block.store_zeros(out);
    } else {
      typename Form::Queries queries;
      Form::load_head(queries, block.queries(qkv) + lane_row * kHeadDim, lane_row < group);
      if (block.appends() && pieces.has_last()) {  // four lanes have the key, four the value
        typename Form::Queries head;
        Form::load_head(head, lane_row == 0 ? block.key(qkv) : block.value(qkv), lane_row < 2);
        if (lane_row == 0) rotate(head);
        if (lane_row < 2) {
          T* cache = lane_row == 0 ? k_cache : v_cache;
          auto* to_cache = reinterpret_cast<Vector*>(cache + in_cache);
          auto* to_own = reinterpret_cast<Vector*>(newest + lane_row * kHeadDim);
#pragma unroll
          for (int j = 0; j < Form::kKeyLoads; ++j) {
            const int vector = j * 4 + threadIdx.x % 4;
            to_cache[vector] = to_own[vector] = head[j];
          }
        }
        __syncwarp();
      }
      rotate(queries);
      const auto store = [&](int head, int column, const Attended& found) {
        block.store(out, workspace, head, column, found);
      };
      pieces.attend_from(store, queries, group, scale_log2);
      block.fold_if_last(out, workspace, arrivals);
      if (kLone && next_row >= 0) pieces.give_back();
    }
    if (!kLone || next_row < 0) return;
    place += stride;
    begin_part();
    next_row = row_of(place + stride);
  }
}
#endif
