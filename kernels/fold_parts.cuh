// How the blocks that take the parts of one row make one result of theirs.
#pragma once
#include "online_softmax.cuh"

// Whether this block is the last of `blocks` to call this. It then sees what the others wrote before, and
// the count is 0 again. All threads of the block call it.
__device__ __forceinline__ bool arrives_last(int* count, int blocks) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    is_last = atomicAdd(count, 1) == blocks - 1;
    if (is_last) *count = 0;
    __threadfence();
  }
  __syncthreads();
  return is_last;
}

// The attention of a column of a head to all parts of its row; part p's result is at at_part(p).
template <typename T, typename AtPart>
__device__ __forceinline__ float folded(
    int parts, int head_dim, int column, const AtPart& at_part) {
  constexpr int kAhead = 8;  // parts that are loaded before they are folded
  Attended all = nothing();
  for (int first = 0; first < parts; first += kAhead) {
    Attended next[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const float* of_head = at_part(min(first + i, parts - 1));
      next[i] = {of_head[head_dim], of_head[head_dim + 1], of_head[column]};
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i < parts) fold<T>(all, next[i]);
    }
  }
  return all.sum / all.total;
}
