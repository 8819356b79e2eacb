// rope_append: q and k rotated by their positions, k and v stored in their cache slots
//
//   (a, b) -> (a*c - b*s, b*c + a*s), (a, b) the halves of a head, c and s the cosines and sines
//   slot = block*block_size + offset; slot -1 (a dead row) stores no k and v, and its q is zero
//
// In float32, rounded to T once, at the store; v is copied. A thread moves kWidth elements of both
// halves of one head, and kWidth divides head_dim/2; blockIdx.x is the token, blockIdx.y the part of
// its heads. A dead row's position and qkv are not read.
#include "common.cuh"

template <typename T, int kWidth, int kThreads>
__global__ void __launch_bounds__(kThreads, 1) rope_append(
    T* __restrict__ q,                     // [tokens, heads*head_dim]
    T* __restrict__ k_cache,               // [num_blocks, kv_heads, block_size, head_dim]
    T* __restrict__ v_cache,               // [num_blocks, kv_heads, block_size, head_dim]
    const T* __restrict__ qkv,             // [tokens, (heads + 2*kv_heads)*head_dim]
    const float* __restrict__ cos_sin,     // [max_position, head_dim]: cosines, then sines
    const int* __restrict__ positions,     // [tokens]
    const int* __restrict__ slot_mapping,  // [tokens]
    int heads,
    int kv_heads,
    int head_dim,
    int block_size) {
  using Vector = Pack<T, kWidth>;
  using Angles = Pack<float, kWidth>;
  const int half = head_dim / 2 / kWidth;  // vectors in half a head
  const int item = blockIdx.y * kThreads + threadIdx.x;
  const int head = item / half, column = item % half;
  if (head >= heads + 2 * kv_heads) return;
  const long long token = blockIdx.x;
  const int slot = slot_mapping[token];

  Vector* target;  // where this head begins: in q, or in the slot of its cache
  if (head < heads) {
    target = reinterpret_cast<Vector*>(q) + (token * heads + head) * 2 * half;
    if (slot < 0) {
      target[column] = target[column + half] = zeros<T, kWidth>();
      return;
    }
  } else {
    if (slot < 0) return;
    const bool is_key = head < heads + kv_heads;
    const int kv_head = head - heads - (is_key ? 0 : kv_heads);
    const long long block = slot / block_size, offset = slot % block_size;
    target = reinterpret_cast<Vector*>(is_key ? k_cache : v_cache) +
             ((block * kv_heads + kv_head) * block_size + offset) * 2 * half;
  }

  const Vector* source =
      reinterpret_cast<const Vector*>(qkv) + (token * (heads + 2 * kv_heads) + head) * 2 * half;
  Vector a = source[column], b = source[column + half];
  if (head < heads + kv_heads) {
    const Angles* angles = reinterpret_cast<const Angles*>(cos_sin) + positions[token] * 2LL * half;
    const Angles cosines = angles[column], sines = angles[column + half];
    for (int k = 0; k < kWidth; ++k) {
      const float x = to_float(a.v[k]), y = to_float(b.v[k]);
      a.v[k] = from_float<T>(x * cosines.v[k] - y * sines.v[k]);
      b.v[k] = from_float<T>(y * cosines.v[k] + x * sines.v[k]);
    }
  }
  target[column] = a;
  target[column + half] = b;
}
