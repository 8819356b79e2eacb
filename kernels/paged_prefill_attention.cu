// paged_prefill_attention: out[t, h, :] = softmax(scale * q[t, h, :] @ K.T) @ V, K and V the tokens up
// to t's own in the blocks of its sequence, of the KV head h / group, group = heads/kv_heads
//
// Sequence s owns the tokens query_start_loc[s] to query_start_loc[s+1], its last ones: token i of a
// chunk of n is at position seq_lens[s] - n + i. Tokens that no sequence owns give zeros.
// Scores, softmax (in base 2, online) and sums in float32. On tensor cores the weights are rounded to T
// before they multiply V; the result is rounded once, at the store.
// Blocks of the table after the last token of a tile are not read, nor slots after it.
//
// The grid knows tokens and sequences only, so each block finds its sequence (see find_tile). A chunk of
// one token (a decode row among prompts) is computed as decode does (but beside wgmma, where it takes a
// whole tile), by a block for each set of query heads, which takes all its keys; only there are the
// weights not rounded.
#include "attend_row.cuh"
#include "chunk_tile.cuh"
#include "paged_prefill_simple.cuh"
#include "ptx.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(CPU_EMU)  // sm_90a
#include "paged_prefill_wgmma.cuh"
#endif

constexpr int kMmaWarps = 4;
constexpr float kMaxExponent = 8.0f;  // a weight is at most 2^8: exact enough in fp16 too
constexpr int kRunKeys = 8;           // what a warp copies together: keys of one block of the cache

// Two floats as the registers of mma.sync hold them, the first in the low half.
template <typename T>
__device__ __forceinline__ unsigned packed(float low, float high) {
  Pack<T, 2> pair;
  pair.v[0] = from_float<T>(low);
  pair.v[1] = from_float<T>(high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

// c0 and c1 += a * b, where b is two fragments of 8 columns side by side.
template <typename T>
__device__ __forceinline__ void multiply_pair(
    float (&c0)[4], float (&c1)[4], const unsigned (&a)[4], const unsigned (&b)[4]) {
  const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
  mma_m16n8k16<T>(c0, a, left);
  mma_m16n8k16<T>(c1, a, right);
}

// The attention of one token, to all `length` keys of the sequence whose blocks `table` names: of the
// query heads of one KV head, up to Form::kHeads of them, set `head_set`.
template <typename Form>
__device__ __forceinline__ void attend_token(
    typename Form::Element* __restrict__ out,
    const typename Form::Element* __restrict__ q,
    const typename Form::Element* __restrict__ k_cache,
    const typename Form::Element* __restrict__ v_cache,
    const int* __restrict__ table,
    int token,
    int length,
    int head_set,
    int kv_heads,
    int group,
    int block_size,
    float scale_log2) {
  using T = typename Form::Element;
  const int sets = (group + Form::kHeads - 1) / Form::kHeads;  // of a KV head
  const int kv_head = head_set / sets, first_head = head_set % sets * Form::kHeads;
  const int heads = min(Form::kHeads, group - first_head);
  const long long head = (static_cast<long long>(token) * kv_heads + kv_head) * group + first_head;
  const long long at = head * Form::kHeadDim;
  if (length <= 0) {
    for (int i = threadIdx.x; i < heads * Form::kHeadDim; i += Form::kThreads) {
      out[at + i] = from_float<T>(0.0f);
    }
    return;
  }
  const auto store = [&](int head, int column, const Attended& all) {
    out[at + head * Form::kHeadDim + column] = from_float<T>(all.sum / all.total);
  };
  Form::attend(
      store, q + at, k_cache, v_cache, table, 0, length, heads, kv_head, kv_heads, block_size,
      scale_log2);
}

// On tensor cores. A block computes a tile of 64 * kRowTiles rows, each of its 4 warps 16 * kRowTiles
// of them, over all their keys, kKeys at a time: V is copied while scores are computed, K of the next
// keys while V is multiplied. Scores, weights and sums stay in registers. Tiles of keys after the last
// that the block's rows see are not read, and only those that not all rows of a warp see are masked.
// Weights are 2^(score - origin): a row's origin is its highest score when it was set, and moves, with
// all sums, only once a score is 2^kMaxExponent times as large, so that this is rare.
// Rows in shared memory are padded by 16 bytes, so that 8 of them lie in different banks.
//
// The first blocks, one for each sequence and set of heads, take the chunks of one token. The others
// count KV heads, then tiles from the last to the first: those with most keys start first.
//
// Registers are used up at head_dim 128: what looks like a matter of taste in the loop over keys decides
// whether ptxas spills some on one architecture or another.
template <typename Form, int kRowTiles, int kKeys>
__global__ void __launch_bounds__(32 * kMmaWarps, 1) paged_prefill_attention(
    typename Form::Element* __restrict__ out,  // [tokens, kv_heads*group*head_dim]
    const typename Form::Element* q,           // [tokens, kv_heads*group*head_dim]
    // [num_blocks, kv_heads, block_size, head_dim]
    const typename Form::Element* k_cache,
    const typename Form::Element* v_cache,
    const int* block_tables,     // [slots, max_blocks]
    const int* slot_ids,         // [seqs]: rows of block_tables
    const int* seq_lens,         // [seqs]
    const int* query_start_loc,  // [seqs+1]
    int tokens,
    int seqs,
    int kv_heads,
    int group,
    int block_shift,  // log2 of block_size, which is at least 8
    int max_blocks,
    float scale_log2) {  // scale * log2(e), above 0
  using T = typename Form::Element;
  constexpr int kHeadDim = Form::kHeadDim;
  static_assert(Form::kThreads == 32 * kMmaWarps, "one block size for both");
  static_assert(
      kHeadDim % 16 == 0 && kKeys % (kRunKeys * kMmaWarps) == 0, "whole fragments and runs");
  constexpr int kWarpRows = 16 * kRowTiles, kRows = kWarpRows * kMmaWarps;
  constexpr int kVectors = kHeadDim / 8;  // of 16 bytes, in a row
  constexpr int kStride = kHeadDim + 8;
  constexpr int kThreads = 32 * kMmaWarps;
  extern __shared__ __align__(16) unsigned char smem[];
  T* queries = reinterpret_cast<T*>(smem);  // [kRows][kStride]; the result, at the end
  T* keys = queries + kRows * kStride;      // [kKeys][kStride]
  T* values = keys + kKeys * kStride;       // [kKeys][kStride]
  int* heads = reinterpret_cast<int*>(values + kKeys * kStride);  // [kRows]; -1 after the last row

  wait_for_previous_kernel();
  const int head_sets = kv_heads * ((group + Form::kHeads - 1) / Form::kHeads);
  const int block = blockIdx.x, token_blocks = seqs * head_sets;
  if (block < token_blocks) {
    const int seq = block / head_sets, token = query_start_loc[seq];
    if (query_start_loc[seq + 1] - token != 1) return;
    const int length = seq_lens[seq];
    const int* table = block_tables;
    if (length > 0) table += static_cast<long long>(slot_ids[seq]) * max_blocks;
    attend_token<Form>(
        out, q, k_cache, v_cache, table, token, length, block % head_sets, kv_heads, group,
        1 << block_shift, scale_log2);
    return;
  }
  const int kv_head = (block - token_blocks) % kv_heads;
  const int last_first = (gridDim.x - 1 - block) / kv_heads;
  const Tile tile = find_tile(last_first, query_start_loc, seqs, tokens, group, kRows);
  const int rows = min(kRows, tile.chunk * group - tile.first_row);
  if (rows <= 0 || (tile.seq >= 0 && tile.chunk == 1)) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Where the tile's rows lie in q and out, in heads.
  for (int r = threadIdx.x; r < kRows; r += kThreads) {
    const int row = tile.first_row + r, token = tile.chunk_start + row / group;
    heads[r] = r < rows ? (token * kv_heads + kv_head) * group + row % group : -1;
  }
  __syncthreads();
  using Vector = Pack<T, 8>;
  const auto vector_at = [&](int head, int vector) {
    return (static_cast<long long>(head) * kVectors + vector) * 8;
  };
  const int length = tile.seq < 0 ? 0 : seq_lens[tile.seq];
  if (length <= 0) {
    for (int i = threadIdx.x; i < rows * kVectors; i += kThreads) {
      *reinterpret_cast<Vector*>(out + vector_at(heads[i / kVectors], i % kVectors)) =
          zeros<T, 8>();
    }
    return;
  }

  const int table = slot_ids[tile.seq] * max_blocks;  // where it begins in block_tables
  // Row r of the tile sees own_key + (tile.first_row + r) / group + 1 keys.
  const int own_key = length - tile.chunk;                                 // the first token's
  const int num_keys = own_key + (tile.first_row + rows - 1) / group + 1;  // that the last row sees
  const int first_row = warp * kWarpRows;                                  // of the warp
  const int unmasked_keys = own_key + (tile.first_row + first_row) / group + 1;

  // Where the runs of keys that this warp copies lie in the cache, in keys.
  constexpr int kRuns = kKeys / kRunKeys / kMmaWarps;
  const int block_mask = (1 << block_shift) - 1;
  int slots[kRuns];
  const auto find_slots = [&](int first_key) {
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
      const int key = first_key + (j * kMmaWarps + warp) * kRunKeys;
      const int block = key < num_keys ? block_tables[table + (key >> block_shift)] : 0;
      slots[j] = ((block * kv_heads + kv_head) << block_shift) | (key & block_mask);
    }
  };
  // Begins to copy the keys from first_key on, whose slots were found; zeros where there is none. A
  // warp copies a run at a time, kLanes lanes to a key.
  constexpr int kLanes = kVectors % 16 == 0  ? 16
                         : kVectors % 8 == 0 ? 8
                         : kVectors % 4 == 0 ? 4
                                             : 2;
  constexpr int kStep = 32 / kLanes;  // keys that are begun at once
  const int lane_key = lane / kLanes, lane_column = lane % kLanes * 8;
  const auto copy_cached = [&](T* target, const T* cache, int first_key) {
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
      const int run = (j * kMmaWarps + warp) * kRunKeys, key = first_key + run;
      const T* from = cache + static_cast<long long>(slots[j] + lane_key) * kHeadDim + lane_column;
      T* to = target + (run + lane_key) * kStride + lane_column;
#pragma unroll
      for (int k = 0; k < kRunKeys; k += kStep) {
#pragma unroll
        for (int d = 0; d < kHeadDim; d += 8 * kLanes) {
          if (kStep <= kRunKeys || lane_key < kRunKeys) {
            cp_async16(
                to + k * kStride + d, from + k * kHeadDim + d, k < num_keys - key - lane_key);
          }
        }
      }
    }
    cp_async_commit();
  };

  for (int first = 0; first < kRows * kVectors; first += kThreads) {
    const int i = first + threadIdx.x, r = i / kVectors, vector = i % kVectors;
    const int head = heads[r];
    const T* from = q + vector_at(max(head, 0), vector);
    cp_async16(queries + r * kStride + vector * 8, from, head >= 0);
  }
  find_slots(0);
  copy_cached(keys, k_cache, 0);

  float sums[kRowTiles][kHeadDim / 8][4] = {};
  float origin[kRowTiles][2], totals[kRowTiles][2] = {};  // of rows lane/4 and lane/4 + 8
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) origin[i][0] = origin[i][1] = kLowest;
  // The rows of a fragment that this lane names to ldmatrix.
  const T* own_queries = queries + (first_row + lane % 16) * kStride + lane / 16 * 8;
  const T* own_keys = keys + (lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8;
  const T* own_values = values + lane % 16 * kStride + lane / 16 * 8;

  for (int first_key = 0; first_key < num_keys; first_key += kKeys) {
    cp_async_wait<0>();
    __syncthreads();  // K has arrived, and V is no longer in use
    copy_cached(values, v_cache, first_key);
    find_slots(first_key + kKeys);
    float scores[kRowTiles][kKeys / 8][4] = {};
#pragma unroll
    for (int d = 0; d < kHeadDim; d += 16) {
      unsigned a[kRowTiles][4], b[4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) ldmatrix_x4(a[i], own_queries + 16 * i * kStride + d);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        ldmatrix_x4(b, own_keys + 16 * n * kStride + d);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          multiply_pair<T>(scores[i][2 * n], scores[i][2 * n + 1], a[i], b);
        }
      }
    }

    if (first_key + kKeys > unmasked_keys) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = tile.first_row + first_row + 16 * i + 8 * half + lane / 4;
          const int after = row - (first_key - own_key) * group;
          const int limit = (after < 0 ? 0 : after / group + 1) - lane % 4 * 2;
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n) {
            if (8 * n >= limit) scores[i][n][2 * half] = kLowest;
            if (8 * n + 1 >= limit) scores[i][n][2 * half + 1] = kLowest;
          }
        }
      }
    }

    float keep[kRowTiles][2];
    bool rescales = false;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float best = kLowest;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          best = fmaxf(best, fmaxf(scores[i][n][2 * half], scores[i][n][2 * half + 1]));
        }
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2)) * scale_log2;
        const bool grown = best > origin[i][half] + kMaxExponent;
        keep[i][half] = grown ? exp2_approx(origin[i][half] - best) : 1.0f;
        if (grown) origin[i][half] = best;
        rescales |= grown;
      }
    }
    if (__any_sync(0xffffffffu, rescales)) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          totals[i][half] *= keep[i][half];
#pragma unroll
          for (int n = 0; n < kHeadDim / 8; ++n) {
            sums[i][n][2 * half] *= keep[i][half];
            sums[i][n][2 * half + 1] *= keep[i][half];
          }
        }
      }
    }
    unsigned weights[kRowTiles][kKeys / 16][4];  // as fragments
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          const float zero = -origin[i][half];
          const float left = exp2_approx(fmaf(scores[i][n][2 * half], scale_log2, zero));
          const float right = exp2_approx(fmaf(scores[i][n][2 * half + 1], scale_log2, zero));
          totals[i][half] += left + right;
          weights[i][n / 2][half + n % 2 * 2] = packed<T>(left, right);
        }
      }
    }
    cp_async_wait<0>();
    __syncthreads();  // V has arrived, and K is no longer in use
    if (first_key + kKeys < num_keys) copy_cached(keys, k_cache, first_key + kKeys);
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      unsigned b[4];
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        ldmatrix_x4_trans(b, own_values + 16 * n * kStride + 16 * d);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          multiply_pair<T>(sums[i][2 * d], sums[i][2 * d + 1], weights[i][n], b);
        }
      }
    }
  }
  // The warp's rows of the result take the place of its queries, so that they are stored 16 bytes wide.
  T* results = queries + first_row * kStride;
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = __fdividef(1.0f, lanes_sum<4>(totals[i][half]));
      T* to = results + (16 * i + 8 * half + lane / 4) * kStride + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        *reinterpret_cast<unsigned*>(to + 8 * n) =
            packed<T>(sums[i][n][2 * half] * factor, sums[i][n][2 * half + 1] * factor);
      }
    }
  }
  __syncwarp();
  for (int i = lane; i < kWarpRows * kVectors; i += 32) {
    const int r = i / kVectors, vector = i % kVectors, head = heads[first_row + r];
    if (head >= 0) {
      *reinterpret_cast<Vector*>(out + vector_at(head, vector)) =
          *reinterpret_cast<const Vector*>(results + r * kStride + vector * 8);
    }
  }
}

// The batch-invariant form: each token alone, cut and folded as decode does by its own length, so with
// its bits. blockIdx.x is the token, blockIdx.y the KV head and the part of its query heads. A block
// takes all parts of its token, one after the other.
template <typename Form>
__global__ void __launch_bounds__(Form::kThreads, 1) paged_prefill_attention_rows(
    typename Form::Element* __restrict__ out,  // [tokens, kv_heads*group*head_dim]
    const typename Form::Element* q,           // [tokens, kv_heads*group*head_dim]
    const typename Form::Element* k_cache,     // [num_blocks, kv_heads, block_size, head_dim]
    const typename Form::Element* v_cache,     // [num_blocks, kv_heads, block_size, head_dim]
    const int* block_tables,                   // [slots, max_blocks]
    const int* slot_ids,                       // [seqs]: rows of block_tables
    const int* seq_lens,                       // [seqs]
    const int* query_start_loc,                // [seqs+1]
    int seqs,
    int kv_heads,
    int group,
    int block_size,
    int max_blocks,
    float scale_log2,  // scale * log2(e)
    int max_parts,
    int min_units) {
  using T = typename Form::Element;
  constexpr int kHeads = Form::kHeads, kHeadDim = Form::kHeadDim;
  wait_for_previous_kernel();
  const int token = blockIdx.x;
  int low = 0, high = seqs;  // the last chunk that begins with this token or an earlier one
  while (low < high) {
    const int middle = (low + high) / 2;
    if (query_start_loc[middle + 1] <= token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const bool owned = low < seqs && query_start_loc[low] <= token;
  const int length = owned ? seq_lens[low] - (query_start_loc[low + 1] - token) + 1 : 0;

  const int head_parts = (group + kHeads - 1) / kHeads;
  const int kv_head = blockIdx.y / head_parts, first_head = blockIdx.y % head_parts * kHeads;
  const int heads = min(kHeads, group - first_head);
  const long long at =
      ((static_cast<long long>(token) * kv_heads + kv_head) * group + first_head) * kHeadDim;
  if (length <= 0) {
    for (int i = threadIdx.x; i < heads * kHeadDim; i += Form::kThreads) {
      out[at + i] = from_float<T>(0.0f);
    }
    return;
  }
  // What the parts so far give; two copies of what all threads of a head read, so that one can be
  // read while the other is written.
  __shared__ float sums[kHeads][kHeadDim], highest[2][kHeads], totals[2][kHeads];
  const int units = units_of(length), part_units = units_of_part(units, max_parts, min_units);
  const int parts = (units + part_units - 1) / part_units;
  for (int part = 0; part < parts; ++part) {
    const int begin = part * part_units * kUnitTokens;
    const int end = min(begin + part_units * kUnitTokens, length);
    const auto add = [&](int head, int column, const Attended& next) {
      Attended all = nothing();
      if (part > 0) {
        all = {highest[part % 2][head], totals[part % 2][head], sums[head][column]};
      }
      fold<T>(all, next);
      if (part == parts - 1) {
        out[at + head * kHeadDim + column] = from_float<T>(all.sum / all.total);
        return;
      }
      sums[head][column] = all.sum;
      if (column == 0) {
        highest[(part + 1) % 2][head] = all.highest;
        totals[(part + 1) % 2][head] = all.total;
      }
    };
    Form::attend(
        add, q + at, k_cache, v_cache,
        block_tables + static_cast<long long>(slot_ids[low]) * max_blocks, begin, end, heads,
        kv_head, kv_heads, block_size, scale_log2);
  }
}
