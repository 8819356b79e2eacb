// What becomes of the columns of qkv where they are computed: q and k rotated by their positions, k and v
// stored in their cache slots, as rope_append does, each rounded to T first.
//
// A unit's first half of groups are columns of the first halves of heads, the second half those that these
// are rotated with. A dead row (slot -1) stores no k and v, its q is zero, and its position may hold
// anything.
#pragma once
#include "common.cuh"

// What rope_columns_of has a StreamLinear or HeldRows call.
template <typename T, typename Stream>
struct RopeColumns {
  T* q;                     // [tokens, heads*head_dim]
  T* k_cache;               // [num_blocks, kv_heads, block_size, head_dim]
  T* v_cache;               // [num_blocks, kv_heads, block_size, head_dim]
  const float* cos_sin;     // [max_position, head_dim]: cosines, then sines
  const int* positions;     // [tokens]
  const int* slot_mapping;  // [tokens]
  const T* bias;            // [(heads + 2*kv_heads)*head_dim] or null
  int heads;
  int kv_heads;
  int head_dim;
  int block_size;

  static_assert(Stream::kGroups % 2 == 0, "half of the groups are first halves of heads");
  static constexpr int kPairs = Stream::kColumns / 2;  // of a unit
  static constexpr int kPairGroups = Stream::kGroups / 2;

  // Of a row: its slot, and the angles of a unit's pairs at its position.
  int slots[Stream::kHalves];
  const float* angles[Stream::kHalves];
  float cosines[Stream::kHalves][kPairGroups], sines[Stream::kHalves][kPairGroups];

  __device__ __forceinline__ int pairs() const { return (heads + 2 * kv_heads) * (head_dim / 2); }
  __device__ __forceinline__ int units() const { return (pairs() + kPairs - 1) / kPairs; }

  // Pairs after the last are computed as the last one, and not stored.
  __device__ __forceinline__ long long weight_row(int unit, int column) const {
    const int half = head_dim / 2;
    const int pair = min(unit * kPairs + column % kPairs, pairs() - 1);
    return pair / half * head_dim + pair % half + (column < kPairs ? 0 : half);
  }

  __device__ __forceinline__ void begin_row(int which, int row) {
    slots[which] = slot_mapping[row];
    const long long position = slots[which] < 0 ? 0 : positions[row];
    angles[which] = cos_sin + position * head_dim;
  }

  __device__ __forceinline__ void begin(int which, int unit, int column) {
    const int half = head_dim / 2;
#pragma unroll
    for (int g = 0; g < kPairGroups; ++g) {
      const int index = (unit * kPairs + g * Stream::kGroupColumns + column) % half;
      cosines[which][g] = angles[which][index];
      sines[which][g] = angles[which][half + index];
    }
  }

  __device__ __forceinline__ void finish(
      int which, int unit, int row, int column, const float (&sums)[Stream::kGroups]) const {
    const int half = head_dim / 2;
#pragma unroll
    for (int g = 0; g < kPairGroups; ++g) {
      const int pair = unit * kPairs + g * Stream::kGroupColumns + column;
      if (pair >= pairs()) continue;
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

// before: load_constants and prepare of a Stream that normalises the rows.
template <typename Stream, typename T, typename... Before>
__device__ __forceinline__ void rope_columns_of(
    RopeColumns<T, Stream>& columns,
    const T* x,                    // [tokens, in_features]
    const T* __restrict__ weight,  // [(heads + 2*kv_heads)*head_dim, in_features]
    int tokens,
    int in_features,
    const Before&... before) {
  const auto weight_row = [&](int unit, int column) { return columns.weight_row(unit, column); };
  const auto begin_row = [&](int which, int row) { columns.begin_row(which, row); };
  const auto begin = [&](int which, int unit, int, int column) {
    columns.begin(which, unit, column);
  };
  const auto finish = [&](int which, int unit, int row, int column,
                          const float (&sums)[Stream::kGroups]) {
    columns.finish(which, unit, row, column, sums);
  };
  Stream::run(
      weight_row, before..., begin_row, begin, finish, x, weight, columns.units(), tokens,
      in_features);
}
