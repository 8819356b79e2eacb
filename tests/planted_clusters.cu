// Kernels of clusters with one mistake each, and three without, for the tests of the emulation.
#include "ptx_sm90.cuh"

// A block of 64 threads reads what the next block of its cluster of 4 has left.
#define KERNEL(name) \
  __global__ void name(float* __restrict__ out, const float* x, const float* bias, int n)
#define BEGIN                                                                           \
  extern __shared__ __align__(16) unsigned char smem[];                                 \
  const int i = blockIdx.x * 64 + threadIdx.x;                                          \
  float* own = reinterpret_cast<float*>(smem);                                          \
  const unsigned neighbour =                                                            \
      cluster_address(shared_address(own + threadIdx.x / 2 * 2), (blockIdx.x + 1) % 4); \
  float pair[2];

KERNEL(neighbours) {
  BEGIN own[threadIdx.x] = x[i];
  cluster_arrive();
  cluster_wait();
  load_of_cluster(pair, neighbour);
  cluster_arrive();
  cluster_wait();
  out[i] = pair[threadIdx.x % 2];
}

KERNEL(twice) {
  BEGIN float value = x[i];
  for (int round = 0; round < 2; ++round) {
    own[threadIdx.x] = value;
    cluster_arrive();
    cluster_wait();
    load_of_cluster(pair, neighbour);
    value = pair[threadIdx.x % 2];
    cluster_arrive();
    cluster_wait();
  }
  out[i] = value;
}

KERNEL(no_barrier_before) {
  BEGIN own[threadIdx.x] = x[i];
  __syncthreads();
  load_of_cluster(pair, neighbour);
  cluster_arrive();
  cluster_wait();
  out[i] = pair[threadIdx.x % 2];
}

KERNEL(returns_early) {
  BEGIN own[threadIdx.x] = x[i];
  cluster_arrive();
  cluster_wait();
  load_of_cluster(pair, neighbour);
  out[i] = pair[threadIdx.x % 2];
}

KERNEL(writes_again) {
  BEGIN own[threadIdx.x] = x[i];
  cluster_arrive();
  cluster_wait();
  load_of_cluster(pair, neighbour);
  __syncthreads();
  own[threadIdx.x] = pair[0];
  cluster_arrive();
  cluster_wait();
  out[i] = pair[threadIdx.x % 2];
}

KERNEL(half_is_written) {
  BEGIN if (threadIdx.x < 32) own[threadIdx.x] = x[i];
  cluster_arrive();
  cluster_wait();
  load_of_cluster(pair, neighbour);
  cluster_arrive();
  cluster_wait();
  out[i] = pair[threadIdx.x % 2];
}

KERNEL(arrives_twice) {
  cluster_arrive();
  cluster_arrive();
  cluster_wait();
}

KERNEL(does_not_arrive) { cluster_wait(); }

KERNEL(a_block_waits_elsewhere) {
  if (blockIdx.x % 4 == 2) {
    extern __shared__ __align__(16) unsigned char smem[];
    const unsigned never = shared_address(smem);
    if (threadIdx.x == 0) mbarrier_init(never, 1);
    __syncthreads();
    mbarrier_wait(never, 0);
  }
  cluster_arrive();
  cluster_wait();
}

KERNEL(beyond_the_cluster) {
  BEGIN own[threadIdx.x] = x[i];
  cluster_arrive();
  cluster_wait();
  load_of_cluster(pair, cluster_address(shared_address(own), 4));
  cluster_arrive();
  cluster_wait();
  out[i] = pair[0];
}

// As neighbours, where each block copies its part of x, two rows of 128 bytes, to all blocks of the cluster.
template <bool kMeets>
__device__ void copy_to_all(float* out, const TensorMap& map) {
  extern __shared__ __align__(16) unsigned char smem[];
  const int rank = blockIdx.x % 4, next = (rank + 1) % 4;
  const unsigned first = (shared_address(smem) + 1023) / 1024 * 1024, barrier = first + 4 * 1024;
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    mbarrier_init_done();
    mbarrier_arrive_expecting(barrier, 4 * 2 * 128);
  }
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x == 0) {
    const BoxStart start = {{0, static_cast<int>(blockIdx.x) * 2, 0, 0}};
    copy_box_to_cluster(first + rank * 1024, &map, start, barrier, 4);
  }
  mbarrier_wait(barrier, 0);
  const int row = threadIdx.x / 32, vector = threadIdx.x % 32 / 4 ^ row;
  const unsigned from = first - shared_address(smem) + next * 1024 + row * 128 + vector * 16;
  out[blockIdx.x * 64 + threadIdx.x] =
      *reinterpret_cast<const float*>(smem + from + threadIdx.x % 4 * 4);
  if (kMeets) {
    cluster_arrive();
    cluster_wait();
  }
}

#define COPYING_KERNEL(name)                                    \
  __global__ void name(                                         \
      float* __restrict__ out, const float*, const float*, int, \
      const __grid_constant__ TensorMap x_map)

COPYING_KERNEL(copies_to_all) { copy_to_all<true>(out, x_map); }

COPYING_KERNEL(returns_while_copying) { copy_to_all<false>(out, x_map); }
