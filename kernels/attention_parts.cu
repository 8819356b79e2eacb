// attention_parts: the parts of rows that decode attention's blocks take, the longest rows' first
//
// A part is whole units of 64 tokens of a row. A row that would give a KV head's block more work than one of
// whole_shares equal shares of all, and than a multiprocessor gets of parts, is cut into as few parts as give it no
// more than a size; they differ by one unit at most. Where multiprocessors get a part each, lone_blocks at most, the
// size is the least for which these are enough; elsewhere they get two, each one of part_shares. Counts only, so it rounds nothing. One block, a thread a row.
#include "attention_parts.cuh"
#include "ptx.cuh"

constexpr int kThreads = 1024;

__global__ void __launch_bounds__(kThreads, 1) attention_parts(
    int* __restrict__ parts,     // [rows+spare, words]
    int* __restrict__ arrivals,  // [rows, heads]
    const int* row_ids,          // [rows]
    const int* seq_lens,         // [rows]
    int rows,
    int all_parts,  // rows + spare
    int heads,
    int kv_heads,
    int whole_shares,
    int part_shares,
    int lone_blocks) {
  extern __shared__ __align__(16) unsigned char smem[];
  wait_for_previous_kernel();
  if (rows <= kFewRows) let_next_kernel_start();
  cut_rows<kThreads>(
      parts, arrivals, row_ids, seq_lens, rows, all_parts, heads, kv_heads, whole_shares,
      part_shares, lone_blocks, reinterpret_cast<int*>(smem));
}
