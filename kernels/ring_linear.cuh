// One or two rows of x times a weight by a block, on sm_90a: what StreamLinear does, with the weight copied
// into a ring in shared memory by the copy engine.
//
// A kernel lets the next one begin at once, and each fills its ring before it waits for the launch before.
// So a block of the next kernel must fit beside one of this kernel: it has half the registers of a
// multiprocessor, and as to shared memory kernels take turns. Two blocks of the large kind never fit
// together, and beside a large one exactly one of the small kind: so each kernel lies evenly, one block on
// each multiprocessor, however early its blocks are placed. ring_linear.py has the sizes.
//
// A unit is kGroups results of every row, by one warp; each warp of the launch has a run of units, equally
// many. It has a ring of its own of kStages pieces of a row of the weight, kPiece elements each: a piece is
// loaded from it as soon as it is there, and makes room for the next one. So no warp waits for another.
//
// The multiplication is StreamLinear's, with 8 pieces: the 8 columns of a fragment of the weight are pieces
// of 32 elements of one row, and the 16 rows of a fragment of x the same pieces of its two rows. A result is
// the sum over the diagonal. in_features is a multiple of kStep.
#pragma once
#include "normalised_rows.cuh"
#include "ptx_sm90.cuh"

template <typename T, int kWarps, int kGroups_, int kPiece, int kStages, bool kShared>
struct RingLinear {
  using Element = T;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocks = 2;         // on a multiprocessor: of this kernel and the next
  static constexpr int kRows = 2;           // of x, at most
  static constexpr int kHalves = 1;         // rows of x that a lane has
  static constexpr int kGroups = kGroups_;  // rows of the weight in a unit
  static constexpr int kGroupColumns = 1;
  static constexpr int kColumns = kGroups;  // of a unit
  static constexpr int kVector = 8;         // elements of a load
  static constexpr int kStep = 32 * kVector;
  static constexpr int kSteps = kPiece / kStep;
  static constexpr int kBarrierBytes = 8;
  static constexpr int kPrefetched = 3;  // pieces of a warp that go into the L2 cache meanwhile
  static_assert(kPiece % kStep == 0, "whole steps");
  static_assert(kWarps * kBarrierBytes % 16 == 0, "what follows the barriers is aligned");

  using Words = Pack<unsigned, 4>;
  using Rows = NormalisedRows<T, kThreads, kRows, true>;

  // The row of the weight that gives a column of a unit, where columns are the weight's rows in order.
  struct RowsInOrder {
    int out_features;
    __device__ __forceinline__ long long operator()(int unit, int) const {
      static_assert(kColumns == 1, "no unit has columns after the last");
      return unit;
    }
  };

  // As StreamLinear::run, with half 0, column 0, and the row of a lane its index.
  template <
      typename WeightRow,
      typename LoadConstants,
      typename Prepare,
      typename BeginRow,
      typename Begin,
      typename Finish>
  static __device__ __forceinline__ void run(
      const WeightRow& weight_row,
      const LoadConstants& load_constants,
      const Prepare& prepare,
      const BeginRow& begin_row,
      const Begin& begin_unit,
      const Finish& finish_unit,
      const T* x,                    // [tokens, in_features]
      const T* __restrict__ weight,  // [.., in_features]
      int units,
      int tokens,
      int in_features) {
    extern __shared__ __align__(16) unsigned char smem[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned barriers = shared_address(smem) + warp * kStages * kBarrierBytes;
    T* const rings = reinterpret_cast<T*>(smem + kWarps * kStages * kBarrierBytes);
    T* const ring = rings + warp * kStages * kPiece;
    T* const rows = rings + kWarps * kStages * kPiece;

    const int stride = gridDim.x * kWarps, first_unit = blockIdx.x * kWarps + warp;

    // A piece of this warp's; those that have not been copied begin at `next`, of lane 0.
    struct Place {
      int unit, group, k;
    };
    Place next = {first_unit, 0, 0};
    constexpr int kPieceBytes = kPiece * sizeof(T);
    const auto address = [&](const Place& place) {
      return weight + weight_row(place.unit, place.group) * in_features + place.k;
    };
    const auto advance = [&](Place& place) {
      place.k += kPiece;
      if (place.k < in_features) return;
      place.k = 0;
      if (++place.group < kGroups) return;
      place.group = 0;
      place.unit += stride;
    };
    const auto copy_next = [&](int stage) {
      if (next.unit >= units) return;
      const unsigned barrier = barriers + stage * kBarrierBytes;
      mbarrier_arrive_expecting(barrier, kPieceBytes);
      copy_bytes_once(shared_address(ring + stage * kPiece), address(next), kPieceBytes, barrier);
      advance(next);
    };
    if (lane == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        mbarrier_init(barriers + stage * kBarrierBytes, 1);
      }
      mbarrier_init_done();
      for (int stage = 0; stage < kStages; ++stage) copy_next(stage);
      Place later = next;
      for (int i = 0; i < kPrefetched && later.unit < units; ++i) {
        prefetch_bytes(address(later), kPieceBytes);
        advance(later);
      }
    }
    let_next_kernel_start();
    load_constants();
    wait_for_previous_kernel();
    const bool has_row = lane < tokens, both = tokens > 1;
    if (has_row) begin_row(0, lane);
    kShared ? prepare(rows) : take_rows(rows, x, tokens, in_features);
    int stage = 0, phase = 0;
    // Warps go on together from unit to unit: adjacent rows of the weight are then read at a time.
    const int turns = (units - static_cast<int>(blockIdx.x) * kWarps + stride - 1) / stride;
    for (int turn = 0; turn < turns; ++turn) {
      __syncthreads();
      const int unit = first_unit + turn * stride;
      if (unit >= units) continue;
      if (has_row) begin_unit(0, unit, lane, 0);
      float sums[kGroups];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        float results[kRows][2][2][4] = {};  // by halves of loads, and by turns
        for (int first = 0; first < in_features; first += kPiece) {
          const unsigned barrier = barriers + stage * kBarrierBytes;
          mbarrier_wait(barrier, phase);
          const T* const piece = ring + stage * kPiece + lane * kVector;
          Words loaded[kSteps];
#pragma unroll
          for (int s = 0; s < kSteps; ++s) {
            loaded[s] = *reinterpret_cast<const Words*>(piece + s * kStep);
          }
          __syncwarp();  // all lanes have loaded
          if (lane == 0) copy_next(stage);
          __syncwarp();
          multiply(results[0], loaded, rows + first);
          if (both) multiply(results[1], loaded, rows + in_features + first);
          if (++stage == kStages) {
            stage = 0;
            phase ^= 1;
          }
        }
        const float upper = own_sum(results[0]), lower = both ? own_sum(results[1]) : 0.0f;
        sums[g] = lane == 0 ? upper : lower;
      }
      if (has_row) finish_unit(0, unit, lane, 0, sums);
    }
  }

 private:
  // Puts the rows of x into shared memory.
  static __device__ __forceinline__ void take_rows(
      T* rows,
      const T* x,  // [tokens, in_features]
      int tokens,
      int in_features) {
    using Vector = typename Rows::Vector;
    constexpr int kAtOnce = 8;  // loads of a thread
    const Vector* const from = reinterpret_cast<const Vector*>(x);
    Vector* const to = reinterpret_cast<Vector*>(rows);
    const int vectors = tokens * in_features / kVector;
    for (int first = threadIdx.x; first < vectors; first += kAtOnce * kThreads) {
      Vector held[kAtOnce];
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h) {
        const int i = first + h * kThreads;
        if (i < vectors) held[h] = from[i];
      }
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h) {
        const int i = first + h * kThreads;
        if (i < vectors) Rows::store(to[i], held[h]);
      }
    }
    __syncthreads();
  }

  // Adds the products of a piece and the same elements of a row of x: of the first halves of loads in
  // the upper rows of a fragment, of the second ones in the lower rows. Results of other halves are
  // not used.
  static __device__ __forceinline__ void multiply(
      float (&results)[2][2][4], const Words (&weights)[kSteps], const T* x) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const Words values = *reinterpret_cast<const Words*>(x + s * kStep + lane * kVector);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned b[2] = {weights[s].v[2 * half], weights[s].v[2 * half + 1]};
        mma_m16n8k16<T>(results[s % 2][half], values.v, b);
      }
    }
  }

  // The sum over the diagonals, in every lane.
  static __device__ __forceinline__ float own_sum(const float (&results)[2][2][4]) {
    const int lane = threadIdx.x % 32, piece = lane / 4, left = lane % 4 * 2;
    float sums[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sums[i] = 0.0f;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums[i] += results[0][half][2 * half + i] + results[1][half][2 * half + i];
      }
    }
    return lanes_sum<32>(piece == left ? sums[0] : piece == left + 1 ? sums[1] : 0.0f);
  }
};
