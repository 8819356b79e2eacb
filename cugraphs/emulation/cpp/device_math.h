// Device functions that kernels call and the C++ library does not have, and atomics. Part of cuda_on_cpu.h.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#include "runtime.h"

namespace emu {

template <typename To, typename From>
inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "the sizes differ");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// Threads are not preempted, so a plain read, change and write is atomic.
template <typename T, typename Change>
EMU_UNCHECKED inline T change(const char* site, T* address, Change changed) {
  emu_atomic(address, sizeof(T), site);
  const T old = *address;
  *address = changed(old);
  return old;
}

}  // namespace emu

#define EMU_ATOMIC(name, expression)                                               \
  template <typename T>                                                            \
  inline T emu_##name(const char* site, T* address, std::common_type_t<T> value) { \
    return emu::change(site, address, [=](T old) -> T { return expression; });     \
  }
EMU_ATOMIC(add, old + value)
EMU_ATOMIC(max, old < value ? value : old)
EMU_ATOMIC(min, value < old ? value : old)
EMU_ATOMIC(exch, value)
#undef EMU_ATOMIC
#define atomicAdd(...) emu_add(EMU_SITE, __VA_ARGS__)
#define atomicMax(...) emu_max(EMU_SITE, __VA_ARGS__)
#define atomicMin(...) emu_min(EMU_SITE, __VA_ARGS__)
#define atomicExch(...) emu_exch(EMU_SITE, __VA_ARGS__)

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }

inline int __float_as_int(float x) { return emu::same_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return emu::same_bits<unsigned>(x); }
inline float __int_as_float(int x) { return emu::same_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emu::same_bits<float>(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned byte = static_cast<unsigned>(bytes >> (8 * (selector >> 4 * i & 7))) & 255;
    const bool sign = selector >> (4 * i + 3) & 1;  // replicate the byte's sign bit
    result |= (sign ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
  }
  return result;
}

template <typename T>
inline T __ldcg(const T* address) {
  return *address;
}

template <typename A, typename B>
inline std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <typename A, typename B>
inline std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}
