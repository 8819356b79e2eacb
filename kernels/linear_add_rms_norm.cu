// linear_add_rms_norm: sum[t, :] = residual[t, :] + (weight @ x[t, :] + bias)
//                      out[t, :] = sum[t, :] * rsqrt(mean(sum[t, :]^2) + eps) * gain
//
// linear_tiles (linear_tiles.cuh), linear_parts_stream (held_rows.cuh) or linear_parts_wgmma
// (wgmma_linear.cuh) leaves the products' sums over kParts parts of in_features in the workspace; this
// adds them in order, in float32, and rounds to T where linear, add and rms_norm would: the product, sum,
// which the norm reads rounded, and out. One block per token, kWidth elements of T a load; a thread keeps
// its kHeld vectors of the row in registers, and all loads are under way before the first is used.
#include "add_rms_norm.cu"  // follows a product of cuBLASLt
#include "common.cuh"
#include "held_rows.cuh"
#include "linear_tiles.cuh"
#include "norm_row.cuh"
#include "ptx.cuh"
#include "wgmma_linear.cuh"

// The products' sums over a part of in_features, blockIdx.y, as linear_tiles leaves them.
// Stream: HeldRows of T.
template <typename T, typename Stream>
__global__ void __launch_bounds__(Stream::kThreads, 1) linear_parts_stream(
    float* workspace,              // [parts, tokens, out_features]
    const T* x,                    // [tokens, in_features]
    const T* __restrict__ weight,  // [out_features, in_features]
    int tokens,
    int in_features,
    int out_features) {
  const int first_k = blockIdx.y * Stream::kPart;
  const long long columns = out_features;
  float* const sums_of_part = workspace + blockIdx.y * (tokens * columns);
  const typename Stream::RowsInOrder weight_row = {out_features};
  const auto begin_row = [](int, int) {};
  const auto begin = [](int, int, int, int) {};
  const auto finish = [&](int, int unit, int row, int column,
                          const float (&sums)[Stream::kGroups]) {
    const int first = unit * Stream::kColumns + column;
#pragma unroll
    for (int g = 0; g < Stream::kGroups; ++g) {
      const int output = first + g * Stream::kGroupColumns;
      if (output < out_features) sums_of_part[row * columns + output] = sums[g];
    }
  };
  const int units = (out_features + Stream::kColumns - 1) / Stream::kColumns;
  Stream::run(
      weight_row, begin_row, begin, finish, x + first_k, weight + first_k, units, tokens,
      in_features);
}

template <typename T, int kWidth, int kThreads, int kHeld, int kParts>
__global__ void __launch_bounds__(kThreads, 1) linear_add_rms_norm(
    T* __restrict__ sum,         // [tokens, out_features]
    T* __restrict__ out,         // [tokens, out_features]
    const float* workspace,      // [kParts, tokens, out_features]
    const T* residual,           // [tokens, out_features]
    const T* __restrict__ gain,  // [out_features]
    const T* __restrict__ bias,  // [out_features] or null
    int out_features,
    float eps) {
  let_next_kernel_start();
  using Row = NormRow<T, kWidth, kThreads, kHeld>;
  using Vector = typename Row::Vector;
  constexpr int kFloats = kWidth < 4 ? kWidth : 4;  // of a load
  using Floats = Pack<float, kFloats>;
  const int vectors = out_features / kWidth;
  const long long first = static_cast<long long>(blockIdx.x) * vectors;
  const long long part_vectors = static_cast<long long>(gridDim.x) * vectors;

  Row row;
  row.load_gains(gain, vectors);
  wait_for_previous_kernel();  // only gains and bias may be read earlier
  float squares = 0.0f;
  Row::for_each(vectors, [&](int h, int i) {
    Vector& held = row.held[h];
    held = reinterpret_cast<const Vector*>(residual)[first + i];
    Floats loaded[kParts][kWidth / kFloats];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int k = 0; k < kWidth / kFloats; ++k) {
        loaded[part][k] = reinterpret_cast<const Floats*>(
            workspace)[(part * part_vectors + first + i) * (kWidth / kFloats) + k];
      }
    }
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      float total = loaded[0][k / kFloats].v[k % kFloats];
#pragma unroll
      for (int part = 1; part < kParts; ++part) total += loaded[part][k / kFloats].v[k % kFloats];
      if (bias != nullptr) total += to_float(bias[i * kWidth + k]);
      total = to_float(from_float<T>(total));
      held.v[k] = from_float<T>(to_float(held.v[k]) + total);
      const float value = to_float(held.v[k]);
      squares += value * value;
    }
    reinterpret_cast<Vector*>(sum)[first + i] = held;
  });
  row.store(out + first * kWidth, squares, out_features, eps);
}

// The same for rows of whole vectors of 16 bytes that fit into shared memory: what a row is made of goes
// through there. So all copies are under way at once, and few registers are used, so that a block fits
// beside one that holds rows in registers, of the launch before or after.
template <typename T, int kThreads, int kParts>
__global__ void __launch_bounds__(kThreads, 1536 / kThreads) linear_add_rms_norm_staged(
    T* __restrict__ sum,         // [tokens, out_features]
    T* __restrict__ out,         // [tokens, out_features]
    const float* workspace,      // [kParts, tokens, out_features]
    const T* residual,           // [tokens, out_features]
    const T* __restrict__ gain,  // [out_features]
    const T* __restrict__ bias,  // [out_features] or null
    int out_features,
    float eps) {
  let_next_kernel_start();
  using Vector = Pack<T, 8>;
  using Quad = Pack<T, 4>;
  using Floats = Pack<float, 4>;
  extern __shared__ __align__(16) unsigned char smem[];
  const int vectors = out_features / 8, quads = out_features / 4;
  Floats* const sums = reinterpret_cast<Floats*>(smem);                 // [kParts, out_features]
  Quad* const values = reinterpret_cast<Quad*>(sums + kParts * quads);  // residual, then sum
  Quad* const gains = values + quads;
  const auto start_copy = [&](Quad* to, const T* from) {
    for (int i = threadIdx.x; i < vectors; i += kThreads) cp_async16(to + 2 * i, from + 8 * i);
  };
  start_copy(gains, gain);
  wait_for_previous_kernel();  // only gains and bias may be read earlier
  const long long row = blockIdx.x, first = row * quads;
#pragma unroll 1
  for (int i = threadIdx.x; i < quads; i += kThreads) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const long long of_part = part * static_cast<long long>(gridDim.x) * quads;
      cp_async16(
          sums + part * quads + i,
          reinterpret_cast<const Floats*>(workspace) + of_part + first + i);
    }
  }
  start_copy(values, residual + row * out_features);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  float squares = 0.0f;
#pragma unroll 1
  for (int i = threadIdx.x; i < quads; i += kThreads) {
    Floats totals = sums[i];
#pragma unroll
    for (int part = 1; part < kParts; ++part) {
      const Floats more = sums[part * quads + i];
#pragma unroll
      for (int k = 0; k < 4; ++k) totals.v[k] += more.v[k];
    }
    Quad quad = values[i];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float biased = totals.v[k] + (bias != nullptr ? to_float(bias[4 * i + k]) : 0.0f);
      quad.v[k] = from_float<T>(to_float(quad.v[k]) + to_float(from_float<T>(biased)));
      squares += to_float(quad.v[k]) * to_float(quad.v[k]);
    }
    values[i] = quad;
    reinterpret_cast<Quad*>(sum)[first + i] = quad;
  }
  const float scale = rsqrtf(block_sum<kThreads>(squares) / out_features + eps);
#pragma unroll 1
  for (int i = threadIdx.x; i < quads; i += kThreads) {
    Quad quad = values[i];
    const Quad factors = gains[i];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      quad.v[k] = from_float<T>(to_float(quad.v[k]) * scale * to_float(factors.v[k]));
    }
    reinterpret_cast<Quad*>(out)[first + i] = quad;
  }
}
