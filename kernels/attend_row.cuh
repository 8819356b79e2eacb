// Attention of one query token to its sequence in the paged cache, cut into parts that blocks can
// take. Decode attention and batch-invariant prefill attention are made of it, so a token whose
// sequence is cut in the same way has the same bits in both.
#pragma once
#include "attend_tiles.cuh"
#include "attend_vectors.cuh"

constexpr int kUnitTokens = 64;  // parts are whole units: a tile for each warp of `Tiles`

__device__ __forceinline__ int units_of(int length) {
  return (max(length, 0) + kUnitTokens - 1) / kUnitTokens;
}

// How a row is cut: into `count` parts of `tokens` tokens, the last one shorter. An empty row has one
// part.
struct Parts {
  int count, tokens;
};

// Cuts a row into parts of so many units that `work` units would make at most `most` parts, and of at
// least `least` units.
__device__ __forceinline__ Parts cut_row(int length, int work, int most, int least) {
  const int units = max(1, units_of(length));
  const int size = max(least, (work + most - 1) / most);
  return {(units + size - 1) / size, size * kUnitTokens};
}
