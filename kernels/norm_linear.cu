// norm_linear: out[t, n] = sum over k of y[t, k] * weight[n, k], + bias[n] if there is a bias,
//              with y[t, k] = x[t, k] * rsqrt(mean(x[t, :]^2) + eps) * gain[k]
//
// In float32; y rounds to T, as rms_norm stores it, and the result at the store. Each block normalises
// the few rows for itself, in shared memory, which saves a launch; see stream_linear.cuh.
#include "stream_linear.cuh"

template <typename T, typename Stream>
__global__ void __launch_bounds__(Stream::kThreads, 1) norm_linear(
    T* __restrict__ out,           // [tokens, out_features]
    const T* x,                    // [tokens, in_features]
    const T* __restrict__ gain,    // [in_features]
    const T* __restrict__ weight,  // [out_features, in_features]
    const T* __restrict__ bias,    // [out_features] or null
    int tokens,
    int in_features,
    int out_features,
    float eps) {
  const typename Stream::RowsInOrder weight_row = {out_features};
  typename Stream::Vector gains[Stream::kHeld];
  const auto load_constants = [&] { Stream::load_gains(gains, gain, in_features); };
  const auto prepare = [&](T* rows) {
    Stream::normalise_rows(rows, x, gains, tokens, in_features, eps);
  };
  const auto begin_row = [](int, int) {};
  const auto begin = [&](int, int, int, int) {};
  const auto finish = [&](int, int unit, int row, int column,
                          const float (&sums)[Stream::kGroups]) {
#pragma unroll
    for (int g = 0; g < Stream::kGroups; ++g) {
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
