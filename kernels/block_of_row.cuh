// A block of decode attention that takes a part of a row, as attention_parts has cut it, for the query heads
// of one KV head: where its results go, and who makes one result of a cut row's. No kernel lives here.
#pragma once
#include "attend_row.cuh"
#include "fold_parts.cuh"

template <typename T, int kHeadDim, int kThreads>
struct BlockOfRow {
  Part given;
  int place, kv_head, kv_heads, group;

  // Of q and out, the block's first element.
  __device__ __forceinline__ long long first_element() const {
    return (static_cast<long long>(given.row) * kv_heads + kv_head) * group * kHeadDim;
  }
  __device__ __forceinline__ T* result_in(T* out) const { return out + first_element(); }
  __device__ __forceinline__ void store_zeros(T* out) const {
    for (int i = threadIdx.x; i < group * kHeadDim; i += kThreads) {
      result_in(out)[i] = from_float<T>(0.0f);
    }
  }

  // Where a part of the row leaves a head's sums, highest score and total.
  __device__ __forceinline__ float* part_in(float* workspace, int part, int head) const {
    const long long of_head_set =
        static_cast<long long>(place - given.index + part) * kv_heads + kv_head;
    return workspace + (of_head_set * group + head) * (kHeadDim + 2);
  }
  __device__ __forceinline__ void store(
      T* out, float* workspace, int head, int column, const Attended& found) const {
    if (given.parts == 1) {
      result_in(out)[head * kHeadDim + column] = from_float<T>(found.sum / found.total);
      return;
    }
    float* result = part_in(workspace, given.index, head);
    result[column] = found.sum;
    if (column == 0) {
      result[kHeadDim] = found.highest;
      result[kHeadDim + 1] = found.total;
    }
  }
  // Folds the parts of a cut row, if all have been stored.
  __device__ __forceinline__ void fold_if_last(T* out, float* workspace, int* arrivals) const {
    if (given.parts == 1) return;
    int* count = arrivals + static_cast<long long>(given.row) * kv_heads * group + kv_head;
    if (!arrives_last(count, given.parts)) return;
    for (int i = threadIdx.x; i < group * kHeadDim; i += kThreads) {
      const int head = i / kHeadDim;
      const auto at_part = [&](int part) { return part_in(workspace, part, head); };
      result_in(out)[i] = from_float<T>(folded<T>(given.parts, kHeadDim, i % kHeadDim, at_part));
    }
  }
};
