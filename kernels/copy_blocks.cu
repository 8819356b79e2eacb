// copy_blocks: cache[target] = cache[source] for each pair (source, target), of K and of V
//
// Copies bits. blockIdx.x is the pair, blockIdx.y K or V, blockIdx.z the part of the block; a thread moves
// kWidth elements. Source -1 is no pair. No target is a source, or the target of another pair.
#include "common.cuh"
#include "ptx.cuh"

template <typename T, int kWidth>
__global__ void __launch_bounds__(256) copy_blocks(
    T* k_cache,        // [num_blocks, kv_heads, block_size, head_dim]
    T* v_cache,        // [num_blocks, kv_heads, block_size, head_dim]
    const int* pairs,  // [pairs, 2]
    int vectors) {     // of kWidth elements, in a block
  let_next_kernel_start();
  wait_for_previous_kernel();
  const auto pair = reinterpret_cast<const Pack<int, 2>*>(pairs)[blockIdx.x];
  const int index = blockIdx.z * blockDim.x + threadIdx.x;
  if (pair.v[0] < 0 || index >= vectors) return;
  auto* cache = reinterpret_cast<Pack<T, kWidth>*>(blockIdx.y == 0 ? k_cache : v_cache);
  const long long source = pair.v[0], target = pair.v[1];
  cache[target * vectors + index] = cache[source * vectors + index];
}
