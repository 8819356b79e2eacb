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

// What rows are cut by: the size of a part, in units, follows from the work, which is the units of the
// row alone or of all rows together.
struct Cut {
  int few;    // parts that the work makes while they are no larger than `enough`
  int many;   // parts that it makes at most
  int least;  // units of a part
  int enough;
};

__device__ __forceinline__ Parts cut_row(int length, int work, const Cut& cut) {
  const int few = min(cut.enough, (work + cut.few - 1) / cut.few);
  const int size = max(cut.least, max(few, (work + cut.many - 1) / cut.many));
  return {(max(1, units_of(length)) + size - 1) / size, size * kUnitTokens};
}
