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
  static_assert(kPiece % kStep == 0, "whole steps");
  static_assert(kWarps * kBarrierBytes % 16 == 0, "what follows the barriers is aligned");

  using Words = Pack<unsigned, 4>;
  using Rows = NormalisedRows<T, kThreads, kRows>;

  // The row of the weight that gives a column of a unit, where columns are the weight's rows in order.
  struct RowsInOrder {
    int out_features;
    __device__ __forceinline__ long long operator()(int unit, int column) const {
      return min(unit * kColumns + column, out_features - 1);
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

    const long long all_units = units;
    const int warps = gridDim.x * kWarps, own_warp = blockIdx.x * kWarps + warp;
    const int begin = static_cast<int>(all_units * own_warp / warps);
    const int end = static_cast<int>(all_units * (own_warp + 1) / warps);

    // The next piece to be copied, by lane 0.
    int next_row = 0, next_k = 0;  // of this warp's rows of the weight
    const auto copy_next = [&](int stage) {
      if (next_row >= (end - begin) * kGroups) return;
      const long long row = weight_row(begin + next_row / kGroups, next_row % kGroups);
      const int bytes = min(kPiece, in_features - next_k) * static_cast<int>(sizeof(T));
      const unsigned barrier = barriers + stage * kBarrierBytes;
      mbarrier_arrive_expecting(barrier, bytes);
      copy_bytes(
          shared_address(ring + stage * kPiece), weight + row * in_features + next_k, bytes,
          barrier);
      next_k += kPiece;
      if (next_k >= in_features) {
        next_k = 0;
        ++next_row;
      }
    };
    if (lane == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        mbarrier_init(barriers + stage * kBarrierBytes, 1);
      }
      mbarrier_init_done();
      for (int stage = 0; stage < kStages; ++stage) copy_next(stage);
    }
    let_next_kernel_start();
    load_constants();
    wait_for_previous_kernel();
    kShared ? prepare(rows) : take_rows(rows, x, tokens, in_features);

    const bool has_row = lane < tokens, both = tokens > 1;
    if (has_row) begin_row(0, lane);
    int stage = 0, phase = 0;
    for (int unit = begin; unit < end; ++unit) {
      if (has_row) begin_unit(0, unit, lane, 0);
      float sums[kGroups];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        float results[2][4] = {};  // of the even and the odd halves of loads
        for (int first = 0; first < in_features; first += kPiece) {
          mbarrier_wait(barriers + stage * kBarrierBytes, phase);
          const T* const piece = ring + stage * kPiece + lane * kVector;
          const T* const own_x = rows + first + lane * kVector;
          Words loaded[kSteps];
#pragma unroll
          for (int s = 0; s < kSteps; ++s) {
            if (first + s * kStep < in_features) {
              loaded[s] = *reinterpret_cast<const Words*>(piece + s * kStep);
            }
          }
          __syncwarp();  // all lanes have loaded
          if (lane == 0) copy_next(stage);
          __syncwarp();
#pragma unroll
          for (int s = 0; s < kSteps; ++s) {
            if (first + s * kStep < in_features) {
              const Words upper = *reinterpret_cast<const Words*>(own_x + s * kStep);
              Words lower = {{0u, 0u, 0u, 0u}};
              if (both) lower = *reinterpret_cast<const Words*>(own_x + in_features + s * kStep);
#pragma unroll
              for (int i = 0; i < 4; i += 2) {
                const unsigned a[4] = {upper.v[i], lower.v[i], upper.v[i + 1], lower.v[i + 1]};
                const unsigned b[2] = {loaded[s].v[i], loaded[s].v[i + 1]};
                mma_m16n8k16<T>(results[i / 2], a, b);
              }
            }
          }
          if (++stage == kStages) {
            stage = 0;
            phase ^= 1;
          }
        }
        sums[g] = own_sum(results, both);
      }
      if (has_row) finish_unit(0, unit, lane, 0, sums);
    }
  }

 private:
  // Puts the rows of x into shared memory, as they are.
  static __device__ __forceinline__ void take_rows(
      T* rows,
      const T* x,  // [tokens, in_features]
      int tokens,
      int in_features) {
    for (int i = threadIdx.x; i < tokens * in_features / kVector; i += kThreads) {
      cp_async16(rows + i * kVector, x + i * kVector);
    }
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
  }

  // The sum over the diagonal, in the lane of each row of x: of its pieces, which are rows and columns.
  static __device__ __forceinline__ float own_sum(const float (&results)[2][4], bool both) {
    const int lane = threadIdx.x % 32, piece = lane / 4, left = lane % 4 * 2;
    float sums[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float even = results[0][2 * row] + results[1][2 * row];
      const float odd = results[0][2 * row + 1] + results[1][2 * row + 1];
      sums[row] = piece == left ? even : piece == left + 1 ? odd : 0.0f;
      if (row == 0 || both) sums[row] = lanes_sum<32>(sums[row]);
    }
    return lane == 0 ? sums[0] : sums[1];
  }
};
