// rope_append: q and k rotated by their positions, k and v stored in their cache slots
//
//   (a, b) -> (a*c - b*s, b*c + a*s), (a, b) the halves of a head, c and s the cosines and sines
//   slot = block*block_size + offset; slot -1 (a dead row) stores no k and v, and its q is zero
//
// In float32, rounded to T once, at the store; v is copied. kWidth elements of both halves of a head
// are an item, and kWidth divides head_dim/2. blockIdx.x is the token, blockIdx.y the part of its
// heads. A thread stays on one column, whose cosines and sines it reads once, and goes through kItems
// heads, all loaded before the first is rotated. A dead row's position and qkv may hold anything.
#include "common.cuh"

template <typename T, int kWidth, int kThreads, int kItems>
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
  const int heads_at_once = kThreads / half;
  const int column = threadIdx.x % half, place = threadIdx.x / half;
  if (place >= heads_at_once) return;
  const int first_head = blockIdx.y * kItems * heads_at_once + place;
  const int all_heads = heads + 2 * kv_heads;
  const long long token = blockIdx.x;
  const int slot = slot_mapping[token], position = positions[token];

  const Vector* source =
      reinterpret_cast<const Vector*>(qkv) + token * all_heads * 2 * half + column;
  Vector a[kItems], b[kItems];
#pragma unroll
  for (int u = 0; u < kItems; ++u) {
    const int head = first_head + u * heads_at_once;
    if (head < all_heads) {
      a[u] = source[head * 2 * half];
      b[u] = source[head * 2 * half + half];
    }
  }

  Vector* q_row = reinterpret_cast<Vector*>(q) + token * heads * 2 * half + column;
  if (slot < 0) {
    for (int u = 0; u < kItems; ++u) {
      const int head = first_head + u * heads_at_once;
      if (head < heads) {
        q_row[head * 2 * half] = q_row[head * 2 * half + half] = zeros<T, kWidth>();
      }
    }
    return;
  }
  const Angles* angles = reinterpret_cast<const Angles*>(cos_sin) + position * 2LL * half;
  const Angles cosines = angles[column], sines = angles[column + half];

  const long long block = slot / block_size, offset = slot % block_size;
  const long long cache_row = block * kv_heads * block_size + offset;  // of KV head 0
#pragma unroll
  for (int u = 0; u < kItems; ++u) {
    const int head = first_head + u * heads_at_once;
    if (head >= all_heads) return;
    const bool is_rotated = head < heads + kv_heads;  // a query or a key
    if (is_rotated) {
      for (int k = 0; k < kWidth; ++k) {
        const float x = to_float(a[u].v[k]), y = to_float(b[u].v[k]);
        a[u].v[k] = from_float<T>(x * cosines.v[k] - y * sines.v[k]);
        b[u].v[k] = from_float<T>(y * cosines.v[k] + x * sines.v[k]);
      }
    }
    Vector* target = q_row + head * 2 * half;
    if (head >= heads) {
      const int kv_head = head - heads - (is_rotated ? 0 : kv_heads);
      target = reinterpret_cast<Vector*>(is_rotated ? k_cache : v_cache) +
               (cache_row + static_cast<long long>(kv_head) * block_size) * 2 * half + column;
    }
    target[0] = a[u];
    target[half] = b[u];
  }
}
