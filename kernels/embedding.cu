// embedding: out[t, :] = table[token_ids[t], :], zeros where the id is negative (a dead row)
//
// Copies, so it rounds nothing. blockIdx.x is the token and blockIdx.y the part of its row: a block
// moves kLoads * kThreads vectors of kWidth elements, a thread every kThreads-th of them; kWidth
// divides hidden. Does not check that an id is below the vocabulary's size.
#include "common.cuh"
#include "ptx.cuh"

template <typename T, int kWidth, int kThreads, int kLoads>
__global__ void __launch_bounds__(kThreads) embedding(
    T* __restrict__ out,          // [tokens, hidden]
    const int* token_ids,         // [tokens]
    const T* __restrict__ table,  // [vocab, hidden]
    int hidden) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  using Vector = Pack<T, kWidth>;
  const int vectors = hidden / kWidth;
  const int first = blockIdx.y * (kLoads * kThreads) + threadIdx.x;
  const long long id = token_ids[blockIdx.x], row = blockIdx.x;
  const Vector* source = reinterpret_cast<const Vector*>(table) + id * vectors;
  Vector* target = reinterpret_cast<Vector*>(out) + row * vectors;

  Vector values[kLoads];
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    const int column = first + u * kThreads;
    values[u] = zeros<T, kWidth>();
    if (id >= 0 && column < vectors) values[u] = source[column];
  }
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    const int column = first + u * kThreads;
    if (column < vectors) target[column] = values[u];
  }
}
