// linear_stream: out = x @ weight.T + bias for few rows; products, sum and bias in float32, rounded once.
// See stream_linear.cuh.
#pragma once
#include "stream_linear.cuh"

template <
    typename T,
    int kSegments,
    int kFragments,
    int kRowTeams,
    int kDepthWarps,
    int kGroups,
    int kAhead>
__global__ void __launch_bounds__(32 * kRowTeams * kDepthWarps, 1) linear_stream(
    T* __restrict__ out,           // [tokens, out_features]
    const T* x,                    // [tokens, in_features]
    const T* __restrict__ weight,  // [out_features, in_features]
    const T* __restrict__ bias,    // [out_features] or null
    int tokens,
    int in_features,
    int out_features) {
  using Stream =
      StreamLinear<T, kSegments, kFragments, kRowTeams, kDepthWarps, kGroups, kAhead, false>;
  const typename Stream::RowsInOrder weight_row = {out_features};
  const auto load_constants = [] {};
  const auto prepare = [](T*) {};
  const auto begin_row = [](int, int) {};
  const auto begin = [&](int, int, int, int) {};
  const auto finish = [&](int, int unit, int row, int column, const float (&sums)[kGroups]) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int output = unit * Stream::kColumns + g * Stream::kGroupColumns + column;
      if (output < out_features) {
        const float sum = sums[g] + (bias != nullptr ? to_float(bias[output]) : 0.0f);
        out[static_cast<long long>(row) * out_features + output] = from_float<T>(sum);
      }
    }
  };
  const int units = (out_features + Stream::kColumns - 1) / Stream::kColumns;
  Stream::run(
      weight_row, load_constants, prepare, begin_row, begin, finish, x, weight, units, tokens,
      in_features);
}
