#include "wgmma_rows.cuh"
template <typename T, int kColumns, int kStages, int kGroups, int kHow>
__global__ void __launch_bounds__(wgmma_rows_threads(kGroups), 1) parts_rows(
    float* workspace, const T*, const T*, int tokens, int in_features, int out_features, int parts,
    const __grid_constant__ TensorMap x_map,
    const __grid_constant__ TensorMap weight_map) {
  using Linear = WgmmaRows<T, kColumns, 1, kStages, kGroups, kHow>;
  const auto box_row = [&](int tile, int) { return tile * kColumns; };
  const auto finish = [&](int tile, int part, int first_row, const float (&sums)[kColumns / 2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + Linear::row_of(half);
      if (row >= tokens) continue;
      float* const to = workspace + (part * static_cast<long long>(tokens) + row) * out_features;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const int column = tile * kColumns + 8 * n + Linear::column_of(0);
        const Pack<float, 2> pair = {{sums[4 * n + 2 * half], sums[4 * n + 2 * half + 1]}};
        if (column < out_features) *reinterpret_cast<Pack<float, 2>*>(to + column) = pair;
      }
    }
  };
  Linear::run(box_row, finish, x_map, weight_map, tokens, Linear::tiles_of(out_features, kColumns), parts, in_features);
}
