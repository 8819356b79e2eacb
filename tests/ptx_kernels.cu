// The functions of ptx.cuh, each on data that a test can follow. One warp.
#include "ptx.cuh"

// out[i] = x[i] for the 16-byte pieces that are valid, else 0.
__global__ void copies(float* __restrict__ out, const float* __restrict__ x, int valid) {
  __shared__ __align__(16) float tile[2][64];
  const int piece = threadIdx.x % 16, group = threadIdx.x / 16;
  cp_async16(&tile[group][4 * piece], x + 4 * threadIdx.x, piece < valid);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  for (int i = threadIdx.x; i < 128; i += 32) out[i] = tile[i / 64][i % 64];
}

// Lane l stores what it received of each matrix as out[l, matrix, 0 and 1].
template <typename T, int kMatrices, bool kTransposed>
__global__ void matrices(T* __restrict__ out, const T* __restrict__ x) {
  __shared__ __align__(16) T tile[4][8][8];
  for (int i = threadIdx.x; i < 256; i += 32) tile[i / 64][i / 8 % 8][i % 8] = x[i];
  __syncthreads();
  const void* row = tile[threadIdx.x / 8 % kMatrices][threadIdx.x % 8];
  unsigned registers[kMatrices];
  if constexpr (kMatrices == 4 && kTransposed) ldmatrix_x4_trans(registers, row);
  if constexpr (kMatrices == 4 && !kTransposed) ldmatrix_x4(registers, row);
  if constexpr (kMatrices == 2 && kTransposed) ldmatrix_x2_trans(registers, row);
  if constexpr (kMatrices == 2 && !kTransposed) ldmatrix_x2(registers, row);
  for (int m = 0; m < kMatrices; ++m) {
    reinterpret_cast<unsigned*>(out)[threadIdx.x * kMatrices + m] = registers[m];
  }
}

// out [16, 8] = start + a [16, 16] @ b [8, 16].T, through ldmatrix and mma.
template <typename T>
__global__ void product(
    float* __restrict__ out,
    const T* __restrict__ a,
    const T* __restrict__ b,
    const float* __restrict__ start) {
  __shared__ __align__(16) T a_tile[16][16];
  __shared__ __align__(16) T b_tile[8][16];
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) a_tile[i / 16][i % 16] = a[i];
  for (int i = lane; i < 128; i += 32) b_tile[i / 16][i % 16] = b[i];
  __syncthreads();
  unsigned a_fragment[4], b_fragment[2];
  ldmatrix_x4(a_fragment, &a_tile[lane % 16][lane / 16 * 8]);
  ldmatrix_x2(b_fragment, &b_tile[lane % 8][lane / 8 % 2 * 8]);
  float c[4];
  for (int i = 0; i < 4; ++i) c[i] = start[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2];
  mma_m16n8k16<T>(c, a_fragment, b_fragment);
  for (int i = 0; i < 4; ++i) out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
}

// out = 2^x.
__global__ void powers(float* __restrict__ out, const float* __restrict__ x) {
  for (int i = threadIdx.x; i < 256; i += 32) out[i] = exp2_approx(x[i]);
}

// out = x, in a programmatic launch.
__global__ void waits(float* __restrict__ out, const float* __restrict__ x) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  out[threadIdx.x] = x[threadIdx.x];
}
