// linear_swiglu: out[t, i] = silu(z[t, i]) * z[t, inter + i] with z[t, n] = sum over k of x[t, k] *
//                weight[n, k]
//
// In float32; rounds to T where linear and silu_and_mul store: z and the result. Few rows, see
// stream_linear.cuh and held_rows.cuh: linear_swiglu has the weight go through registers,
// linear_swiglu_held through shared memory; a unit's first half of groups are gates, the second what
// these scale. linear_swiglu_wgmma and linear_swiglu_rows: more rows, see wgmma_linear.cuh and
// wgmma_rows.cuh; of a tile the first box has the gates. Where that is not to be had, silu_and_mul follows a product of cuBLASLt.
#include "held_rows.cuh"
#include "silu.cuh"
#include "silu_and_mul.cu"
#include "stream_linear.cuh"
#include "wgmma_linear.cuh"
#include "wgmma_rows.cuh"

template <typename Stream, typename T>
__device__ __forceinline__ void swiglu_of(
    T* __restrict__ out,           // [tokens, inter]
    const T* x,                    // [tokens, in_features]
    const T* __restrict__ weight,  // [2*inter, in_features]: gates, then what they scale
    int tokens,
    int in_features,
    int inter) {
  constexpr int kGates = Stream::kColumns / 2;  // of a unit
  constexpr int kGateGroups = Stream::kGroups / 2;
  static_assert(Stream::kGroups % 2 == 0, "half of the groups are gates");
  // Gates after the last are computed as the last one, and not stored.
  const auto weight_row = [&](int unit, int column) -> long long {
    const int gate = min(unit * kGates + column % kGates, inter - 1);
    return column < kGates ? gate : inter + gate;
  };
  const auto begin_row = [](int, int) {};
  const auto begin = [](int, int, int, int) {};
  const auto finish = [&](int, int unit, int row, int column,
                          const float (&sums)[Stream::kGroups]) {
#pragma unroll
    for (int g = 0; g < kGateGroups; ++g) {
      const int output = unit * kGates + g * Stream::kGroupColumns + column;
      if (output < inter) {
        const float gate = to_float(from_float<T>(sums[g]));
        const float up = to_float(from_float<T>(sums[g + kGateGroups]));
        out[static_cast<long long>(row) * inter + output] = from_float<T>(silu<T>(gate) * up);
      }
    }
  };
  const int units = (inter + kGates - 1) / kGates;
  Stream::run(weight_row, begin_row, begin, finish, x, weight, units, tokens, in_features);
}

template <
    typename T,
    int kSegments,
    int kFragments,
    int kRowTeams,
    int kDepthWarps,
    int kGroups,
    int kAhead>
__global__ void __launch_bounds__(32 * kRowTeams * kDepthWarps, 1) linear_swiglu(
    T* __restrict__ out,           // [tokens, inter]
    const T* x,                    // [tokens, in_features]
    const T* __restrict__ weight,  // [2*inter, in_features]
    int tokens,
    int in_features,
    int inter) {
  using Stream =
      StreamLinear<T, kSegments, kFragments, kRowTeams, kDepthWarps, kGroups, kAhead, false>;
  swiglu_of<Stream>(out, x, weight, tokens, in_features, inter);
}

template <typename T, int kSteps, int kDepths, int kStages>
__global__ void __launch_bounds__(kHeldThreads, 1) linear_swiglu_held(
    T* __restrict__ out,           // [tokens, inter]
    const T* x,                    // [tokens, in_features]
    const T* __restrict__ weight,  // [2*inter, in_features]
    int tokens,
    int in_features,
    int inter) {
  using Stream = HeldRows<T, kSteps, kDepths, kStages>;
  swiglu_of<Stream>(out, x, weight, tokens, in_features, inter);
}

// What a thread of wgmma has of a row: the sums of kGates results' gates, of two neighbours and then from
// the next 8 columns on, and behind them those that the gates scale.
template <typename T, int kGates>
__device__ __forceinline__ void store_gated(
    T* __restrict__ out,  // [inter], of the row
    int inter,
    int first,  // of the thread's results
    int half,   // of the rows
    const float (&sums)[kGates]) {
#pragma unroll
  for (int n = 0; n < kGates / 8; ++n) {
    Pack<T, 2> results;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = 4 * n + 2 * half + i;
      const float gate = to_float(from_float<T>(sums[at]));
      const float up = to_float(from_float<T>(sums[at + kGates / 2]));
      results.v[i] = from_float<T>(silu<T>(gate) * up);
    }
    if (first + 8 * n < inter) *reinterpret_cast<Pack<T, 2>*>(out + first + 8 * n) = results;
  }
}

template <typename T, int kColumns, int kStages>
__global__ void __launch_bounds__(kWgmmaThreads, 1) linear_swiglu_wgmma(
    T* __restrict__ out,  // [tokens, inter]
    const T*,             // x [tokens, in_features]
    const T*,             // weight [2*inter, in_features]: gates, then what they scale
    int tokens,
    int in_features,
    int inter,
    const __grid_constant__ TensorMap x_map,
    const __grid_constant__ TensorMap weight_map) {
  using Linear = WgmmaLinear<T, kColumns, 2, kStages>;
  constexpr int kGates = kColumns / 2;  // of a tile
  const auto box_row = [&](int tile, int box) { return box * inter + tile * kGates; };
  const auto finish = [&](int tile, int, const float (&sums)[kColumns / 2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Linear::row_of(half);
      if (row >= tokens) continue;
      T* const to = out + static_cast<long long>(row) * inter;
      store_gated(to, inter, tile * kGates + Linear::column_of(0), half, sums);
    }
  };
  const int tiles = (inter + kGates - 1) / kGates;
  Linear::run(box_row, finish, x_map, weight_map, tokens, tiles, 1, in_features);
}

template <typename T, int kColumns, int kStages, int kGroups, int kHow>
__global__ void __launch_bounds__(wgmma_rows_threads(kGroups), 1) linear_swiglu_rows(
    T* __restrict__ out,  // [tokens, inter]
    const T*,             // x [tokens, in_features]
    const T*,             // weight [2*inter, in_features]: gates, then what they scale
    int tokens,
    int in_features,
    int inter,
    const __grid_constant__ TensorMap x_map,
    const __grid_constant__ TensorMap weight_map) {
  using Linear = WgmmaRows<T, kColumns, 2, kStages, kGroups, kHow>;
  constexpr int kGates = kColumns / 2;  // of a tile
  const auto box_row = [&](int tile, int box) { return box * inter + tile * kGates; };
  const auto finish = [&](int tile, int, int first_row, const float (&sums)[kColumns / 2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + Linear::row_of(half);
      if (row >= tokens) continue;
      T* const to = out + static_cast<long long>(row) * inter;
      store_gated(to, inter, tile * kGates + Linear::column_of(0), half, sums);
    }
  };
  const int tiles = Linear::tiles_of(inter, kGates);
  Linear::run(box_row, finish, x_map, weight_map, tokens, tiles, 1, in_features);
}
