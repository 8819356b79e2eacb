// Which rows of which sequence a block of prefill attention computes.
#pragma once

// Rows of one block. A row is one query head of one token; a chunk of n tokens has n * group rows,
// the query heads of a token one after the other.
struct Tile {
  int seq;          // -1 where no sequence owns the tokens
  int chunk_start;  // first token of the chunk
  int chunk;        // tokens of the chunk
  int first_row;    // of the tile, in the chunk; may lie after the chunk's end
};

// The tile of block `index` where tiles have tile_rows rows. Segment 0 is the tokens before the first
// chunk, segment s+1 the chunk of sequence s, the last one the tokens after all chunks. Segment g
// begins with tile start(g)*group/tile_rows + g: rounded down, plus one for each earlier segment, so
// that every segment has room for the tile that it does not fill; some tiles are left over.
// All lanes of a warp call it: each asks one segment at a time, so 32 sequences need one load.
__device__ __forceinline__ Tile find_tile(
    int index,
    const int* __restrict__ query_start_loc,
    int seqs,
    int tokens,
    int group,
    int tile_rows) {
  const auto start = [&](int segment) {
    return segment == 0 ? 0 : segment > seqs + 1 ? tokens : query_start_loc[segment - 1];
  };
  const auto first_tile = [&](int segment) { return start(segment) * group / tile_rows + segment; };
  const int lane = threadIdx.x % 32;
  int low = 0, count = seqs + 2;  // the last segment that begins with this tile or an earlier one
  while (count > 1) {
    const int step = (count + 31) / 32;
    const bool begun = first_tile(low + lane * step) <= index;
    const int last = 31 - __clz(__ballot_sync(0xffffffffu, begun));
    low += last * step;
    count = min(step, count - last * step);
  }
  Tile tile;
  tile.seq = low <= seqs ? low - 1 : -1;
  tile.chunk_start = start(low);
  tile.chunk = start(low + 1) - tile.chunk_start;
  tile.first_row = (index - first_tile(low)) * tile_rows;
  return tile;
}
