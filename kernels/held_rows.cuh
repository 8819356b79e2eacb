// 3 to 8 rows of x times a weight by a block, on tensor cores: the rows stay in registers, and the weight
// goes through a ring in shared memory. For sm_90a.
//
// A unit is kColumns results of every row. Its rows of the weight arrive in kDepths stages, each row's
// kDepth elements by one copy; a block has kStages of them, with more copies under way than loads into
// registers could be, from before the launch waits for the one before it. The block's warps share a stage
// along k, so that a warp needs the same elements of x for all units, and holds them. The warps' sums of
// a unit meet in shared memory; one warp, in turn, adds them in order and finishes the unit.
//
// The ring leaves no room for a second block like it on a multiprocessor. So blocks lie one on each however early
// they are placed, and the next launch may begin at once.
//
// The order of a result's sum depends on the template arguments alone; rows of x have no influence on
// each other.
#pragma once
#include "common.cuh"
#include "ptx_sm90.cuh"

template <typename T, int kSteps, int kDepths, int kStages>
struct HeldRows {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kRows = 8;     // of x, the upper half of a fragment
  static constexpr int kHalves = 1;   // for whoever finishes a unit
  static constexpr int kColumns = 8;  // of a unit, in groups for whoever finishes it
  static constexpr int kGroups = 2, kGroupColumns = kColumns / kGroups;
  static constexpr int kVector = 8;          // elements of a load
  static constexpr int kStep = 4 * kVector;  // two tensor core steps
  static constexpr int kWarpDepth = kSteps * kStep;
  static constexpr int kDepth = kWarps * kWarpDepth;
  static constexpr int kPart = kDepths * kDepth;  // of in_features that a launch multiplies
  static constexpr int kPitch = kDepth + kStep;   // of a stage's rows: 8 lanes read different banks
  static constexpr int kStage = kColumns * kPitch;
  static constexpr int kBarrierBytes = 8;  // after the stages, one for each

  using Words = Pack<unsigned, 4>;

  // The row of the weight that gives a column of a unit, where columns are the weight's rows in order.
  // Columns after the last are computed as the last one.
  struct RowsInOrder {
    int out_features;
    __device__ __forceinline__ long long operator()(int unit, int column) const {
      return min(unit * kColumns + column, out_features - 1);
    }
  };

  // Calls finish(half, unit, row, column, sums) for each unit and row of x, and each column of a group,
  // in the lane that has its sums: sums[g] is the result at column g * kGroupColumns + column of the
  // unit. The same lane has called begin_row(half, row) once, and begin(half, unit, row, column) before
  // the unit's products, to load what finish needs; half tells its calls apart. weight_row(unit, column)
  // is the row of the weight that gives a column of a unit.
  template <typename WeightRow, typename BeginRow, typename Begin, typename Finish>
  static __device__ __forceinline__ void run(
      const WeightRow& weight_row,
      const BeginRow& begin_row,
      const Begin& begin_unit,
      const Finish& finish_unit,
      const T* x,                    // [tokens, in_features], from the first column that counts
      const T* __restrict__ weight,  // [.., in_features], from the same column
      int units,
      int tokens,
      int in_features) {
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ float parts[2][kWarps][kRows]
                          [kColumns];  // two units', so that one barrier is enough
    T* const ring = reinterpret_cast<T*>(smem);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long all_units = units;
    const int begin = static_cast<int>(all_units * blockIdx.x / gridDim.x);
    const int end = static_cast<int>(all_units * (blockIdx.x + 1) / gridDim.x);
    const int fills = (end - begin) * kDepths;

    const unsigned barriers = shared_address(ring + kStages * kStage);
    const auto barrier_of = [&](int n) { return barriers + n % kStages * kBarrierBytes; };
    const auto fill = [&](int n) {  // a warp calls it
      if (n >= fills) return;
      if (lane == 0) mbarrier_arrive_expecting(barrier_of(n), kColumns * kDepth * 2);
      __syncwarp();
      if (lane < kColumns) {
        const long long row = weight_row(begin + n / kDepths, lane);
        copy_bytes(
            shared_address(ring + n % kStages * kStage + lane * kPitch),
            weight + row * in_features + n % kDepths * kDepth, kDepth * 2, barrier_of(n));
      }
    };
    if (threadIdx.x == 0) {
      for (int n = 0; n < kStages; ++n) mbarrier_init(barrier_of(n), 1);
      mbarrier_init_done();
    }
    __syncthreads();
    for (int n = warp; n < kStages; n += kWarps) fill(n);
    wait_for_previous_kernel();
    start_next_kernel();

    const int first_k = warp * kWarpDepth + lane % 4 * kVector;
    const int row = lane / 4;
    Words held[kDepths][kSteps];
    {  // rows after the last are computed as the last one
      const T* from = x + static_cast<long long>(min(row, tokens - 1)) * in_features + first_k;
#pragma unroll
      for (int i = 0; i < kDepths * kSteps; ++i) {
        const int k = i / kSteps * kDepth + i % kSteps * kStep;
        held[i / kSteps][i % kSteps] = *reinterpret_cast<const Words*>(from + k);
      }
    }
    if (row < tokens) begin_row(0, row);

    const int column = lane % 4;
    for (int unit = begin; unit < end; ++unit) {
      const int turn = unit - begin;
      const bool finishes = warp == turn % kWarps;
      if (finishes && row < tokens) begin_unit(0, unit, row, column);
      float sums[2][4] = {};  // two chains of tensor core steps
      auto& own_parts = parts[turn % 2];
#pragma unroll
      for (int depth = 0; depth < kDepths; ++depth) {
        const int n = turn * kDepths + depth;
        mbarrier_wait(barrier_of(n), n / kStages % 2);
        const T* stage = ring + n % kStages * kStage + lane / 4 * kPitch + first_k;
        unsigned weights[2][4];
        load_shared(weights[0], stage);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          if (step + 1 < kSteps) load_shared(weights[(step + 1) % 2], stage + (step + 1) * kStep);
          const Words& own = held[depth][step];
#pragma unroll
          for (int i = 0; i < 4; i += 2) {
            const unsigned a[4] = {own.v[i], 0u, own.v[i + 1], 0u};
            const unsigned b[2] = {weights[step % 2][i], weights[step % 2][i + 1]};
            mma_m16n8k16<T>(sums[i / 2], a, b);
          }
        }
        if (depth == kDepths - 1) {
          float* to = &own_parts[warp][row][2 * column];
          to[0] = sums[0][0] + sums[1][0];
          to[1] = sums[0][1] + sums[1][1];
        }
        fence_shared_memory();
        __syncthreads();  // no warp reads the stage any more, and the sums are there
        if (warp == n % kWarps) fill(n + kStages);
      }
      if (!finishes || row >= tokens) continue;
      float results[kGroups];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int place = g * kGroupColumns + column;
        results[g] = own_parts[0][row][place];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) results[g] += own_parts[w][row][place];
      }
      finish_unit(0, unit, row, column, results);
    }
  }
};
