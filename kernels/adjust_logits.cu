// adjust_logits: adjusted = logits + bias; -inf for stop ids that come too early; then penalties:
// l = l > 0 ? l / repetition : l * repetition; l -= frequency * count; l -= presence * (count > 0)
//
// Every operation is rounded to float32 on its own. blockIdx.x is the row, blockIdx.y a chunk of
// kThreads * kPerThread tokens. A row that asks for nothing is widened and left; a dead row is zeros.
#include "common.cuh"

constexpr int kPromptBit = 1 << 30;  // of a count: the token is in the prompt

template <typename T, int kWidth, int kThreads, int kPerThread>
__global__ void __launch_bounds__(kThreads) adjust_logits(
    float* __restrict__ adjusted,                  // [rows, vocab]
    const T* __restrict__ logits,                  // [rows, vocab]
    const int* __restrict__ row_ids,               // [rows]
    const int* __restrict__ sample_positions,      // [rows]
    const int* __restrict__ token_counts,          // [slots, vocab]
    const float* __restrict__ repetition_penalty,  // [slots]
    const float* __restrict__ presence_penalty,    // [slots]
    const float* __restrict__ frequency_penalty,   // [slots]
    const int* __restrict__ bias_ids,              // [slots, max_bias]
    const float* __restrict__ bias_values,         // [slots, max_bias]
    const int* __restrict__ stop_ids,              // [slots, max_stop_ids]
    const int* __restrict__ min_position,          // [slots]
    int vocab,
    int max_bias,
    int max_stop_ids) {
  const long long row = blockIdx.x;
  const int slot = row_ids[row];
  const int begin = blockIdx.y * kThreads * kPerThread;
  const int end = min(begin + kThreads * kPerThread, vocab);
  float* out = adjusted + row * vocab;

#pragma unroll
  for (int j = 0; j < kPerThread / kWidth; ++j) {
    const int id = begin + (j * kThreads + threadIdx.x) * kWidth;
    if (id >= end) break;
    Pack<float, kWidth> wide = zeros<float, kWidth>();
    if (slot >= 0) {
      const auto pack = *reinterpret_cast<const Pack<T, kWidth>*>(logits + row * vocab + id);
      for (int k = 0; k < kWidth; ++k) wide.v[k] = to_float(pack.v[k]);
    }
    *reinterpret_cast<Pack<float, kWidth>*>(out + id) = wide;
  }
  if (slot < 0) return;

  const int* biased = bias_ids + static_cast<long long>(slot) * max_bias;
  if (biased[0] >= 0) {
    __syncthreads();
    for (int i = threadIdx.x; i < max_bias; i += kThreads) {
      const int id = biased[i];
      if (id >= begin && id < end) {
        out[id] = __fadd_rn(out[id], bias_values[static_cast<long long>(slot) * max_bias + i]);
      }
    }
  }
  if (sample_positions[row] < min_position[slot]) {
    __syncthreads();
    for (int i = threadIdx.x; i < max_stop_ids; i += kThreads) {
      const int id = stop_ids[static_cast<long long>(slot) * max_stop_ids + i];
      // An id may be in the list twice.
      if (id >= begin && id < end) atomicExch(&out[id], __int_as_float(0xff800000));
    }
  }
  const float repetition = repetition_penalty[slot];
  const float presence = presence_penalty[slot], frequency = frequency_penalty[slot];
  if (repetition == 1.0f && presence == 0.0f && frequency == 0.0f) return;
  __syncthreads();
  const int* counts = token_counts + static_cast<long long>(slot) * vocab;
  for (int id = begin + threadIdx.x; id < end; id += kThreads) {
    const int seen = counts[id];
    if (seen == 0) continue;
    const int count = seen & (kPromptBit - 1);
    float logit = out[id];
    logit = logit > 0.0f ? __fdiv_rn(logit, repetition) : __fmul_rn(logit, repetition);
    logit = __fadd_rn(logit, -__fmul_rn(frequency, static_cast<float>(count)));
    out[id] = __fadd_rn(logit, count > 0 ? -presence : -0.0f);
  }
}
