// linear_stream: out = x @ weight.T + bias for few rows; products, sum and bias in float32, rounded once. See
// stream_linear.cuh and held_rows.cuh.
#pragma once
#include "held_rows.cuh"
#include "stream_linear.cuh"

// Stream: StreamLinear or HeldRows of T.
template <typename T, typename Stream>
__global__ void __launch_bounds__(Stream::kThreads, 1) linear_stream(
    T* __restrict__ out,           // [tokens, out_features]
    const T* x,                    // [tokens, in_features]
    const T* __restrict__ weight,  // [out_features, in_features]
    const T* __restrict__ bias,    // [out_features] or null
    int tokens,
    int in_features,
    int out_features) {
  const typename Stream::RowsInOrder weight_row = {out_features};
  const auto begin_row = [](int, int) {};
  const auto begin = [](int, int, int, int) {};
  const auto finish = [&](int, int unit, int row, int column,
                          const float (&sums)[Stream::kGroups]) {
    const int first = unit * Stream::kColumns + column;
    T* const to = out + static_cast<long long>(row) * out_features + first;
#pragma unroll
    for (int g = 0; g < Stream::kGroups; ++g) {
      const int place = g * Stream::kGroupColumns;
      if (place < out_features - first) {
        const float sum = sums[g] + (bias != nullptr ? to_float(bias[first + place]) : 0.0f);
        to[place] = from_float<T>(sum);
      }
    }
  };
  const int units = (out_features + Stream::kColumns - 1) / Stream::kColumns;
  Stream::run(weight_row, begin_row, begin, finish, x, weight, units, tokens, in_features);
}
