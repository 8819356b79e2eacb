// linear: out[t, n] = sum over k of x[t, k] * weight[n, k], + bias[n] if there is a bias
//
// linear_wgmma is for 9 to 64 rows of 16-bit types on sm_90a (wgmma_linear.cuh); linear_stream is for
// few rows of 16-bit types, on tensor cores (linear_stream.cuh); linear for few rows
// of any type and size, all of which a block has; linear_tiles.cuh for any number, where a row must have
// the same bits whatever is beside it. This is about linear:
//
// Products, sum and bias in float32; rounds to T once, at the store. A warp makes kOutputs columns of
// kRows rows: its lanes share the sum over k, kWidth elements a load, and kWidth divides in_features.
// So a weight is read once, kUnroll * kOutputs loads of it in flight in each lane.
//
// The order of a sum depends on kWidth alone, and its operations are spelled out as fmaf: a row has
// the same bits whatever kRows and kOutputs. Does not use tensor cores, nor split k over warps.
#include "common.cuh"
#include "linear_stream.cuh"
#include "linear_tiles.cuh"
#include "ptx.cuh"
#include "wgmma_linear.cuh"

template <typename T, int kWidth, int kRows, int kOutputs, int kThreads>
__global__ void __launch_bounds__(kThreads, 1) linear(
    T* __restrict__ out,           // [tokens, out_features]
    const T* x,                    // [tokens, in_features]
    const T* __restrict__ weight,  // [out_features, in_features]
    const T* __restrict__ bias,    // [out_features] or null
    int tokens,
    int in_features,
    int out_features) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  using Vector = Pack<T, kWidth>;
  constexpr int kUnroll = 4;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_output = (blockIdx.x * (kThreads / 32) + warp) * kOutputs;
  const int vectors = in_features / kWidth;
  if (first_output >= out_features) return;

  // Rows and columns after the last are computed as the last one, and not stored.
  const Vector* rows[kRows];
  const Vector* weights[kOutputs];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const long long row = min(r, tokens - 1);
    rows[r] = reinterpret_cast<const Vector*>(x) + row * vectors;
  }
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const long long output = min(first_output + o, out_features - 1);
    weights[o] = reinterpret_cast<const Vector*>(weight) + output * vectors;
  }

  float sums[kRows][kOutputs] = {};
  for (int first = lane; first < vectors; first += 32 * kUnroll) {
    Vector loaded[kUnroll][kOutputs];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        if (first + 32 * u < vectors) loaded[u][o] = weights[o][first + 32 * u];
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + 32 * u < vectors) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const Vector values = rows[r][first + 32 * u];
#pragma unroll
          for (int o = 0; o < kOutputs; ++o) {
            float dot = 0.0f;
#pragma unroll
            for (int k = 0; k < kWidth; ++k) {
              dot = fmaf(to_float(values.v[k]), to_float(loaded[u][o].v[k]), dot);
            }
            sums[r][o] += dot;
          }
        }
      }
    }
  }

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      float sum = lanes_sum<32>(sums[r][o]);
      const int output = first_output + o;
      if (lane == 0 && r < tokens && output < out_features) {
        if (bias != nullptr) sum += to_float(bias[output]);
        out[static_cast<long long>(r) * out_features + output] = from_float<T>(sum);
      }
    }
  }
}

template <typename T, int kColumns, int kStages, int kRows>
__global__ void __launch_bounds__(kWgmmaThreads, 1) linear_wgmma(
    T* __restrict__ out,         // [tokens, out_features]
    const T*,                    // x [tokens, in_features]
    const T*,                    // weight [out_features, in_features]
    const T* __restrict__ bias,  // [out_features] or null
    int tokens,
    int in_features,
    int out_features,
    int parts,  // 1
    const __grid_constant__ TensorMap x_map,
    const __grid_constant__ TensorMap weight_map) {
  using Linear = WgmmaLinear<T, kColumns, 1, kStages, kRows>;
  const auto box_row = [](int tile, int) { return tile * kColumns; };
  const auto finish = [&](int tile, int, const float (&sums)[kColumns / 2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long row = Linear::row_of(half);
      if (row >= tokens) continue;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const int column = tile * kColumns + 8 * n + Linear::column_of(0);
        if (column >= out_features) continue;
        Pack<T, 2> results;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float added = bias != nullptr ? to_float(bias[column + i]) : 0.0f;
          results.v[i] = from_float<T>(sums[4 * n + 2 * half + i] + added);
        }
        *reinterpret_cast<Pack<T, 2>*>(out + row * out_features + column) = results;
      }
    }
  };
  const int tiles = (out_features + kColumns - 1) / kColumns;
  Linear::run(box_row, finish, x_map, weight_map, tokens, tiles, parts, in_features);
}
