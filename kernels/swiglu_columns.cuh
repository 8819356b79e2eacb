// What becomes of the columns of a product where they are computed: silu(gate) * what it scales, as
// silu_and_mul does, each rounded to T first.
//
// A unit's first half of groups are gates, the second what these scale.
#pragma once
#include "silu.cuh"

// Stream: StreamLinear or HeldRows; before: load_constants and prepare of one that normalises the rows.
template <typename Stream, typename T, typename... Before>
__device__ __forceinline__ void swiglu_columns_of(
    T* __restrict__ out,           // [tokens, inter]
    const T* x,                    // [tokens, in_features]
    const T* __restrict__ weight,  // [2*inter, in_features]: gates, then what they scale
    int tokens,
    int in_features,
    int inter,
    const Before&... before) {
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
        out[static_cast<long long>(row) * inter + output] =
            gated<T>(sums[g], sums[g + kGateGroups]);
      }
    }
  };
  const int units = (inter + kGates - 1) / kGates;
  Stream::run(
      weight_row, before..., begin_row, begin, finish, x, weight, units, tokens, in_features);
}
