// norm_swiglu: out[t, i] = silu(z[t, i]) * z[t, inter + i] with z[t, n] = sum over k of y[t, k] *
//              weight[n, k] and y[t, k] = x[t, k] * rsqrt(mean(x[t, :]^2) + eps) * gain[k]
//
// In float32; rounds to T where rms_norm, linear and silu_and_mul store: y, z and the result. A unit's
// first half of groups are gates, the second what these scale. Each block normalises the few rows for
// itself; see stream_linear.cuh.
#include "silu.cuh"
#include "stream_linear.cuh"

template <
    typename T,
    int kSegments,
    int kFragments,
    int kRowTeams,
    int kDepthWarps,
    int kGroups,
    int kAhead>
__global__ void __launch_bounds__(32 * kRowTeams * kDepthWarps, 1) norm_swiglu(
    T* __restrict__ out,           // [tokens, inter]
    const T* x,                    // [tokens, in_features]
    const T* __restrict__ gain,    // [in_features]
    const T* __restrict__ weight,  // [2*inter, in_features]: gates, then what they scale
    int tokens,
    int in_features,
    int inter,
    float eps) {
  using Stream =
      StreamLinear<T, kSegments, kFragments, kRowTeams, kDepthWarps, kGroups, kAhead, true>;
  static_assert(kGroups % 2 == 0, "half of the groups are gates");
  constexpr int kGates = Stream::kColumns / 2;  // of a unit
  // Gates after the last are computed as the last one, and not stored.
  const auto weight_row = [&](int unit, int column) -> long long {
    const int gate = min(unit * kGates + column % kGates, inter - 1);
    return column < kGates ? gate : inter + gate;
  };
  typename Stream::Vector gains[Stream::kHeld];
  const auto load_constants = [&] { Stream::load_gains(gains, gain, in_features); };
  const auto prepare = [&](T* rows) {
    Stream::normalise_rows(rows, x, gains, tokens, in_features, eps);
  };
  const auto begin_row = [](int, int) {};
  const auto begin = [&](int, int, int, int) {};
  const auto finish = [&](int, int unit, int row, int column, const float (&sums)[kGroups]) {
#pragma unroll
    for (int g = 0; g < kGroups / 2; ++g) {
      const int output = unit * kGates + g * Stream::kGroupColumns + column;
      if (output < inter) {
        const float gate = to_float(from_float<T>(sums[g]));
        const float up = to_float(from_float<T>(sums[g + kGroups / 2]));
        out[static_cast<long long>(row) * inter + output] = from_float<T>(silu<T>(gate) * up);
      }
    }
  };
  const int units = (inter + kGates - 1) / kGates;
  Stream::run(
      weight_row, load_constants, prepare, begin_row, begin, finish, x, weight, units, tokens,
      in_features);
}
