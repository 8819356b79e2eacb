// linear_add: out[t, n] = residual[t, n] + (sum over k of x[t, k] * weight[n, k], + bias[n] if there is
// a bias)
//
// Products, sum and bias in float32; the product rounds to T before the residual is added, and the
// result at the store, as linear and add do one after the other. Few rows: see stream_linear.cuh.
#include "stream_linear.cuh"

template <typename T, typename Stream>
__global__ void __launch_bounds__(Stream::kThreads, 1) linear_add(
    T* __restrict__ out,           // [tokens, out_features]
    const T* residual,             // [tokens, out_features]
    const T* x,                    // [tokens, in_features]
    const T* __restrict__ weight,  // [out_features, in_features]
    const T* __restrict__ bias,    // [out_features] or null
    int tokens,
    int in_features,
    int out_features) {
  float before[Stream::kHalves][Stream::kGroups];
  const auto output_of = [&](int unit, int g, int column) {
    return unit * Stream::kColumns + g * Stream::kGroupColumns + column;
  };
  const typename Stream::RowsInOrder weight_row = {out_features};
  const auto load_constants = [] {};
  const auto prepare = [](T*) {};
  const auto begin_row = [](int, int) {};
  const auto begin = [&](int half, int unit, int row, int column) {
#pragma unroll
    for (int g = 0; g < Stream::kGroups; ++g) {
      const int output = min(output_of(unit, g, column), out_features - 1);
      before[half][g] = to_float(residual[static_cast<long long>(row) * out_features + output]);
    }
  };
  const auto finish = [&](int half, int unit, int row, int column,
                          const float (&sums)[Stream::kGroups]) {
#pragma unroll
    for (int g = 0; g < Stream::kGroups; ++g) {
      const int output = output_of(unit, g, column);
      if (output < out_features) {
        const float sum = sums[g] + (bias != nullptr ? to_float(bias[output]) : 0.0f);
        const float product = to_float(from_float<T>(sum));
        out[static_cast<long long>(row) * out_features + output] =
            from_float<T>(before[half][g] + product);
      }
    }
  };
  const int units = (out_features + Stream::kColumns - 1) / Stream::kColumns;
  Stream::run(
      weight_row, load_constants, prepare, begin_row, begin, finish, x, weight, units, tokens,
      in_features);
}
