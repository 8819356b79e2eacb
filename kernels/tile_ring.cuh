// Tiles that one warp copies into shared memory and others use. No kernel lives here.
#pragma once
#include "ptx_sm90.cuh"

// A ring of tiles in shared memory: a barrier says when a tile is there, another when it is free again.
template <int kStages, int kBytes>
struct Ring {
  unsigned tiles, barriers;
  __device__ __forceinline__ unsigned tile(int step) const {
    return tiles + step % kStages * kBytes;
  }
  __device__ __forceinline__ unsigned full(int step) const {
    return barriers + step % kStages * 16;
  }
  __device__ __forceinline__ unsigned empty(int step) const { return full(step) + 8; }
  __device__ __forceinline__ void wait_full(int step) const {
    mbarrier_wait(full(step), step / kStages % 2);
  }
  __device__ __forceinline__ void wait_empty(int step) const {
    mbarrier_wait(empty(step), step / kStages % 2 ^ 1);
  }
};
