#include "linear_add_rms_norm.cu"
#include "silu.cuh"
#include "wgmma_rows.cuh"
#ifdef PAIRS
// two fragments at a time: even lanes of a quad have four columns of the first, odd lanes of the second
#define STORE(n, column, end)                                                              \
  if (n % 2 == 0) {                                                                        \
    even = results;                                                                        \
  } else {                                                                                 \
    const bool odd = threadIdx.x % 2;                                                      \
    unsigned mine = __builtin_bit_cast(unsigned, odd ? results : even);                          \
    const unsigned given = __builtin_bit_cast(unsigned, odd ? even : results);                   \
    const unsigned got = __shfl_xor_sync(0xffffffffu, given, 1);                           \
    const uint2 four = odd ? make_uint2(got, mine) : make_uint2(mine, got);                \
    const int to_column = column - 8 + (odd ? 8 - 2 : 0);                                  \
    if (row < tokens && to_column < end) *reinterpret_cast<uint2*>(to + to_column) = four; \
  }
#define SKIP
#else
#define STORE(n, column, end) \
  if (column < end) *reinterpret_cast<Pack<T, 2>*>(to + column) = results;
#define SKIP if (row >= tokens) continue;
#endif
template <typename T, int kColumns, int kStages, int kWarpgroups, int kGroups, int kCluster>
__global__ void __launch_bounds__(128 * kWarpgroups, 1) swiglu_rows(
    T* __restrict__ out, const T*, const T*, int tokens, int in_features, int inter,
    const __grid_constant__ TensorMap x_map,
    const __grid_constant__ TensorMap weight_map) {
  using Linear = WgmmaRows<T, kColumns, 2, kStages, kWarpgroups, kGroups, kCluster>;
  constexpr int kGates = kColumns / 2;  // of a tile
  const auto box_row = [&](int tile, int box) { return box * inter + tile * kGates; };
  const auto finish = [&](int tile, int, const float (&sums)[kGroups][kColumns / 2]) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Linear::row_of(group, half);
      SKIP
      Pack<T, 2> even;
      T* const to = out + static_cast<long long>(row) * inter;
#pragma unroll
      for (int n = 0; n < kGates / 8; ++n) {
        const int column = tile * kGates + 8 * n + Linear::column_of(0);
        Pack<T, 2> results;
#ifdef PAIRS
        static_assert(kGates % 16 == 0, "");
#endif
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = 4 * n + 2 * half + i;
          const float gate = to_float(from_float<T>(sums[group][at]));
          const float up = to_float(from_float<T>(sums[group][at + kGates / 2]));
          results.v[i] = from_float<T>(silu<T>(gate) * up);
        }
        STORE(n, column, inter)
      }
    }
    }
  };
  Linear::run(box_row, finish, x_map, weight_map, tokens, Linear::tiles_of(inter, kGates), 1, in_features);
}
template <typename T, int kColumns, int kStages, int kWarpgroups, int kGroups, int kCluster>
__global__ void __launch_bounds__(128 * kWarpgroups, 1) linear_rows(
    T* __restrict__ out, const T*, const T*, int tokens, int in_features, int out_features,
    const __grid_constant__ TensorMap x_map,
    const __grid_constant__ TensorMap weight_map) {
  using Linear = WgmmaRows<T, kColumns, 1, kStages, kWarpgroups, kGroups, kCluster>;
  const auto box_row = [&](int tile, int) { return tile * kColumns; };
  const auto finish = [&](int tile, int, const float (&sums)[kGroups][kColumns / 2]) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Linear::row_of(group, half);
      SKIP
      Pack<T, 2> even;
      T* const to = out + static_cast<long long>(row) * out_features;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const int column = tile * kColumns + 8 * n + Linear::column_of(0);
        Pack<T, 2> results;
#pragma unroll
        for (int i = 0; i < 2; ++i) results.v[i] = from_float<T>(sums[group][4 * n + 2 * half + i]);
        STORE(n, column, out_features)
      }
    }
    }
  };
  Linear::run(box_row, finish, x_map, weight_map, tokens, Linear::tiles_of(out_features, kColumns), 1, in_features);
}
template <typename T, int kColumns, int kStages, int kWarpgroups, int kGroups, int kCluster>
__global__ void __launch_bounds__(128 * kWarpgroups, 1) parts_rows(
    float* workspace, const T*, const T*, int tokens, int in_features, int out_features, int parts,
    const __grid_constant__ TensorMap x_map,
    const __grid_constant__ TensorMap weight_map) {
  using Linear = WgmmaRows<T, kColumns, 1, kStages, kWarpgroups, kGroups, kCluster>;
  const auto box_row = [&](int tile, int) { return tile * kColumns; };
  const auto finish = [&](int tile, int part, const float (&sums)[kGroups][kColumns / 2]) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Linear::row_of(group, half);
      if (row >= tokens) continue;
      float* const to = workspace + (part * static_cast<long long>(tokens) + row) * out_features;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const int column = tile * kColumns + 8 * n + Linear::column_of(0);
        const Pack<float, 2> pair = {{sums[group][4 * n + 2 * half], sums[group][4 * n + 2 * half + 1]}};
        if (column < out_features) *reinterpret_cast<Pack<float, 2>*>(to + column) = pair;
      }
    }
    }
  };
  Linear::run(box_row, finish, x_map, weight_map, tokens, Linear::tiles_of(out_features, kColumns), parts, in_features);
}
