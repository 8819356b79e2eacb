// Attention of one query token to its sequence in the paged cache, cut into parts that blocks can
// take. Decode attention and batch-invariant prefill attention are made of it, so a token whose
// sequence is cut in the same way has the same bits in both.
#pragma once
#include "attend_tiles.cuh"
#include "attend_vectors.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(CPU_EMU)
#include "ptx_sm90.cuh"
#endif

// Rows up to which decode attention lets the next kernel start early: it is ours, and reads its weight
// meanwhile.
constexpr int kEarlyRows = 64;
constexpr int kUnitTokens = 64;  // parts are whole units: a tile for each warp of `Tiles`

// What attention_parts writes for a block: tokens begin to end - 1 of a row, part `index` of `parts`. The
// parts of a row follow each other. Row -1: nothing.
struct alignas(16) Part {
  int row, slot;
  int begin, end;  // both 0 if the row is dead
  int index, parts;
  int unused[2];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(CPU_EMU)
// The same of a list that the launch before does not write, before the wait for it.
__device__ __forceinline__ Part part_early(const int* parts, int place) {
  const int* words = parts + place * static_cast<int>(sizeof(Part) / 4);
  return {load_early(words),     load_early(words + 1), load_early(words + 2),
          load_early(words + 3), load_early(words + 4), load_early(words + 5)};
}
#endif

// An empty row has a unit too, so that somebody writes its zeros.
__device__ __forceinline__ int units_of(int length) {
  return (max(length, 1) + kUnitTokens - 1) / kUnitTokens;
}

// Units of a part of a row that is cut by its own length alone: at most max_parts parts, of min_units
// units or more.
__device__ __forceinline__ int units_of_part(int units, int max_parts, int min_units) {
  return max(min_units, (units + max_parts - 1) / max_parts);
}
