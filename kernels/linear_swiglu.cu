// linear_swiglu: out[t, i] = silu(z[t, i]) * z[t, inter + i] with z[t, n] = sum over k of x[t, k] *
//                weight[n, k]
//
// In float32; rounds to T where linear and silu_and_mul store: z and the result. linear_swiglu_stream: few
// rows, the weight goes through registers or shared memory; see stream_linear.cuh, held_rows.cuh and
// swiglu_columns.cuh. linear_swiglu_wgmma and linear_swiglu_rows: more rows, see wgmma_linear.cuh and
// wgmma_rows.cuh; of a tile the first box has the gates. Where that is not to be had, silu_and_mul follows
// a product of cuBLASLt.
#include "held_rows.cuh"
#include "silu.cuh"
#include "silu_and_mul.cu"
#include "stream_linear.cuh"
#include "swiglu_columns.cuh"
#include "wgmma_linear.cuh"
#include "wgmma_rows.cuh"

// Stream: StreamLinear or HeldRows of T.
template <typename T, typename Stream>
__global__ void __launch_bounds__(Stream::kThreads, 1) linear_swiglu_stream(
    T* __restrict__ out,           // [tokens, inter]
    const T* x,                    // [tokens, in_features]
    const T* __restrict__ weight,  // [2*inter, in_features]
    int tokens,
    int in_features,
    int inter) {
  swiglu_columns_of<Stream>(out, x, weight, tokens, in_features, inter);
}

// Two results beside each other, of what a thread of wgmma has of a tile's rows: kGates sums, the first half
// of them gates, the second what these scale.
template <typename T, int kGates>
__device__ __forceinline__ Pack<T, 2> two_gated(const float (&sums)[kGates], int first) {
  Pack<T, 2> results;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    results.v[i] = gated<T>(sums[first + i], sums[first + i + kGates / 2]);
  }
  return results;
}

template <typename T, int kColumns, int kStages, int kRows>
__global__ void __launch_bounds__(kWgmmaThreads, 1) linear_swiglu_wgmma(
    T* __restrict__ out,  // [tokens, inter]
    const T*,             // x [tokens, in_features]
    const T*,             // weight [2*inter, in_features]: gates, then what they scale
    int tokens,
    int in_features,
    int inter,
    const __grid_constant__ TensorMap x_map,
    const __grid_constant__ TensorMap weight_map) {
  using Linear = WgmmaLinear<T, kColumns, 2, kStages, kRows>;
  constexpr int kGates = kColumns / 2;  // of a tile
  const auto box_row = [&](int tile, int box) { return box * inter + tile * kGates; };
  const auto finish = [&](int tile, int, const float (&sums)[kColumns / 2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Linear::row_of(half);
      if (row >= tokens) continue;
#pragma unroll
      for (int n = 0; n < kGates / 8; ++n) {
        const int column = tile * kGates + 8 * n + Linear::column_of(0);
        const Pack<T, 2> results = two_gated<T>(sums, 4 * n + 2 * half);
        if (column < inter) {
          *reinterpret_cast<Pack<T, 2>*>(out + static_cast<long long>(row) * inter + column) =
              results;
        }
      }
    }
  };
  const int tiles = (inter + kGates - 1) / kGates;
  Linear::run(box_row, finish, x_map, weight_map, tokens, tiles, 1, in_features);
}

template <typename T, int kColumns, int kStages, int kGroups>
__global__ void __launch_bounds__(wgmma_rows_threads(kGroups), 1) linear_swiglu_rows(
    T* __restrict__ out,  // [tokens, inter]
    const T*,             // x [tokens, in_features]
    const T*,             // weight [2*inter, in_features]: gates, then what they scale
    int tokens,
    int in_features,
    int inter,
    const __grid_constant__ TensorMap x_map,
    const __grid_constant__ TensorMap weight_map) {
  using Linear = WgmmaRows<T, kColumns, 2, kStages, kGroups>;
  constexpr int kGates = kColumns / 2;  // of a tile
  static_assert(kGates % 16 == 0, "16 gates are stored together");
  const int first_gate = blockIdx.x * kGates;
  // Lanes beside each other have two results each of 8 columns and of the next 8; of either one stores
  // four, so that whole sectors are written.
  const bool odd = threadIdx.x % 2;
  const int first_column = first_gate + Linear::column_of(0) + (odd ? 6 : 0);
  const auto finish = [&](int first_row, const float (&sums)[kGates]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + Linear::row_of(half);
      T* const to = out + static_cast<long long>(row) * inter;
#pragma unroll
      for (int n = 0; n < kGates / 8; n += 2) {
        unsigned results[2];
#pragma unroll
        for (int next = 0; next < 2; ++next) {
          const Pack<T, 2> two = two_gated<T>(sums, 4 * (n + next) + 2 * half);
          results[next] = *reinterpret_cast<const unsigned*>(&two);
        }
        const unsigned own = odd ? results[1] : results[0];
        const unsigned others = __shfl_xor_sync(0xffffffffu, odd ? results[0] : results[1], 1);
        const Pack<unsigned, 2> four = {{odd ? others : own, odd ? own : others}};
        const int column = first_column + 8 * n;
        if (row < tokens && column < inter) {
          *reinterpret_cast<Pack<unsigned, 2>*>(to + column) = four;
        }
      }
    }
  };
  const int box_rows[] = {first_gate, inter + first_gate};
  Linear::run(box_rows, finish, x_map, weight_map, tokens, in_features);
}
