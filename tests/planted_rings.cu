// A ring that one warp fills and two empty, a product of the tensor cores, and a warp that hands on what it
// clears, right and with one mistake each, for the tests of the emulation.
#include "common.cuh"
#include "meeting.cuh"

enum Mistake {
  kNone,
  kUsesBarriersAtOnce,
  kCopiesUnasked,
  kReadsUnasked,
  kWrongParity,
  kOneLaneWaits,
  kGivesBackEarly,
  kGivesBackForOthers,
  kOneGivesBack,
  kWritesBehind,
  kNoFence,
  kOnlyReadsUnfenced,
  kNoMeeting,
  kDoesNotWait,
  kWaitsForTheOther,
  kNoProductWait,
  kOneGroupTooFew,
  kNoHandOver,
};

// Each value of x comes into a place of the ring, of 64 values, and is added up by a thread; out is the sum of
// both warps' values of a lane. A warp leaves zeros where it has read.
template <int kMistake>
__global__ void planted_ring(float* __restrict__ out, const float* x, int pieces) {
  extern __shared__ __align__(128) unsigned char smem[];
  __shared__ float sums[2][32];
  const unsigned places = shared_address(smem), full = places + 512, empty = full + 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(empty + 8 * i, kMistake == kOneGivesBack ? 1 : 2);
    }
    mbarrier_init_done();
  }
  if (kMistake != kUsesBarriersAtOnce) __syncthreads();
  if (warp == 0) {
    for (int n = 0; lane == 0 && n < pieces; ++n) {
      const unsigned own = full + n % 2 * 8;
      if (kMistake != kCopiesUnasked) mbarrier_wait(empty + n % 2 * 8, n / 2 % 2 ^ 1);
      mbarrier_arrive_expecting(own, 256);
      copy_bytes(places + n % 2 * 256, x + 64 * n, 256, own);
    }
    return;
  }
  float sum = 0.0f;
  for (int n = 0; n < pieces; ++n) {
    float* const own = reinterpret_cast<float*>(smem) + n % 2 * 64 + (warp - 1) * 32 + lane;
    const unsigned other = kMistake == kWaitsForTheOther && n > 0 ? 1 : 0;
    if (kMistake == kOneLaneWaits ? lane == 0 : kMistake != kReadsUnasked) {
      const int turn = n - static_cast<int>(other);
      mbarrier_wait(full + turn % 2 * 8, turn / 2 % 2 ^ (kMistake == kWrongParity));
    }
    if (kMistake != kGivesBackEarly) sum += *own;
    if (kMistake != kGivesBackEarly && kMistake != kWritesBehind &&
        kMistake != kOnlyReadsUnfenced) {
      *own = 0.0f;
    }
    if (kMistake != kNoFence && kMistake != kOnlyReadsUnfenced) fence_shared_memory();
    if (kMistake != kGivesBackForOthers) __syncwarp();
    if (lane == 0 && (kMistake != kOneGivesBack || warp == 1)) mbarrier_arrive(empty + n % 2 * 8);
    if (kMistake == kGivesBackEarly) sum += *own;
    if (kMistake == kWritesBehind) *own = 0.0f;
  }
  sums[warp - 1][lane] = sum;
  if (kMistake == kDoesNotWait && warp == 2) {
    named_barrier_arrive(1, 64);
  } else if (kMistake != kNoMeeting) {
    named_barrier_wait(1, 64);
  }
  out[threadIdx.x - 32] = sums[0][lane] + sums[1][lane];
}

// a * b^T of [64, 64] and [16, 64] numbers, twice, with a that is changed between.
template <int kMistake>
__global__ void planted_product(float* __restrict__ out, const float* x, int) {
  extern __shared__ __align__(128) unsigned char smem[];
  const unsigned a_at = (shared_address(smem) + 1023) / 1024 * 1024, b_at = a_at + 8192;
  using T = __nv_bfloat16;
  T* const a = reinterpret_cast<T*>(smem + (a_at - shared_address(smem)));
  const auto fill = [&] {  // all the same in a row, so that vectors may lie anywhere
    for (int i = threadIdx.x; i < 80 * 64; i += 128) a[i] = __float2bfloat16(x[i / 64]);
    if (kMistake != kNoFence) fence_shared_memory();
    __syncthreads();
  };
  float sums[2][8];
  const auto multiply = [&](float (&to)[8]) {
    wgmma_begin();
    for (int k = 0; k < 4; ++k) {
      wgmma_scores(
          T(), to, wgmma_matrix(a_at + 32 * k, 1024, 0), wgmma_matrix(b_at + 32 * k, 1024, 0),
          k > 0);
    }
    wgmma_commit();
  };
  fill();
  multiply(sums[0]);
  if (kMistake == kOneGroupTooFew) wgmma_wait<1>(sums[0]);
  if (kMistake != kOneGroupTooFew && kMistake != kNoProductWait) wgmma_wait<0>(sums[0]);
  __syncthreads();
  fill();
  multiply(sums[1]);
  wgmma_wait<0>(sums[1]);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = 0; i < 8; ++i) {
    const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    out[row * 16 + column] = sums[0][i] + sums[1][i];
  }
}

// Two blocks, each of which puts its values where a warp of the other one has cleared. That warp tells its block by
// a barrier in memory, and one thread of the block the other one.
template <int kMistake>
__global__ void planted_keeper(float* __restrict__ out, int* place, const float* x, int n) {
  wait_for_previous_kernel();
  extern __shared__ __align__(128) unsigned char smem[];
  const unsigned handed_over = shared_address(smem);
  const int lane = threadIdx.x % 32, i = blockIdx.x * 32 + lane;
  float* const row = reinterpret_cast<float*>(place);
  int* const count = place + n;
  if (threadIdx.x == 0) {
    mbarrier_init(handed_over, 1);
    mbarrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x >= 32) {
    clear(row + i);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(handed_over);
    return;
  }
  if (lane == 0) {
    if (kMistake != kNoHandOver) mbarrier_wait(handed_over, 0);
    arrive_releasing(count);
    wait_for_arrivals_acquiring(count, 2);
  }
  __syncwarp();
  put(row + (i + 32) % n, x[i]);
  Looked<float, 1> found = look<1>(row + i);
  look_until_there(found, row + i);
  out[i] = *reinterpret_cast<const float*>(&found);
}
