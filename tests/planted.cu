// Kernels with one mistake each, and a few without, for the tests of the emulation. A comment that is
// a kernel's name marks the line at fault.
#include "ptx.cuh"

#define KERNEL(name)    \
  __global__ void name( \
      float* __restrict__ out, const float* __restrict__ x, const float* bias, int n)

KERNEL(reversed) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
  __syncthreads();
  out[blockIdx.x * 64 + threadIdx.x] = tile[63 - threadIdx.x];
}

KERNEL(reversed_twice) {
  extern __shared__ __align__(16) unsigned char smem[];
  float* tile = reinterpret_cast<float*>(smem);
  float value = x[threadIdx.x];
  for (int round = 0; round < 2; ++round) {
    tile[threadIdx.x] = value;
    __syncthreads();
    value = tile[63 - threadIdx.x];
    __syncthreads();
  }
  out[threadIdx.x] = value;
}

KERNEL(class_in_shared_memory) {
  __shared__ __align__(16) __nv_bfloat16 tile[64];
  tile[threadIdx.x] = __float2bfloat16_rn(x[threadIdx.x]);
  __syncthreads();
  out[threadIdx.x] = __bfloat162float(tile[63 - threadIdx.x]);
}

KERNEL(last_block_adds) {
  __shared__ bool last;
  float* partial = out + 1;
  unsigned* count = reinterpret_cast<unsigned*>(out + 1 + gridDim.x);
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0) *count = 0;
    partial[blockIdx.x] = x[blockIdx.x];
    __threadfence();
    last = atomicAdd(count, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last || threadIdx.x) return;
  float sum = 0.0f;
  for (int i = 0; i < gridDim.x; ++i) sum += partial[i];
  out[0] = sum;
}

// As last_block_adds; `step` is where there is no fence, or where the partial sum is stored too late.
enum Step { kBefore, kAfter, kStore };
__device__ void add_wrongly(const float* x, float* out, Step step) {
  float* partial = out + 1;
  unsigned* count = reinterpret_cast<unsigned*>(out + 1 + gridDim.x);
  if (threadIdx.x) return;
  if (blockIdx.x == 0) *count = 0;
  if (step != kStore) partial[blockIdx.x] = x[blockIdx.x];
  if (step != kBefore) __threadfence();
  if (step == kStore) partial[blockIdx.x] = x[blockIdx.x];
  const bool last = atomicAdd(count, 1u) == gridDim.x - 1;
  if (step != kAfter) __threadfence();
  if (last) out[0] = partial[0];  // lacks_a_fence
}
KERNEL(no_fence_before_the_atomic) { add_wrongly(x, out, kBefore); }
KERNEL(no_fence_after_the_atomic) { add_wrongly(x, out, kAfter); }
KERNEL(stores_after_the_fence) { add_wrongly(x, out, kStore); }

KERNEL(no_barrier) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  out[threadIdx.x] = tile[63 - threadIdx.x];  // no_barrier
}

KERNEL(no_second_barrier) {
  __shared__ float tile[64];
  float value = x[threadIdx.x];
  for (int round = 0; round < 2; ++round) {
    tile[threadIdx.x] = value;
    __syncthreads();
    value = tile[63 - threadIdx.x];  // no_second_barrier
  }
  out[threadIdx.x] = value;
}

KERNEL(last_thread_does_not_wait) {
  __shared__ float total;
  float sum = 0.0f;
  for (int round = 0; round < 2; ++round) {
    if (threadIdx.x == 63) total = x[round];  // last_thread_does_not_wait
    __syncthreads();
    sum += total;
  }
  out[threadIdx.x] = sum;
}

KERNEL(no_syncwarp) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  out[threadIdx.x] = tile[threadIdx.x ^ 1];  // no_syncwarp
}

KERNEL(syncwarp) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  out[threadIdx.x] = tile[threadIdx.x ^ 1];
}

KERNEL(reads_past_the_end) {
  out[threadIdx.x] = x[threadIdx.x + 1];  // reads_past_the_end
}

KERNEL(writes_past_the_end) {
  out[threadIdx.x + 1] = x[threadIdx.x];  // writes_past_the_end
}

KERNEL(reads_unwritten_shared) {
  __shared__ float tile[64];
  if (threadIdx.x < 32) tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];  // reads_unwritten_shared
}

KERNEL(reads_unwritten_output) {
  out[threadIdx.x] = out[threadIdx.x] + x[threadIdx.x];  // reads_unwritten_output
}

KERNEL(writes_an_input) {
  const_cast<float*>(x)[threadIdx.x] = 0.0f;  // writes_an_input
  out[threadIdx.x] = 0.0f;
}

KERNEL(misaligned) {
  const float4 values = reinterpret_cast<const float4*>(x + 1)[threadIdx.x % 8];  // misaligned
  out[threadIdx.x] = values.x + values.w;
}

KERNEL(array_index) {
  float own[4] = {};
  own[threadIdx.x % 5] = x[threadIdx.x];  // array_index
  out[threadIdx.x] = own[0] + own[n % 4];
}

KERNEL(int_overflow) {
  const int row = n * (threadIdx.x + 1 < 64 ? 1 : 1 << 27);  // int_overflow
  out[threadIdx.x] = x[row & 63];
}

KERNEL(null_bias) {
  out[threadIdx.x] = x[threadIdx.x] + bias[threadIdx.x];  // null_bias
}

KERNEL(blocks_write_one_element) {
  if (threadIdx.x == 0) out[0] = x[blockIdx.x];  // blocks_write_one_element
}

KERNEL(two_barriers) {
  if (threadIdx.x < 32) {
    __syncthreads();  // two_barriers
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = x[threadIdx.x];
}

KERNEL(half_a_warp_shuffles) {
  float value = x[threadIdx.x];
  if (threadIdx.x % 32 < 16) value += __shfl_xor_sync(~0u, value, 1);  // half_a_warp_shuffles
  __syncthreads();
  out[threadIdx.x] = value;
}

KERNEL(mask_without_the_caller) {
  out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, x[threadIdx.x], 1);  // mask_without_the_caller
}

KERNEL(copy_without_wait) {
  __shared__ __align__(16) float tile[64];
  if (threadIdx.x < 16) cp_async16(tile + 4 * threadIdx.x, x + 4 * threadIdx.x);
  cp_async_commit();
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];  // copy_without_wait
}

KERNEL(copy_without_barrier) {
  __shared__ __align__(16) float tile[64];
  if (threadIdx.x < 16) cp_async16(tile + 4 * threadIdx.x, x + 4 * threadIdx.x);
  cp_async_commit();
  cp_async_wait<0>();
  out[threadIdx.x] = tile[63 - threadIdx.x];  // copy_without_barrier
}

KERNEL(copied) {
  __shared__ __align__(16) float tile[64];
  if (threadIdx.x < 16) cp_async16(tile + 4 * threadIdx.x, x + 4 * threadIdx.x);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  out[threadIdx.x] = tile[63 - threadIdx.x];
}

KERNEL(writes_before_the_wait) {
  out[threadIdx.x] = 1.0f;  // writes_before_the_wait
  wait_for_previous_kernel();
}

KERNEL(returns_without_the_wait) {
  if (threadIdx.x) return;
  wait_for_previous_kernel();
  out[0] = x[0];
}

KERNEL(reads_before_the_wait) {
  const float value = x[threadIdx.x];  // reads_before_the_wait
  wait_for_previous_kernel();
  out[threadIdx.x] = value;
}

KERNEL(lets_the_next_start_before_the_wait) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  out[threadIdx.x] = x[threadIdx.x];
}

KERNEL(waits) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  out[threadIdx.x] = x[threadIdx.x];
}
