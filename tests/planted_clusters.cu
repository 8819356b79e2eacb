// Kernels of clusters with one mistake each, and two without, for the tests of the emulation.
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
