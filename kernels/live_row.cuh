// Whether a decode row has work: the block that its token's K and V go to.
#pragma once

// The block of the token at `position` of the sequence in `slot`; 0, which is no sequence's, where the
// row is dead: without a slot, done, or without a block for the token.
__device__ __forceinline__ int block_of(
    int slot,
    int position,
    const int* done,
    const int* block_tables,
    int max_blocks,
    int block_size) {
  const int index = position / block_size;
  if (slot < 0 || index >= max_blocks) return 0;
  const int block = block_tables[static_cast<long long>(slot) * max_blocks + index];
  return done[slot] != 0 ? 0 : block;  // both loads are under way at once
}
