// What kernels/ptx_sm90.cuh offers, on the CPU. Addresses of shared memory count from its first byte.
#pragma once
#include <stdint.h>
#include <string.h>

#include <algorithm>

#include "ptx_on_cpu.h"

extern thread_local unsigned char smem[];  // of shared_memory.cpp

// What tensor_map.py knows, as emulate.py packs it.
struct TensorMap {
  uint64_t address, shape[4], strides_bytes[3], box[4], unused[4];
};

namespace emu {

constexpr uint64_t kRowBytes = 128;        // that are swizzled together
constexpr unsigned kRankStride = 1 << 20;  // between addresses of blocks of a cluster

EMU_UNCHECKED inline unsigned char* shared_at(unsigned address) { return smem + address; }

EMU_UNCHECKED inline unsigned swizzled(unsigned address) {
  return address ^ (address / kRowBytes % 8) * 16;
}

// In the 8 bytes of shared memory that the barrier has. Low bit of phase_and_bytes: of the phase that is
// open; above it, bytes that the copy engine still owes.
struct Mbarrier {
  uint16_t arrivals, arrived;
  int32_t phase_and_bytes;
};

EMU_UNCHECKED inline Mbarrier& mbarrier(unsigned address) {
  return *reinterpret_cast<Mbarrier*>(shared_at(address));
}

// A barrier in the shared memory of a block of the cluster.
struct PlacedBarrier {
  Mbarrier* state;
  unsigned rank, offset;

  EMU_UNCHECKED void close_if_complete() const {
    if (state->arrived != state->arrivals || state->phase_and_bytes >> 1) return;
    state->arrived = 0;
    state->phase_and_bytes ^= 1;
    emu_phase_ends(rank, offset);
  }
};

EMU_UNCHECKED inline PlacedBarrier own_barrier(unsigned offset) {
  return {&mbarrier(offset), emu_block_rank(), offset};
}

template <int kParity>
EMU_UNCHECKED bool has_closed(const void* barrier) {
  return (static_cast<const Mbarrier*>(barrier)->phase_and_bytes & 1) != kParity;
}

// Of a block, by name: threads that have arrived and how often all had, complemented, since shared memory
// begins as bytes of 0xff.
static thread_local unsigned named_barriers[16][2];

struct Meeting {
  const unsigned* met;
  unsigned before;
};

EMU_UNCHECKED inline bool has_met(const void* meeting) {
  const auto& known = *static_cast<const Meeting*>(meeting);
  return *known.met != known.before;
}

struct QuadIn {
  unsigned a[4];
};
struct QuadOut {
  unsigned a[4][4];  // of each lane of the quad
};

EMU_UNCHECKED inline void share_in_quads(unsigned, const void* const* in, void* const* out) {
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int other = 0; other < 4; ++other) {
      memcpy(static_cast<QuadOut*>(out[lane])->a[other], in[lane / 4 * 4 + other], sizeof(QuadIn));
    }
  }
}

// A descriptor of wgmma.
struct Matrix {
  unsigned start, eight_rows, columns;
  EMU_UNCHECKED explicit Matrix(unsigned long long bits)
      : start((bits & 0x3fff) << 4),
        eight_rows((bits >> 32 & 0x3fff) << 4),
        columns((bits >> 16 & 0x3fff) << 4) {}
  EMU_UNCHECKED unsigned row(int r) const { return start + r / 8 * eight_rows + r % 8 * kRowBytes; }
};

// The operations at one place of the kernel's text.
struct PtxSm90 {
  const char* site;

  EMU_UNCHECKED void mbarrier_init(unsigned barrier, int arrivals) const {
    if (barrier % 8) emu_fail(site, "a barrier is at byte %u, expected a multiple of 8", barrier);
    emu_access(shared_at(barrier), 8, true, site);
    emu_barrier_begins(barrier);
    mbarrier(barrier) = {static_cast<uint16_t>(arrivals), 0, 0};
  }
  EMU_UNCHECKED void mbarrier_arrive_expecting(unsigned barrier, int bytes) const {
    arrive(own_barrier(barrier), bytes);
  }
  EMU_UNCHECKED void arrive(const PlacedBarrier& barrier, int bytes) const {
    Mbarrier& b = *barrier.state;
    emu_check_begun(barrier.rank, barrier.offset, site);
    if (b.arrived == b.arrivals) emu_fail(site, "more than %d arrivals at a barrier", b.arrivals);
    emu_arrives(barrier.rank, barrier.offset);
    ++b.arrived;
    b.phase_and_bytes += 2 * bytes;
    barrier.close_if_complete();
  }
  EMU_UNCHECKED void mbarrier_arrive(unsigned barrier) const {
    mbarrier_arrive_expecting(barrier, 0);
  }
  EMU_UNCHECKED void mbarrier_wait(unsigned barrier, int parity) const {
    emu_check_begun(emu_block_rank(), barrier, site);
    emu_wait_until(site, parity ? has_closed<1> : has_closed<0>, &mbarrier(barrier));
    emu_has_waited(barrier);
  }

  EMU_UNCHECKED bool mbarrier_has_ended(unsigned barrier, int parity) const {
    const Mbarrier& b = mbarrier(barrier);
    emu_check_begun(emu_block_rank(), barrier, site);
    const bool ended = parity ? has_closed<1>(&b) : has_closed<0>(&b);
    if (ended) emu_has_waited(barrier);
    return ended;
  }
  // A loop that polls gives the turn to others here.
  EMU_UNCHECKED int load_hint(const int* hint) const {
    emu_give_turn(site);
    return *static_cast<const volatile int*>(hint);
  }

  EMU_UNCHECKED unsigned named_barrier_arrive(int name, int threads) const {
    unsigned (&barrier)[2] = named_barriers[name];
    const unsigned before = barrier[1];
    emu_arrives_at_name(name);
    --barrier[0];
    if (~barrier[0] == static_cast<unsigned>(threads)) {
      barrier[0] = ~0u;
      --barrier[1];
      emu_name_has_met(name);
    }
    return before;
  }
  EMU_UNCHECKED void named_barrier_wait(int name, int threads) const {
    const Meeting meeting{&named_barriers[name][1], named_barrier_arrive(name, threads)};
    emu_wait_until(site, has_met, &meeting);
    emu_has_waited_for_name(name);
  }

  int load_early(const int* from) const {
    emu_access(from, sizeof(int), false, site);
    return *from;
  }

  void cluster_arrive() const { emu_cluster_arrive(site); }
  void cluster_arrive_relaxed() const { emu_cluster_arrive(site); }
  void cluster_wait() const { emu_cluster_wait(site); }
  template <int kCount>
  EMU_UNCHECKED void load_of_cluster(float (&result)[kCount], unsigned address) const {
    const void* from =
        emu_cluster_shared(address / kRankStride, address % kRankStride, sizeof(result), site);
    memcpy(result, from, sizeof(result));
  }

  void cp_async16_to(unsigned to, const void* from, bool valid) const {
    emu_copy_async(shared_at(to), from, 16, valid ? 16 : 0, site);
  }

  EMU_UNCHECKED void copy_bytes(unsigned to, const void* from, int bytes, unsigned barrier) const {
    const auto misaligned = reinterpret_cast<uintptr_t>(from) % 16 || to % 16 || bytes % 16;
    if (misaligned)
      emu_fail(site, "a copy of %d bytes to byte %u is not of whole vectors", bytes, to);
    const PlacedBarrier until = own_barrier(barrier);
    emu_copies_from(until.rank, barrier, from, bytes, site);
    emu_copies(until.rank, barrier, to, bytes, site);
    memcpy(shared_at(to), from, bytes);
    until.state->phase_and_bytes -= 2 * bytes;
    until.close_if_complete();
  }

  void copy_box(unsigned to, const TensorMap* map, BoxStart start, unsigned barrier) const {
    const auto own = [](unsigned address, int) { return shared_at(address); };
    copy_box_to(to, map, start, own_barrier(barrier), own);
  }

  void copy_box_to_cluster(
      unsigned to, const TensorMap* map, BoxStart start, unsigned barrier, int blocks) const {
    for (int rank = 0; rank < blocks; ++rank) {
      const auto of_block = [&](unsigned address, int bytes) {
        return static_cast<unsigned char*>(emu_cluster_shared_to_write(rank, address, bytes, site));
      };
      copy_box_to(to, map, start, far_barrier(barrier, rank), of_block);
      emu_copies_to_cluster(rank, barrier);
    }
  }

  // In 8 bytes of the shared memory of block `rank`.
  PlacedBarrier far_barrier(unsigned barrier, unsigned rank) const {
    void* const state = emu_cluster_shared_to_write(rank, barrier, sizeof(Mbarrier), site);
    return {static_cast<Mbarrier*>(state), rank, barrier};
  }
  void mbarrier_arrive_in_cluster(unsigned barrier) const {
    arrive(far_barrier(barrier % kRankStride, barrier / kRankStride), 0);
  }

  template <typename Memory>
  EMU_UNCHECKED void copy_box_to(
      unsigned to,
      const TensorMap* map,
      BoxStart start,
      const PlacedBarrier& barrier,
      const Memory& memory) const {
    if (to % 1024) emu_fail(site, "a box goes to byte %u, expected a multiple of 1024", to);
    int bytes = 0;
    for (uint64_t d = 0; d < map->box[3]; ++d) {
      for (uint64_t c = 0; c < map->box[2]; ++c) {
        for (uint64_t b = 0; b < map->box[1]; ++b, bytes += kRowBytes) {
          const auto first = [&](int dim) { return static_cast<uint64_t>(start.at[dim]); };
          const uint64_t at[] = {first(0), first(1) + b, first(2) + c, first(3) + d};
          uint64_t from = map->address + 2 * at[0], exists = 0;  // bytes of the row
          if (at[0] < map->shape[0]) exists = std::min(2 * (map->shape[0] - at[0]), kRowBytes);
          for (int i = 1; i < 4; ++i) {
            from += at[i] * map->strides_bytes[i - 1];
            if (at[i] >= map->shape[i]) exists = 0;
          }
          const void* const source = reinterpret_cast<const void*>(from);
          if (exists > 0) emu_copies_from(barrier.rank, barrier.offset, source, exists, site);
          unsigned char row[kRowBytes] = {};
          memcpy(row, reinterpret_cast<const void*>(from), exists);
          unsigned char* const in_memory = memory(to + bytes, kRowBytes);
          emu_copies(barrier.rank, barrier.offset, to + bytes, kRowBytes, site);
          for (int v = 0; v < kRowBytes; v += 16)
            memcpy(in_memory + swizzled(to + bytes + v) - (to + bytes), row + v, 16);
        }
      }
    }
    barrier.state->phase_and_bytes -= 2 * bytes;
    barrier.close_if_complete();
  }

  void copy_box_once(unsigned to, const TensorMap* map, BoxStart start, unsigned barrier) const {
    copy_box(to, map, start, barrier);
  }

  // 16 bytes of a swizzled row, or less within them, as they are read.
  EMU_UNCHECKED const unsigned* read(unsigned address, int bytes) const {
    const void* from = shared_at(swizzled(address));
    emu_multiplies(from, bytes, site);
    return static_cast<const unsigned*>(from);
  }

  template <typename T>
  EMU_UNCHECKED void read_row(const Matrix& matrix, int row, float (&values)[16]) const {
    for (int k = 0; k < 16; k += 8) {
      const unsigned* pairs = read(matrix.row(row) + 2 * k, 16);
      for (int i = 0; i < 8; ++i) values[k + i] = element<T>(pairs[i / 2], i % 2);
    }
  }

  // Products are computed as they begin; the lanes of a warp go on together.
  template <int kGroupsLeft, int kCount>
  void wgmma_wait(float (&)[kCount]) const {
    wgmma_wait_for_earlier<kGroupsLeft>();
  }
  template <int kGroupsLeft>
  void wgmma_wait_for_earlier() const {
    emu_await_products(kGroupsLeft);
    sync_warp(site);
  }

  template <typename T, int kCount>
  EMU_UNCHECKED void wgmma_scores(
      T, float (&c)[kCount], unsigned long long a, unsigned long long b, bool adds) const {
    const int lane = emu_lane(), warp = emu_thread_index().x / kWarp % 4;
    float rows[2][16], columns[16];
    for (int half = 0; half < 2; ++half) {
      read_row<T>(Matrix(a), 16 * warp + lane / 4 + 8 * half, rows[half]);
    }
    for (int n = 0; n < kCount / 4; ++n) {
      for (int i = 0; i < 2; ++i) {
        read_row<T>(Matrix(b), 8 * n + lane % 4 * 2 + i, columns);
        for (int half = 0; half < 2; ++half) {
          float sum = 0.0f;
          for (int k = 0; k < 16; ++k) sum += rows[half][k] * columns[k];
          float& to = c[4 * n + 2 * half + i];
          to = adds ? to + sum : sum;
        }
      }
    }
  }

  template <typename T, int kCount>
  EMU_UNCHECKED void wgmma_sums(
      T, float (&c)[kCount], const unsigned* a, unsigned long long b, bool adds) const {
    const int lane = emu_lane();
    QuadIn in;
    QuadOut quad;
    memcpy(in.a, a, sizeof(in.a));
    emu_warp(kAllLanes, site, &in, &quad, share_in_quads, kEmuUnordered);
    float rows[2][16];
    for (int half = 0; half < 2; ++half) {
      for (int k = 0; k < 16; ++k) {
        rows[half][k] = element<T>(quad.a[k % 8 / 2][half + k / 8 * 2], k % 2);
      }
    }
    const Matrix matrix(b);
    for (int n = 0; n < kCount / 4; ++n) {
      const int column = 8 * n + lane % 4 * 2;
      float added[2][2] = {};
      for (int k = 0; k < 16; ++k) {
        const unsigned at = matrix.row(k) + column / 64 * matrix.columns + column % 64 * 2;
        const unsigned pair = *read(at, 4);
        for (int half = 0; half < 2; ++half) {
          for (int i = 0; i < 2; ++i) added[half][i] += rows[half][k] * element<T>(pair, i);
        }
      }
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 2; ++i) {
          float& to = c[4 * n + 2 * half + i];
          to = adds ? to + added[half][i] : added[half][i];
        }
      }
    }
  }
};

}  // namespace emu

inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(static_cast<const unsigned char*>(p) - smem);
}
inline unsigned cluster_address(unsigned address, int rank) {
  return rank * emu::kRankStride + address;
}
inline int add_and_meet(const char* site, int* count, int value) {
  emu_fence();
  const int before = emu_add(site, count, value);
  emu_fence();
  return before;
}
template <typename T>
inline T load_from_others(const T* from) {
  return *from;
}
EMU_UNCHECKED inline void store_hint(int* hint, int value) {
  *static_cast<volatile int*>(hint) = value;
}
inline void work_out_anew(int&) {}
inline void mbarrier_init_done() {}
inline void mbarrier_end(unsigned) {}
inline void fence_shared_memory() { emu_fence_shared_memory(); }
template <int kRegisters>
inline void grow_registers() {}
template <int kRegisters>
inline void shrink_registers() {}
inline void wgmma_begin() {}
inline void wgmma_commit() { emu_close_products(); }
template <int kCount>
inline void keep_order(float (&)[kCount]) {}

#define mbarrier_init emu::PtxSm90{EMU_SITE}.mbarrier_init
#define mbarrier_arrive emu::PtxSm90{EMU_SITE}.mbarrier_arrive
#define mbarrier_arrive_expecting emu::PtxSm90{EMU_SITE}.mbarrier_arrive_expecting
#define mbarrier_wait emu::PtxSm90{EMU_SITE}.mbarrier_wait
#define mbarrier_has_ended emu::PtxSm90{EMU_SITE}.mbarrier_has_ended
#define load_hint emu::PtxSm90{EMU_SITE}.load_hint
#define named_barrier_arrive emu::PtxSm90{EMU_SITE}.named_barrier_arrive
#define named_barrier_wait emu::PtxSm90{EMU_SITE}.named_barrier_wait
#define cp_async16_to emu::PtxSm90{EMU_SITE}.cp_async16_to
#define copy_bytes emu::PtxSm90{EMU_SITE}.copy_bytes
#define load_early emu::PtxSm90{EMU_SITE}.load_early
#define add_and_meet(...) add_and_meet(EMU_SITE, __VA_ARGS__)
#define cluster_arrive emu::PtxSm90{EMU_SITE}.cluster_arrive
#define cluster_arrive_relaxed emu::PtxSm90{EMU_SITE}.cluster_arrive_relaxed
#define cluster_wait emu::PtxSm90{EMU_SITE}.cluster_wait
#define load_of_cluster emu::PtxSm90{EMU_SITE}.load_of_cluster
#define copy_box emu::PtxSm90{EMU_SITE}.copy_box
#define copy_box_to_cluster emu::PtxSm90{EMU_SITE}.copy_box_to_cluster
#define mbarrier_arrive_in_cluster emu::PtxSm90{EMU_SITE}.mbarrier_arrive_in_cluster
#define copy_box_once emu::PtxSm90{EMU_SITE}.copy_box_once
#define wgmma_wait emu::PtxSm90{EMU_SITE}.wgmma_wait
#define wgmma_wait_for_earlier emu::PtxSm90{EMU_SITE}.wgmma_wait_for_earlier
#define wgmma_scores emu::PtxSm90{EMU_SITE}.wgmma_scores
#define wgmma_sums emu::PtxSm90{EMU_SITE}.wgmma_sums
