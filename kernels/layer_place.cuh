// What the blocks of a decode step of one row hand to each other in a layer, and where it lies: rows, parts of
// attention, counts. See meeting.cuh for how.
//
// Each layer has such a place, and clears that of the layer after it, each value where its own kind is put. A place is
// cleared two layers after its own at the earliest, and used again by the third. All blocks meet at a layer's end,
// releasing and acquiring: that orders a clear after those who read what was there, and before those who look for what
// comes. After the last layer of a launch its end does that.
#pragma once
#include "layer_ring.cuh"
#include "meeting.cuh"

template <typename T, typename Sizes>
struct LayerPlace {
  static constexpr int kStride = Sizes::kHeadDim + 4;  // floats of a head's part: see FourColumns
  static constexpr int kCountWords = 64;               // counts lie in lines of their own
  // Counts, the first two for each KV head.
  static constexpr int kQkvCount = 0, kFoldedCount = Sizes::kKvHeads;
  static constexpr int kAttendedCount = 2 * Sizes::kKvHeads, kMidCount = kAttendedCount + 1;
  static constexpr int kActCount = kAttendedCount + 2, kOutCount = kAttendedCount + 3;
  static constexpr int kCounts = kAttendedCount + 4;

  // In words.
  static constexpr int kRows =
      sizeof(T) * (2 * Sizes::kHidden + Sizes::kInter + Sizes::kQkv + Sizes::kQ) / 4;
  static constexpr int kParts = Sizes::kHeadBlocks * Sizes::kHeads * kStride;

  int* words;

  __device__ __forceinline__ T* out() const { return reinterpret_cast<T*>(words); }  // [hidden]
  __device__ __forceinline__ T* mid() const { return out() + Sizes::kHidden; }  // [hidden], after o
  __device__ __forceinline__ T* act() const { return mid() + Sizes::kHidden; }  // [inter]
  __device__ __forceinline__ T* qkv() const { return act() + Sizes::kInter; }
  __device__ __forceinline__ T* attended() const { return qkv() + Sizes::kQkv; }  // as q
  // What a block has found for a head: [head_dim] sums, highest score, total.
  __device__ __forceinline__ float* part(int rank, int head) const {
    return reinterpret_cast<float*>(words + kRows) + (rank * Sizes::kHeads + head) * kStride;
  }
  __device__ __forceinline__ int* count(int which) const {
    return words + kRows + kParts + which * kCountWords;
  }
};

// Puts a value, and clears where the next layer puts its own.
template <typename V>
__device__ __forceinline__ void put_and_clear(V* here, V* next, V value) {
  put(here, value);
  clear(next);
}

// A barrier of the warps that multiply, which the one that copies does not meet.
template <typename Sizes>
__device__ __forceinline__ void sync_block() {
  named_barrier_wait(1, Sizes::kThreads);
}
// The block has put what it had to put.
template <typename Sizes>
__device__ __forceinline__ void arrive_at(int* count) {
  sync_block<Sizes>();
  if (threadIdx.x == 0) arrive(count);
}
template <typename Sizes>
__device__ __forceinline__ void wait_at(const int* count, int arrivals) {
  if (threadIdx.x == 0) wait_for_arrivals(count, arrivals);
  sync_block<Sizes>();
}
// All blocks meet: what any of them did before comes before what any does after.
template <typename Sizes>
__device__ __forceinline__ void meet_at(int* count) {
  sync_block<Sizes>();
  if (threadIdx.x == 0) {
    arrive_releasing(count);
    wait_for_arrivals_acquiring(count, Sizes::kBlocks);
  }
  sync_block<Sizes>();
}
