// What kernels/ptx.cuh offers, on the CPU: the same operations through the runtime.
#pragma once
#include <stdint.h>
#include <string.h>

#include "cuda_on_cpu.h"

namespace emu {

constexpr unsigned kAllLanes = 0xffffffffu;

// Lane l receives row l/4, columns 2*(l%4) and the next, of each 8x8 matrix; transposed, the same
// of its transpose. Lane 8*m + r gave the address of row r of matrix m.
template <int kMatrices, bool kTransposed>
EMU_UNCHECKED void load_matrices(unsigned, const void* const* in, void* const* out) {
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int m = 0; m < kMatrices; ++m) {
      uint16_t pair[2];
      for (int i = 0; i < 2; ++i) {
        const int row = kTransposed ? 2 * (lane % 4) + i : lane / 4;
        const int column = kTransposed ? lane / 4 : 2 * (lane % 4) + i;
        pair[i] = (*static_cast<const uint16_t* const*>(in[8 * m + row]))[column];
      }
      memcpy(static_cast<unsigned*>(out[lane]) + m, pair, sizeof(pair));
    }
  }
}

struct Fragments {
  unsigned a[4], b[2];
  float c[4];
};

template <typename T>
EMU_UNCHECKED inline float element(unsigned pair, int which) {
  T value;
  const auto bits = static_cast<uint16_t>(pair >> 16 * which);
  memcpy(static_cast<void*>(&value), &bits, sizeof(bits));
  return static_cast<float>(value);
}

// The fragment layouts are those of PTX ISA, "Matrix Fragments for mma.m16n8k16".
template <typename T>
EMU_UNCHECKED void multiply(unsigned, const void* const* in, void* const* out) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& own = *static_cast<const Fragments*>(in[lane]);
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int i = 0; i < 8; ++i) {
      a[group + 8 * (i / 2 % 2)][pair + i % 2 + 8 * (i / 4)] = element<T>(own.a[i / 2], i % 2);
    }
    for (int i = 0; i < 4; ++i)
      b[pair + i % 2 + 8 * (i / 2)][group] = element<T>(own.b[i / 2], i % 2);
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& own = *static_cast<const Fragments*>(in[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
      float sum = 0.0f;
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      static_cast<float*>(out[lane])[i] = own.c[i] + sum;
    }
  }
}

// The operations at one place of the kernel's text.
struct Ptx {
  const char* site;

  void cp_async16(void* to, const void* from, bool valid = true) const {
    emu_copy_async(to, from, 16, valid ? 16 : 0, site);
  }
  void cp_async_commit() const { emu_copy_commit(); }
  template <int kGroupsLeft>
  void cp_async_wait() const {
    emu_copy_wait(kGroupsLeft);
  }

  void load_once(unsigned (&result)[4], const void* from) const {
    if (reinterpret_cast<uintptr_t>(from) % 16) emu_fail(site, "misaligned load of 16 bytes");
    emu_access(from, 16, false, site);
    memcpy(result, from, 16);
  }
  void load_shared(unsigned (&result)[4], const void* from) const {
    if (reinterpret_cast<uintptr_t>(from) % 16) emu_fail(site, "misaligned load of 16 bytes");
    emu_access(from, 16, false, site);
    memcpy(result, from, 16);
  }

  template <int kMatrices, bool kTransposed>
  void ldmatrix(unsigned* result, const void* row) const {
    if (emu_lane() < 8 * kMatrices) {  // the addresses of the other lanes are not used
      if (reinterpret_cast<uintptr_t>(row) % 16) emu_fail(site, "misaligned row of ldmatrix");
      emu_access(row, 16, false, site);
    }
    emu_warp(kAllLanes, site, &row, result, load_matrices<kMatrices, kTransposed>, kEmuUnordered);
  }
  void ldmatrix_x2(unsigned (&result)[2], const void* row) const {
    ldmatrix<2, false>(result, row);
  }
  void ldmatrix_x4(unsigned (&result)[4], const void* row) const {
    ldmatrix<4, false>(result, row);
  }
  void ldmatrix_x2_trans(unsigned (&result)[2], const void* row) const {
    ldmatrix<2, true>(result, row);
  }
  void ldmatrix_x4_trans(unsigned (&result)[4], const void* row) const {
    ldmatrix<4, true>(result, row);
  }

  template <typename T>
  void mma_m16n8k16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) const {
    Fragments in;
    memcpy(in.a, a, sizeof(a));
    memcpy(in.b, b, sizeof(b));
    memcpy(in.c, c, sizeof(c));
    emu_warp(kAllLanes, site, &in, c, multiply<T>, kEmuUnordered);
  }

  float exp2_approx(float x) const { return x < -126.0f ? 0.0f : exp2f(x); }

  void wait_for_previous_kernel() const { emu_wait_for_previous_kernel(); }
  void let_next_kernel_start() const { emu_let_next_kernel_start(site); }
  void start_next_kernel() const { emu_let_next_kernel_start(site); }
};

}  // namespace emu

#define cp_async16 emu::Ptx{EMU_SITE}.cp_async16
#define cp_async_commit emu::Ptx{EMU_SITE}.cp_async_commit
#define cp_async_wait emu::Ptx{EMU_SITE}.cp_async_wait
#define load_once emu::Ptx{EMU_SITE}.load_once
#define load_shared emu::Ptx{EMU_SITE}.load_shared
#define ldmatrix_x2 emu::Ptx{EMU_SITE}.ldmatrix_x2
#define ldmatrix_x4 emu::Ptx{EMU_SITE}.ldmatrix_x4
#define ldmatrix_x2_trans emu::Ptx{EMU_SITE}.ldmatrix_x2_trans
#define ldmatrix_x4_trans emu::Ptx{EMU_SITE}.ldmatrix_x4_trans
#define mma_m16n8k16 emu::Ptx{EMU_SITE}.mma_m16n8k16
#define exp2_approx emu::Ptx{EMU_SITE}.exp2_approx
#define wait_for_previous_kernel emu::Ptx{EMU_SITE}.wait_for_previous_kernel
#define start_next_kernel emu::Ptx{EMU_SITE}.start_next_kernel
#define let_next_kernel_start emu::Ptx{EMU_SITE}.let_next_kernel_start
