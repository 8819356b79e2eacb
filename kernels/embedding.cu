// embedding: out[t, :] = table[token_ids[t], :], zeros where the id is negative (a dead row)
//
// Copies, so it rounds nothing. A thread moves kWidth elements, which divides hidden; blockIdx.x is the
// token and blockIdx.y the part of its row. Does not check that an id is below the vocabulary's size.
#include "common.cuh"

template <typename T, int kWidth, int kThreads>
__global__ void __launch_bounds__(kThreads) embedding(
    T* __restrict__ out,                // [tokens, hidden]
    const int* __restrict__ token_ids,  // [tokens]
    const T* __restrict__ table,        // [vocab, hidden]
    int hidden) {
  using Vector = Pack<T, kWidth>;
  const int vectors = hidden / kWidth;
  const int column = blockIdx.y * kThreads + threadIdx.x;
  if (column >= vectors) return;
  const long long id = token_ids[blockIdx.x], row = blockIdx.x;
  Vector values = zeros<T, kWidth>();
  if (id >= 0) values = reinterpret_cast<const Vector*>(table)[id * vectors + column];
  reinterpret_cast<Vector*>(out)[row * vectors + column] = values;
}
