// Steps are numbered by 32 bits that wrap around. What is launched together, one step or several, tells
// the number of its first step; `step` is the number of the newest step that has begun.
#pragma once

__device__ __forceinline__ bool is_before(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) - static_cast<unsigned>(b)) < 0;
}

// The number of the step that begins now: the next one, or the first of what was launched.
__device__ __forceinline__ int begun_step(int step, int first) {
  const int next = static_cast<int>(static_cast<unsigned>(step) + 1u);
  return is_before(next, first) ? first : next;
}
