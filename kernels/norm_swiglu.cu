// norm_swiglu: out[t, i] = silu(z[t, i]) * z[t, inter + i] with z[t, n] = sum over k of y[t, k] *
//              weight[n, k] and y[t, k] = x[t, k] * rsqrt(mean(x[t, :]^2) + eps) * gain[k]
//
// In float32; rounds to T where rms_norm, linear and silu_and_mul store: y, z and the result. See
// swiglu_columns.cuh. Each block normalises the few rows for itself; see stream_linear.cuh.
#include "stream_linear.cuh"
#include "swiglu_columns.cuh"

template <typename T, typename Stream>
__global__ void __launch_bounds__(Stream::kThreads, 1) norm_swiglu(
    T* __restrict__ out,           // [tokens, inter]
    const T* x,                    // [tokens, in_features]
    const T* __restrict__ gain,    // [in_features]
    const T* __restrict__ weight,  // [2*inter, in_features]: gates, then what they scale
    int tokens,
    int in_features,
    int inter,
    float eps) {
  typename Stream::Vector gains[Stream::kHeld];
  const auto load_constants = [&] { Stream::load_gains(gains, gain, in_features); };
  const auto prepare = [&](T* rows) {
    Stream::normalise_rows(rows, x, gains, tokens, in_features, eps);
  };
  swiglu_columns_of<Stream>(out, x, weight, tokens, in_features, inter, load_constants, prepare);
}
