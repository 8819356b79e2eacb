// What becomes of the columns of qkv where they are computed: q and k rotated by their positions, k and v
// stored in their cache slots, as rope_append does, each rounded to T first.
//
// A unit's first half of groups are columns of the first halves of heads, the second half those that these
// are rotated with. A dead row (slot -1) stores no k and v, its q is zero, and its position may hold
// anything.
#pragma once
#include "common.cuh"

// Stream: StreamLinear or HeldRows; before: load_constants and prepare of one that normalises the rows.
template <typename Stream, typename T, typename... Before>
__device__ __forceinline__ void rope_columns_of(
    T* __restrict__ q,                  // [tokens, heads*head_dim]
    T* k_cache,                         // [num_blocks, kv_heads, block_size, head_dim]
    T* v_cache,                         // [num_blocks, kv_heads, block_size, head_dim]
    const T* x,                         // [tokens, in_features]
    const int* positions,               // [tokens]
    const int* slot_mapping,            // [tokens]
    const T* __restrict__ weight,       // [(heads + 2*kv_heads)*head_dim, in_features]
    const float* __restrict__ cos_sin,  // [max_position, head_dim]: cosines, then sines
    const T* __restrict__ bias,         // [(heads + 2*kv_heads)*head_dim] or null
    int tokens,
    int in_features,
    int heads,
    int kv_heads,
    int head_dim,
    int block_size,
    const Before&... before) {
  static_assert(Stream::kGroups % 2 == 0, "half of the groups are first halves of heads");
  constexpr int kPairs = Stream::kColumns / 2;  // of a unit
  constexpr int kPairGroups = Stream::kGroups / 2;
  const int half = head_dim / 2, pairs = (heads + 2 * kv_heads) * half;
  // Pairs after the last are computed as the last one, and not stored.
  const auto weight_row = [&](int unit, int column) -> long long {
    const int pair = min(unit * kPairs + column % kPairs, pairs - 1);
    return pair / half * head_dim + pair % half + (column < kPairs ? 0 : half);
  };
  // What finish needs: a row's slot, and the angles of a unit's pairs at its position.
  int slots[Stream::kHalves];
  const float* angles[Stream::kHalves];
  float cosines[Stream::kHalves][kPairGroups], sines[Stream::kHalves][kPairGroups];
  const auto begin_row = [&](int which, int row) {
    slots[which] = slot_mapping[row];
    const long long position = slots[which] < 0 ? 0 : positions[row];
    angles[which] = cos_sin + position * head_dim;
  };
  const auto begin = [&](int which, int unit, int, int column) {
#pragma unroll
    for (int g = 0; g < kPairGroups; ++g) {
      const int index = (unit * kPairs + g * Stream::kGroupColumns + column) % half;
      cosines[which][g] = angles[which][index];
      sines[which][g] = angles[which][half + index];
    }
  };
  const auto finish = [&](int which, int unit, int row, int column,
                          const float (&sums)[Stream::kGroups]) {
#pragma unroll
    for (int g = 0; g < kPairGroups; ++g) {
      const int pair = unit * kPairs + g * Stream::kGroupColumns + column;
      if (pair < pairs) {
        const int head = pair / half, index = pair % half, slot = slots[which];
        T* target = q + (static_cast<long long>(row) * heads + head) * head_dim + index;
        if (slot < 0) {
          if (head < heads) target[0] = target[half] = from_float<T>(0.0f);
          continue;
        }
        const bool is_rotated = head < heads + kv_heads;  // a query or a key
        if (head >= heads) {
          const long long kv_head = head - heads - (is_rotated ? 0 : kv_heads);
          const long long place =
              (slot / block_size * static_cast<long long>(kv_heads) + kv_head) * block_size +
              slot % block_size;
          target = (is_rotated ? k_cache : v_cache) + place * head_dim + index;
        }
        const int first = head * head_dim + index;
        T a = from_float<T>(sums[g] + (bias != nullptr ? to_float(bias[first]) : 0.0f));
        T b = from_float<T>(
            sums[g + kPairGroups] + (bias != nullptr ? to_float(bias[first + half]) : 0.0f));
        if (is_rotated) {
          const float left = to_float(a), right = to_float(b);
          a = from_float<T>(left * cosines[which][g] - right * sines[which][g]);
          b = from_float<T>(right * cosines[which][g] + left * sines[which][g]);
        }
        target[0] = a;
        target[half] = b;
      }
    }
  };
  const int units = (pairs + kPairs - 1) / kPairs;
  Stream::run(
      weight_row, before..., begin_row, begin, finish, x, weight, units, tokens, in_features);
}
