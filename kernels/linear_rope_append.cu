// linear_rope_append: q and k rotated by their positions, k and v stored in their cache slots, as
//                     rope_append does, of qkv[t, n] = sum over k of x[t, k] * weight[n, k], + bias[n]
//
// In float32; rounds to T where linear and rope_append store: qkv and what is rotated. See rope_columns.cuh.
// Few rows: the weight goes through registers or shared memory; see stream_linear.cuh and held_rows.cuh.
#include "held_rows.cuh"
#include "rope_columns.cuh"
#include "stream_linear.cuh"

// Stream: StreamLinear or HeldRows of T.
template <typename T, typename Stream>
__global__ void __launch_bounds__(Stream::kThreads, 1) linear_rope_append(
    T* __restrict__ q,                  // [tokens, heads*head_dim]
    T* k_cache,                         // [num_blocks, kv_heads, block_size, head_dim]
    T* v_cache,                         // [num_blocks, kv_heads, block_size, head_dim]
    const T* x,                         // [tokens, in_features]
    const int* positions,               // [tokens]
    const int* slot_mapping,            // [tokens]
    const T* __restrict__ weight,       // [(heads + 2*kv_heads)*head_dim, in_features]
    const float* __restrict__ cos_sin,  // [max_position, head_dim]: cosines, then sines
    const T* __restrict__ bias,         // [(heads + 2*kv_heads)*head_dim] or null
    int tokens,
    int in_features,
    int heads,
    int kv_heads,
    int head_dim,
    int block_size) {
  rope_columns_of<Stream>(
      q, k_cache, v_cache, x, positions, slot_mapping, weight, cos_sin, bias, tokens, in_features,
      heads, kv_heads, head_dim, block_size);
}
