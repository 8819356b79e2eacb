// Few rows of x times a weight by a block, on tensor cores, with each weight read once from memory
// straight into the fragments that they multiply: what linear and the kernels around it share.
//
// What a warp loads at a time is kStep adjacent elements of a row of the weight, 512, 256 or 128 bytes:
// requests of less than a line of the cache cost a tenth of the speed. In a fragment's 8 columns these
// are kSegments pieces of 32 elements of each of 8 / kSegments rows. The 16 rows of a fragment of x are
// the same pieces of 16 / kSegments of its rows, so a sum is the total over those results whose row and
// column are of the same piece; the others are not used. There are tensor cores to spare. More rows of
// x are kFragments of them. Which k meet in a step of a fragment is free as long as both operands agree: a lane's 16 bytes are 8
// adjacent k of one row of the weight and the same 8 k of a row of x, two steps' worth of elements.
//
// A unit is kColumns results of every row, by kDepthWarps warps that share in_features in equal,
// adjacent parts and add their sums in order. A block has kRowTeams such teams, and each team of the
// launch a run of units, equally many. A lane has kAhead loads of kGroups rows of the weight under way
// at all times: those of the next unit begin before this one ends, and the first ones before the launch
// waits for the one before it. The next launch may begin with the last loads: earlier its blocks would
// lie unevenly on the multiprocessors, later the memory would be idle.
//
// The order of a result's sum depends on the template arguments and in_features alone; rows of x have
// no influence on each other. in_features is a multiple of kStep * kDepthWarps * kAhead.
#pragma once
#include "common.cuh"
#include "ptx.cuh"

template <
    typename T,
    int kSegments,
    int kFragments,
    int kRowTeams,
    int kDepthWarps,
    int kGroups,
    int kAhead,
    bool kShared>
struct StreamLinear {
  static constexpr int kWarps = kRowTeams * kDepthWarps;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = kFragments * 16 / kSegments;  // of x, at most
  static constexpr int kHalves = 2 * kFragments;             // 8 rows each of all fragments' rows
  static constexpr int kGroupColumns = 8 / kSegments;        // rows of the weight in a fragment
  static constexpr int kColumns = kGroups * kGroupColumns;   // of a unit
  static constexpr int kVector = 8;                          // elements of a load
  static constexpr int kSegment = 4 * kVector;
  static constexpr int kStep = kSegments * kSegment;
  static_assert(kSegments == 2 || kSegments == 4 || kSegments == 8, "whole lines");

  using Vector = Pack<T, kVector>;
  using Words = Pack<unsigned, 4>;

  // The row of the weight that gives a column of a unit, where columns are the weight's rows in order.
  // Columns after the last are computed as the last one.
  struct RowsInOrder {
    int out_features;
    __device__ __forceinline__ long long operator()(int unit, int column) const {
      return min(unit * kColumns + column, out_features - 1);
    }
  };

  // Calls finish(half, unit, row, column, sums) for each unit and row of x, and each column of a group,
  // in the lane that has its sums: sums[g] is the result at column g * kGroupColumns + column of the
  // unit. The same lane has called begin_row(half, row) once, and begin(half, unit, row, column) before
  // the unit's products, to load what finish needs; half tells its calls apart. weight_row(unit, column)
  // is the row of the weight that gives a column of a unit. load_constants() is called first, so that
  // its loads are not behind those of weights; prepare(rows) after the wait for the launch before: where
  // kShared, it fills rows in shared memory with the tokens rows that are multiplied.
  template <
      typename WeightRow,
      typename LoadConstants,
      typename Prepare,
      typename BeginRow,
      typename Begin,
      typename Finish>
  static __device__ __forceinline__ void run(
      const WeightRow& weight_row,
      const LoadConstants& load_constants,
      const Prepare& prepare,
      const BeginRow& begin_row,
      const Begin& begin_unit,
      const Finish& finish_unit,
      const T* x,                    // [tokens, in_features]
      const T* __restrict__ weight,  // [.., in_features]
      int units,
      int tokens,
      int in_features) {
    extern __shared__ __align__(16) unsigned char smem[];
    T* const rows = reinterpret_cast<T*>(smem);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int team = warp / kDepthWarps, part = warp % kDepthWarps;
    const int steps = in_features / kStep / kDepthWarps;
    const int first_k = part * steps * kStep + lane % 4 * kVector;
    const int piece = lane / 4 % kSegments;  // of this lane's row and column of fragments

    const long long all_units = units;
    const int teams = gridDim.x * kRowTeams, own_team = blockIdx.x * kRowTeams + team;
    const int begin = static_cast<int>(all_units * own_team / teams);
    const int end = static_cast<int>(all_units * (own_team + 1) / teams);
    load_constants();

    const T* next[kGroups];
    const auto go_to = [&](int unit) {
      const long long lane_k = first_k + piece * kSegment;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int column = g * kGroupColumns + lane / 4 / kSegments;
        next[g] = weight + weight_row(unit, column) * in_features + lane_k;
      }
    };
    unsigned loaded[kAhead][kGroups][4];
    if (begin < end) {
      go_to(begin);
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) load_once(loaded[ahead][g], next[g] + ahead * kStep);
      }
    }
    wait_for_previous_kernel();
    prepare(rows);

    // The rows and pieces of x that this lane holds in fragments: every 8th from lane / 4 on. Places in
    // x take half the registers of pointers.
    const T* const all_x = kShared ? rows : x;
    const auto own_row = [&](int half) { return (lane / 4 + 8 * half) / kSegments; };
    int own_x[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {  // rows after the last are computed as the last
      const int row = min(own_row(half), tokens - 1);
      own_x[half] = row * in_features + first_k + piece * kSegment;
    }
    const bool both = tokens > 8 / kSegments;  // halves of the first fragment have rows
    const bool has_sums = lane_has_sums(lane), finishes = has_sums && part == 0;
    const int own_column = lane % 4 * 2 / kSegments;
    if (finishes) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        if (own_row(half) < tokens) begin_row(half, own_row(half));
      }
    }
    // Teams take as many turns as the one with most units, since all meet at barriers.
    const int turns = kDepthWarps > 1 ? (units + teams - 1) / teams : end - begin;
    for (int turn = 0; turn < turns; ++turn) {
      const int unit = begin + turn;
      if (finishes && unit < end) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          if (own_row(half) < tokens) begin_unit(half, unit, own_row(half), own_column);
        }
      }
      float results[kFragments][kGroups][4] = {};
      for (int first = 0; first < steps && unit < end; first += kAhead) {
        const bool unit_ends = first + kAhead >= steps;
        const bool more = !unit_ends || unit + 1 < end;
        if (!more) start_next_kernel();  // the memory is about to be idle
        if (!unit_ends) {
#pragma unroll
          for (int g = 0; g < kGroups; ++g) next[g] += kAhead * kStep;
        } else if (more) {
          go_to(unit + 1);
        }
#pragma unroll
        for (int ahead = 0; ahead < kAhead; ++ahead) {
          const int k = (first + ahead) * kStep;
          Words values[kHalves];
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            values[half] = Words{{0u, 0u, 0u, 0u}};
            if (kHalves > 2 || half == 0 || both) {
              values[half] = *reinterpret_cast<const Words*>(all_x + own_x[half] + k);
            }
          }
#pragma unroll
          for (int g = 0; g < kGroups; ++g) {
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
              const unsigned b[2] = {loaded[ahead][g][i], loaded[ahead][g][i + 1]};
#pragma unroll
              for (int f = 0; f < kFragments; ++f) {
                const Words &upper = values[2 * f], &lower = values[2 * f + 1];
                const unsigned a[4] = {upper.v[i], lower.v[i], upper.v[i + 1], lower.v[i + 1]};
                mma_m16n8k16<T>(results[f][g], a, b);
              }
            }
            if (more) load_once(loaded[ahead][g], next[g] + ahead * kStep);
          }
        }
      }
      float sums[kHalves][kGroups];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const float (&pair)[4] = results[half / 2][g];
          sums[half][g] = sum_of_pieces(pair[half % 2 * 2], pair[half % 2 * 2 + 1], piece);
        }
      }
      if constexpr (kDepthWarps > 1) add_parts(sums, has_sums, part, turn % 2);
      if (finishes && unit < end) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          if (own_row(half) < tokens) {
            finish_unit(half, unit, own_row(half), own_column, sums[half]);
          }
        }
      }
    }
  }

  // A thread's part of the norm's weight; in_features is at most kHeld loads of the block.
  static constexpr int kHeld = 4;
  static __device__ __forceinline__ void load_gains(
      Vector (&gains)[kHeld],
      const T* __restrict__ gain,  // [in_features]
      int in_features) {
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int i = h * kThreads + threadIdx.x;
      if (i < in_features / kVector) gains[h] = reinterpret_cast<const Vector*>(gain)[i];
    }
  }

  // Puts the rows of rms_norm(x) into shared memory, rounded to T.
  static __device__ __forceinline__ void normalise_rows(
      T* rows,
      const T* x,  // [tokens, in_features]
      const Vector (&gains)[kHeld],
      int tokens,
      int in_features,
      float eps) {
    __shared__ float partial[kRows][kWarps];
    const int vectors = in_features / kVector;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    start_copies(rows, x, tokens, in_features);
    cp_async_wait<0>();  // a thread reads what it has copied itself
    Vector* const own = reinterpret_cast<Vector*>(rows);
    for (int row = 0; row < tokens; ++row) {
      float squares = 0.0f;
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        const int i = h * kThreads + threadIdx.x;
        if (i < vectors) {
          const Vector values = own[row * vectors + i];
#pragma unroll
          for (int k = 0; k < kVector; ++k) {
            squares = fmaf(to_float(values.v[k]), to_float(values.v[k]), squares);
          }
        }
      }
      squares = lanes_sum<32>(squares);
      if (lane == 0) partial[row][warp] = squares;
    }
    __syncthreads();
    for (int row = 0; row < tokens; ++row) {
      float total = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) total += partial[row][w];
      const float scale = rsqrtf(total / in_features + eps);
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        const int i = h * kThreads + threadIdx.x;
        if (i < vectors) {
          Vector values = own[row * vectors + i];
#pragma unroll
          for (int k = 0; k < kVector; ++k) {
            values.v[k] = from_float<T>(to_float(values.v[k]) * scale * to_float(gains[h].v[k]));
          }
          own[row * vectors + i] = values;
        }
      }
    }
    __syncthreads();
  }

 private:
  static __device__ __forceinline__ void start_copies(
      T* rows, const T* x, int tokens, int in_features) {
    for (int row = 0; row < tokens; ++row) {
      const long long first = static_cast<long long>(row) * in_features;
      for (int i = threadIdx.x * kVector; i < in_features; i += kThreads * kVector) {
        cp_async16(rows + first + i, x + first + i);
      }
    }
    cp_async_commit();
  }

  // The total over the pieces of a row and column, of a fragment's results at a lane's columns
  // 2 * (lane % 4) and the next; of one of the two halves of rows.
  static __device__ __forceinline__ float sum_of_pieces(float left, float right, int piece) {
    const int lane = threadIdx.x % 32;
    const int left_piece = lane % 4 * 2 % kSegments;
    float sum = piece == left_piece ? left : piece == left_piece + 1 ? right : 0.0f;
#pragma unroll
    for (int bit = 1; bit < 32; bit *= 2) {
      if ((kSumLanes & bit) != 0) sum += __shfl_xor_sync(0xffffffffu, sum, bit);
    }
    return sum;
  }

  // Lanes that hold pieces of one result differ in these bits; the first of them has its sum. place_of
  // numbers these.
  static constexpr int kSumLanes = kSegments == 8 ? 31 : kSegments == 4 ? 13 : 4;
  static constexpr int kPlaces = kSegments == 8 ? 1 : kSegments == 4 ? 4 : 16;
  static __device__ __forceinline__ bool lane_has_sums(int lane) { return (lane & kSumLanes) == 0; }
  static __device__ __forceinline__ int place_of(int lane) {
    return kSegments == 8   ? 0
           : kSegments == 4 ? lane / 2 % 2 + lane / 16 * 2
                            : lane % 4 + lane / 8 * 4;
  }

  // Adds the sums of a team's warps in order; the first warp has the totals. Two turns have places of
  // their own, so that a warp that is ahead writes while others read. The whole block calls it.
  static __device__ __forceinline__ void add_parts(
      float (&sums)[kHalves][kGroups], bool has_sums, int part, int turn) {
    __shared__ float parts[2][kWarps][kHalves * kGroups][kPlaces];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int place = place_of(lane);
    if (has_sums) {
#pragma unroll
      for (int i = 0; i < kHalves * kGroups; ++i)
        parts[turn][warp][i][place] = sums[i / kGroups][i % kGroups];
    }
    __syncthreads();
    if (has_sums && part == 0) {
#pragma unroll
      for (int i = 0; i < kHalves * kGroups; ++i) {
        float total = sums[i / kGroups][i % kGroups];
#pragma unroll
        for (int other = 1; other < kDepthWarps; ++other)
          total += parts[turn][warp + other][i][place];
        sums[i / kGroups][i % kGroups] = total;
      }
    }
  }
};
