// The form of prefill attention for sm_90a: fp16 and bf16, head_dim 64 and 128, blocks of the cache of 16
// keys or more. Part of paged_prefill_attention.cu.
//
// The same tiles, online softmax and rounding as on mma.sync. One warpgroup copies, the others compute
// 64 rows each: scores = Q K^T and sums += weights V are wgmma, with scores, weights and sums in registers.
// K and V come through the block table by tensor maps, 16 keys at a time, into rings of kStages tiles of
// kKeys keys. Products of V with one tile's weights run while the next tile's scores become weights, and
// the warpgroups take turns at the tensor cores, so that one multiplies while another is at its softmax.
//
// A block takes tiles in rounds, every other round backwards: tiles are ordered by their work, most
// first, so that all blocks get about as much. A grid of as many blocks as tiles takes one each.
// A row's result depends on its own position and the sequence alone: tiles of keys begin at key 0.
//
// In shared memory 8 rows lie together, 64 columns after 64, as wgmma_matrix wants them.
#pragma once
#include "chunk_tile.cuh"
#include "online_softmax.cuh"
#include "ptx_sm90.cuh"
#include "tile_ring.cuh"

// Two floats as a register of wgmma's fragments holds them, the first in the low half.
__device__ __forceinline__ unsigned pair_for(__nv_bfloat16, float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}
__device__ __forceinline__ unsigned pair_for(__half, float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

// Of two lanes `distance` apart the lower one gives its `high` for the `low` of the upper one.
__device__ __forceinline__ void exchange(unsigned& low, unsigned& high, int distance) {
  const bool upper = threadIdx.x & distance;
  const unsigned other = __shfl_xor_sync(0xffffffffu, upper ? low : high, distance);
  low = upper ? other : low;
  high = upper ? high : other;
}

// Lane q of 4 has the words of row q of a 4x4 matrix, and gets those of column q.
__device__ __forceinline__ void transpose_quad(unsigned (&words)[4]) {
  exchange(words[0], words[1], 1);
  exchange(words[2], words[3], 1);
  exchange(words[0], words[2], 2);
  exchange(words[1], words[3], 2);
}

// A tile of rows, and the keys that they see.
struct PrefillWork {
  int kv_head, chunk_start, first_row, rows;
  int own_key;   // row r of the chunk sees own_key + r / group + 1 keys
  int num_keys;  // that the last row sees
  int steps;     // tiles of keys; 0 where there is nothing to attend to
};

template <typename T, int kHeadDim, int kGroups, int kKeys, int kStages, int kQueryStages>
__global__ void __launch_bounds__(128 * (kGroups + 1), 1) paged_prefill_attention_wgmma(
    T* __restrict__ out,         // [tokens, kv_heads*group*head_dim]
    const T* q,                  // [tokens, kv_heads*group*head_dim]
    const T* k_cache,            // [num_blocks, kv_heads, block_size, head_dim]
    const T* v_cache,            // [num_blocks, kv_heads, block_size, head_dim]
    const int* block_tables,     // [slots, max_blocks]
    const int* slot_ids,         // [seqs]: rows of block_tables
    const int* seq_lens,         // [seqs]
    const int* query_start_loc,  // [seqs+1]
    int tokens,
    int seqs,
    int kv_heads,
    int group,
    int block_shift,  // log2 of block_size, which is at least 16
    int max_blocks,
    float scale_log2,  // scale * log2(e), above 0
    int tiles,         // of all KV heads
    // The caches as [num_blocks*kv_heads*block_size/8, head_dim/64, 8, 64], and boxes of them, of which
    // the first dim is 2.
    const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map) {
  constexpr int kRows = 64 * kGroups;
  constexpr int kVectors = kHeadDim / 8;            // of 16 bytes, in a row
  constexpr int kEightRows = kHeadDim / 64 * 1024;  // bytes
  constexpr int kBox = 2 * kEightRows, kBoxes = kKeys / 16;
  constexpr int kTileBytes = kBoxes * kBox, kQueryBytes = kRows / 8 * kEightRows;
  // Of a thread: 504 or 512 in one of each warpgroup together.
  constexpr int kComputingRegisters = kGroups == 2 ? 224 : 152, kCopyingRegisters = 56;
  constexpr float kMaxExponent = 8.0f;  // a weight is at most 2^8: exact enough in fp16 too
  extern __shared__ __align__(16) unsigned char smem[];
  __shared__ PrefillWork works[kQueryStages];  // of the tiles of queries
  const unsigned tiles_at = (shared_address(smem) + 1023) / 1024 * 1024;
  const unsigned barriers = tiles_at + 2 * kStages * kTileBytes + kQueryStages * kQueryBytes;
  using Tiles = Ring<kStages, kTileBytes>;
  const Tiles keys{tiles_at, barriers};
  const Tiles values{keys.tiles + kStages * kTileBytes, barriers + 16 * kStages};
  const Ring<kQueryStages, kQueryBytes> queries{values.tiles + kStages * kTileBytes,
                                                barriers + 32 * kStages};

  let_next_kernel_start();
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(keys.full(stage), 1);
      mbarrier_init(keys.empty(stage), 4 * kGroups);
      mbarrier_init(values.full(stage), 1);
      mbarrier_init(values.empty(stage), 4 * kGroups);
    }
    for (int stage = 0; stage < kQueryStages; ++stage) {
      mbarrier_init(queries.full(stage), 3);
      mbarrier_init(queries.empty(stage), 4 * kGroups);
    }
    mbarrier_init_done();
  }
  __syncthreads();
  wait_for_previous_kernel();

  // Where a row of the chunk lies in q and out, in heads.
  const auto head_of = [&](const PrefillWork& work, int row) {
    const long long token = work.chunk_start + row / group;
    return (token * kv_heads + work.kv_head) * group + row % group;
  };
  // Where vector v of row r of a tile lies in it.
  const auto place_of = [](int r, int v) {
    return r / 8 * kEightRows + v / 8 * 1024 + r % 8 * 128 + (v % 8 ^ r % 8) * 16;
  };

  if (warpgroup == 0) {
    shrink_registers<kCopyingRegisters>();
    // The block's tile of a round; at or after `tiles` where it has none any more.
    const auto tile_of = [&](int round) {
      const int place = round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
      return round * static_cast<int>(gridDim.x) + place;
    };
    int seq = 0, length = 0;  // of the tile that was asked for last
    const auto work_of = [&](int index) {
      const Tile tile =
          find_tile((tiles - 1 - index) / kv_heads, query_start_loc, seqs, tokens, group, kRows);
      PrefillWork work = {index % kv_heads, tile.chunk_start, tile.first_row};
      work.rows = min(kRows, tile.chunk * group - tile.first_row);
      seq = tile.seq;
      length = work.rows > 0 && seq >= 0 ? seq_lens[seq] : 0;
      if (length > 0) {
        work.own_key = length - tile.chunk;
        work.num_keys = work.own_key + (tile.first_row + work.rows - 1) / group + 1;
        work.steps = (work.num_keys + kKeys - 1) / kKeys;
      }
      return work;
    };
    if (warp == 0) {  // copies K and V
      const int block_mask = (1 << block_shift) - 1;
      int done = 0;  // steps so far
      for (int round = 0; tile_of(round) < tiles; ++round) {
        const PrefillWork work = work_of(tile_of(round));
        if (work.steps == 0) continue;
        const int table = slot_ids[seq] * max_blocks;  // where it begins in block_tables
        // Keys that are copied. Where the sequence ends within 16 of them, those are copied row by row
        // and the rest are zeros: what the cache holds there must not meet a weight of 0.
        const int end = min(length, (work.num_keys + 15) / 16 * 16);
        for (int step = 0; step < work.steps; ++step, ++done) {
          const int key = step * kKeys + lane * 16;  // the lane's first
          int block = 0;
          if (lane < kBoxes && key < end) block = block_tables[table + (key >> block_shift)];
          const int slot = ((block * kv_heads + work.kv_head) << block_shift) | (key & block_mask);
          const bool whole = key + 16 <= end, has_part = end % 16 != 0 && step == work.steps - 1;
          const int part = (end - step * kKeys) / 16;  // the lane whose box is not whole
          const int part_slot = __shfl_sync(0xffffffffu, slot, part);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const Tiles& ring = i == 0 ? keys : values;
            const T* cache = i == 0 ? k_cache : v_cache;
            ring.wait_empty(done);
            if (has_part) {
              const T* from = cache + static_cast<long long>(part_slot) * kHeadDim;
              for (int at = lane; at < 16 * kVectors; at += 32) {
                const int r = at / kVectors, v = at % kVectors;
                const bool exists = r < end % 16;
                cp_async16_to(
                    ring.tile(done) + part * kBox + place_of(r, v), from + (exists ? at * 8 : 0),
                    exists);
              }
              cp_async_commit();
              cp_async_wait<0>();
              fence_shared_memory();
              __syncwarp();
            }
            if (lane == 0) {
              mbarrier_arrive_expecting(ring.full(done), kTileBytes - (has_part ? kBox : 0));
            }
            __syncwarp();
            if (lane < kBoxes && (whole || key >= end)) {
              constexpr int kBeyond = 1 << 30;  // after every array's end: zeros
              copy_box(
                  ring.tile(done) + lane * kBox, i == 0 ? &k_map : &v_map,
                  {{0, 0, 0, whole ? slot / 8 : kBeyond}}, ring.full(done));
            }
          }
        }
      }
    } else {         // copies queries, and tells what to do with them
      int done = 0;  // tiles so far
      const auto hand_over = [&](const PrefillWork& work) {
        if (threadIdx.x == 32) works[done % kQueryStages] = work;
        __syncwarp();
        if (lane == 0) mbarrier_arrive(queries.full(done));
        ++done;
      };
      for (int round = 0; tile_of(round) < tiles; ++round) {
        const PrefillWork work = work_of(tile_of(round));
        if (work.steps == 0) {
          for (int at = threadIdx.x - 32; at < work.rows * kVectors; at += 96) {
            const long long head = head_of(work, work.first_row + at / kVectors);
            *reinterpret_cast<Pack<T, 8>*>(out + head * kHeadDim + at % kVectors * 8) =
                zeros<T, 8>();
          }
          continue;
        }
        queries.wait_empty(done);
        for (int at = threadIdx.x - 32; at < kRows * kVectors; at += 96) {
          const int r = at / kVectors, v = at % kVectors;
          const bool exists = r < work.rows;
          const long long head = exists ? head_of(work, work.first_row + r) : 0;
          cp_async16_to(queries.tile(done) + place_of(r, v), q + head * kHeadDim + v * 8, exists);
        }
        cp_async_commit();
        cp_async_wait<0>();
        fence_shared_memory();
        hand_over(work);
      }
      queries.wait_empty(done);
      hand_over({});  // no steps: the end
    }
  } else {
    grow_registers<kComputingRegisters>();
    const int mine = warpgroup - 1;
    const auto release = [&](unsigned barrier) {
      if (lane == 0) mbarrier_arrive(barrier);
    };
    const auto take_turn = [&] { named_barrier_wait(1 + mine, 256); };
    const auto pass_turn = [&] { named_barrier_arrive(1 + (mine + 1) % kGroups, 256); };
    // Registers 4*n + 2*half + i are column 8*n + lane%4*2 + i of row lane/4 + 8*half of the warp.
    float scores[kKeys / 2], sums[kHeadDim / 2];
    unsigned weights[kKeys / 4];
    float origin[2], totals[2], keep[2];
    bool rescales;

    const auto multiply_keys = [&](int tile, int step) {
      const unsigned mine_of_tile = queries.tile(tile) + mine * 8 * kEightRows;
      wgmma_begin();
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        const int at = d / 4 * 1024 + d % 4 * 32;
        wgmma_scores(
            T(), scores, wgmma_matrix(mine_of_tile + at, kEightRows, 0),
            wgmma_matrix(keys.tile(step) + at, kEightRows, 0), d > 0);
      }
      wgmma_commit();
    };
    const auto multiply_values = [&](int step, bool adds) {
      wgmma_begin();
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        wgmma_sums(
            T(), sums, weights + 4 * n,
            wgmma_matrix(values.tile(step) + n * kBox, kEightRows, 1024), n > 0 || adds);
      }
      wgmma_commit();
    };
    // Makes scores 2^(score - origin), as on mma.sync.
    const auto soften = [&](const PrefillWork& work, int first_key) {
      const int first_row = work.first_row + 64 * mine;
      if (first_key + kKeys > work.own_key + first_row / group + 1) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = first_row + 16 * warp + 8 * half + lane / 4;
          const int after = row - (first_key - work.own_key) * group;
          const int limit = (after < 0 ? 0 : after / group + 1) - lane % 4 * 2;
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n) {
            if (8 * n >= limit) scores[4 * n + 2 * half] = kLowest;
            if (8 * n + 1 >= limit) scores[4 * n + 2 * half + 1] = kLowest;
          }
        }
      }
      rescales = false;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float best = kLowest;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          best = fmaxf(best, fmaxf(scores[4 * n + 2 * half], scores[4 * n + 2 * half + 1]));
        }
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2)) * scale_log2;
        const bool grown = best > origin[half] + kMaxExponent;
        keep[half] = grown ? exp2_approx(origin[half] - best) : 1.0f;
        if (grown) origin[half] = best;
        rescales |= grown;
        const float zero = -origin[half];
        float added = 0.0f;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          float& left = scores[4 * n + 2 * half];
          float& right = scores[4 * n + 2 * half + 1];
          left = exp2_approx(fmaf(left, scale_log2, zero));
          right = exp2_approx(fmaf(right, scale_log2, zero));
          added += left + right;
        }
        totals[half] = fmaf(totals[half], keep[half], added);
      }
      rescales = __any_sync(0xffffffffu, rescales);
    };
    const auto round_weights = [&] {
#pragma unroll
      for (int n = 0; n < kKeys / 4; ++n) {
        weights[n] = pair_for(T(), scores[2 * n], scores[2 * n + 1]);
      }
    };
    // 4 lanes have 8 columns of a row between them, 2 each; they exchange 4 such so that each has 16
    // bytes to store.
    const auto store = [&](const PrefillWork& work) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = 64 * mine + 16 * warp + 8 * half + lane / 4;
        const float factor = __fdividef(1.0f, lanes_sum<4>(totals[half]));
        T* to = out + head_of(work, work.first_row + r) * kHeadDim + lane % 4 * 8;
#pragma unroll
        for (int d = 0; d < kHeadDim / 32; ++d) {
          unsigned words[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const int at = 4 * (4 * d + j) + 2 * half;
            words[j] = pair_for(T(), sums[at] * factor, sums[at + 1] * factor);
          }
          transpose_quad(words);
          if (r < work.rows) {
            *reinterpret_cast<uint4*>(to + 32 * d) =
                make_uint4(words[0], words[1], words[2], words[3]);
          }
        }
      }
    };

    if (mine == kGroups - 1) pass_turn();
    int step_done = 0;
    for (int tile = 0;; ++tile) {
      queries.wait_full(tile);
      const PrefillWork work = works[tile % kQueryStages];
      if (work.steps == 0) break;
      origin[0] = origin[1] = kLowest;
      totals[0] = totals[1] = 0.0f;
      keys.wait_full(step_done);
      multiply_keys(tile, step_done);
      wgmma_wait<0>(scores);
      release(keys.empty(step_done));
      if (work.steps == 1) release(queries.empty(tile));
      soften(work, 0);
      round_weights();
      if (work.steps > 1) keys.wait_full(step_done + 1);
      for (int step = 1; step < work.steps; ++step, ++step_done) {
        take_turn();
        multiply_keys(tile, step_done + 1);
        values.wait_full(step_done);
        multiply_values(step_done, step > 1);
        pass_turn();
        wgmma_wait<1>(scores);
        release(keys.empty(step_done + 1));
        if (step == work.steps - 1) release(queries.empty(tile));
        soften(work, step * kKeys);
        keep_order(scores);
        // Needed a little later. Waiting here also keeps the assembler from moving the wait for the
        // products with V, a plain instruction, before the exponentials that are to overlap them.
        if (step + 1 < work.steps) keys.wait_full(step_done + 2);
        wgmma_wait<0>(sums);
        release(values.empty(step_done));
        if (rescales) {
#pragma unroll
          for (int n = 0; n < kHeadDim / 2; ++n) sums[n] *= keep[n / 2 % 2];
        }
        round_weights();
      }
      values.wait_full(step_done);
      multiply_values(step_done, work.steps > 1);
      wgmma_wait<0>(sums);
      release(values.empty(step_done));
      ++step_done;
      store(work);
    }
  }
}
