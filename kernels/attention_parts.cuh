// How rows are cut into parts, by one block; attention_parts.cu says what they are. No kernel lives here.
#pragma once
#include "attend_row.cuh"

// `scratch` is shared memory of three words a row. All threads of the block call it.
template <int kThreads>
__device__ __forceinline__ void cut_rows(
    int* parts,           // [all_parts, words]
    int* arrivals,        // [rows, heads]
    const int* row_ids,   // [rows]
    const int* seq_lens,  // [rows]
    int rows,
    int all_parts,  // rows + spare
    int heads,
    int kv_heads,
    int whole_shares,
    int part_shares,
    int lone_blocks,
    int* scratch) {
  constexpr int kWarps = kThreads / 32;
  int* units = scratch;        // [rows]
  int* ranks = units + rows;   // [rows]: how many rows come before
  int* places = ranks + rows;  // [rows]: parts of rows before, by rank
  __shared__ unsigned long long all_units;
  __shared__ int used, size;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  if (thread == 0) all_units = 0;
  __syncthreads();
  for (int row = thread; row < rows; row += kThreads) {
    units[row] = units_of(seq_lens[row]);
    atomicAdd(&all_units, static_cast<unsigned long long>(units[row]));
  }
  __syncthreads();

  const auto share_of = [&](int shares) {
    return static_cast<int>((all_units * kv_heads + shares - 1) / shares);
  };
  const int longest = share_of(whole_shares), largest = share_of(part_shares);
  const auto parts_of = [&](int units, int size) {
    const int whole = max(longest, lone_blocks > 0 ? size : 2 * size);
    return units > whole ? (units + size - 1) / size : 1;
  };
  if (thread == 0) size = largest;
  __syncthreads();
  if (lone_blocks > 0) {
    for (int tried = share_of(lone_blocks) + thread; tried < largest; tried += kThreads) {
      int found = 0;
      for (int row = 0; row < rows; ++row) found += parts_of(units[row], tried);
      if (found * kv_heads <= lone_blocks) atomicMin(&size, tried);
    }
    __syncthreads();
  }
  for (int row = thread; row < rows; row += kThreads) {
    int rank = 0;
    for (int other = 0; other < rows; ++other) {
      rank += units[other] > units[row] || (units[other] == units[row] && other < row);
    }
    ranks[row] = rank;
    places[rank] = parts_of(units[row], size);
  }
  __syncthreads();
  if (warp == 0) {  // each lane has some ranks one after the other
    const int of_lane = (rows + 31) / 32;
    const int first = min(lane * of_lane, rows), end = min(first + of_lane, rows);
    int own = 0;
    for (int rank = first; rank < end; ++rank) own += places[rank];
    int before = own;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int more = __shfl_up_sync(0xffffffffu, before, offset);
      if (lane >= offset) before += more;
    }
    if (lane == 31) used = before;
    before -= own;
    for (int rank = first; rank < end; ++rank) {
      const int count = places[rank];
      places[rank] = before;
      before += count;
    }
  }
  __syncthreads();

  Part* list = reinterpret_cast<Part*>(parts);
  for (int row = warp; row < rows; row += kWarps) {
    const int own_units = units[row], count = parts_of(own_units, size);
    const int length = seq_lens[row], slot = row_ids[row];
    for (int i = lane; i < count; i += 32) {
      const int begin = own_units * i / count * kUnitTokens;
      const int end = min(own_units * (i + 1) / count * kUnitTokens, length);
      list[places[ranks[row]] + i] = Part{row, slot, begin, end, i, count, {}};
    }
  }
  for (int i = used + thread; i < all_parts; i += kThreads) list[i] = Part{-1, 0, 0, 0, 0, 0, {}};
  for (int i = thread; i < rows * heads; i += kThreads) arrivals[i] = 0;
}
