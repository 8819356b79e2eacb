// rope_append: q and k rotated by their positions, k and v stored in their cache slots
//
//   (a, b) -> (a*c - b*s, b*c + a*s), (a, b) the halves of a head, c and s the cosines and sines
//   slot = block*block_size + offset; slot -1 (a dead row) stores no k and v, and its q is zero
//
// In float32, rounded to T once, at the store; v is copied. A thread moves kWidth elements of both
// halves of a head, and kWidth divides head_dim/2. blockIdx.x is the token, blockIdx.y the part of its
// heads. A thread stays on one column, whose cosines and sines it reads once, and takes kHeads heads,
// all loaded before the first is rotated. A dead row's position and qkv may hold anything.
#include "common.cuh"
#include "ptx.cuh"

// A Pack's bytes. An array of Packs would take a register for each 16-bit element, since the compiler
// takes a Pack apart as soon as it is loaded; of these it takes one for 4 bytes.
template <int kBytes>
struct alignas(kBytes) Words {
  unsigned words[kBytes / 4];
};
template <>
struct alignas(2) Words<2> {
  unsigned short word;
};

// Of a step that decodes: attention reads K and V meanwhile. At fewer rows it is placed unevenly beside
// this launch, and in longer steps nothing is read early. (Nor is it in other steps of so many rows, of
// prompts or batch invariant: there the next launch only waits on its multiprocessors.)
__device__ __forceinline__ bool is_many_rows(unsigned rows) { return rows > 64 && rows <= 256; }

// 768 threads on a multiprocessor leave each some 80 registers: more threads would spill, and fewer
// would not keep enough loads under way while they wait for their position, and then for its angles.
template <typename T, int kWidth, int kThreads, int kHeads>
__global__ void __launch_bounds__(kThreads, 768 / kThreads) rope_append(
    T* __restrict__ q,                  // [tokens, heads*head_dim]
    T* k_cache,                         // [num_blocks, kv_heads, block_size, head_dim]
    T* v_cache,                         // [num_blocks, kv_heads, block_size, head_dim]
    const T* qkv,                       // [tokens, (heads + 2*kv_heads)*head_dim]
    const float* __restrict__ cos_sin,  // [max_position, head_dim]: cosines, then sines
    const int* positions,               // [tokens]
    const int* slot_mapping,            // [tokens]
    int heads,
    int kv_heads,
    int head_dim,
    int block_size) {
  wait_for_previous_kernel();
  if (gridDim.x <= kFewRows || is_many_rows(gridDim.x)) let_next_kernel_start();
  using Vector = Pack<T, kWidth>;
  using Raw = Words<static_cast<int>(sizeof(Vector))>;
  using Angles = Pack<float, kWidth>;
  const int half = head_dim / 2 / kWidth;  // vectors in half a head
  const int heads_at_once = kThreads / half, all_heads = heads + 2 * kv_heads;
  const int column = threadIdx.x % half, place = threadIdx.x / half;
  if (place >= heads_at_once) return;
  const int first_head = blockIdx.y * (kHeads * heads_at_once) + place;
  const long long token = blockIdx.x;
  const int slot = slot_mapping[token], position = positions[token];
  Raw* q_row = reinterpret_cast<Raw*>(q) + token * heads * 2 * half + column;

  // Loaded before it is known whether the row is dead, so that these do not wait for the slot.
  const Raw* source = reinterpret_cast<const Raw*>(qkv) + token * all_heads * 2 * half + column;
  Raw a[kHeads], b[kHeads];
#pragma unroll
  for (int u = 0; u < kHeads; ++u) {
    const int head = first_head + u * heads_at_once;
    if (head < all_heads) {
      a[u] = source[head * 2 * half];
      b[u] = source[head * 2 * half + half];
    }
  }

  if (slot < 0) {
    for (int u = 0; u < kHeads; ++u) {
      const int head = first_head + u * heads_at_once;
      if (head < heads) {
        q_row[head * 2 * half] = Raw{};
        q_row[head * 2 * half + half] = Raw{};
      }
    }
    return;
  }

  const Angles* angles = reinterpret_cast<const Angles*>(cos_sin) + position * 2LL * half;
  const Angles cosines = angles[column], sines = angles[column + half];

  const long long block = slot / block_size, offset = slot % block_size;
#pragma unroll
  for (int u = 0; u < kHeads; ++u) {
    const int head = first_head + u * heads_at_once;
    if (head >= all_heads) return;
    const bool is_rotated = head < heads + kv_heads;  // a query or a key
    Raw* target = q_row + head * 2 * half;
    if (head >= heads) {
      const int kv_head = head - heads - (is_rotated ? 0 : kv_heads);
      target = reinterpret_cast<Raw*>(is_rotated ? k_cache : v_cache) +
               ((block * kv_heads + kv_head) * block_size + offset) * 2 * half + column;
    }
    if (is_rotated) {
      Vector first, second;
      memcpy(&first, &a[u], sizeof(Vector));
      memcpy(&second, &b[u], sizeof(Vector));
      for (int k = 0; k < kWidth; ++k) {
        const float x = to_float(first.v[k]), y = to_float(second.v[k]);
        first.v[k] = from_float<T>(x * cosines.v[k] - y * sines.v[k]);
        second.v[k] = from_float<T>(y * cosines.v[k] + x * sines.v[k]);
      }
      memcpy(&a[u], &first, sizeof(Vector));
      memcpy(&b[u], &second, sizeof(Vector));
    }
    target[0] = a[u];
    target[half] = b[u];
  }
}
