// Device functions that the C++ library does not have, and atomics. Part of cuda_on_cpu.h.
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

#define EMU_ATOMIC(name, parameters, expression)                               \
  template <typename T>                                                        \
  inline T emu_##name parameters {                                             \
    return emu::change(site, address, [=](T old) -> T { return expression; }); \
  }
#define EMU_OPERAND (const char* site, T* address, std::common_type_t<T> value)
EMU_ATOMIC(add, EMU_OPERAND, old + value)
EMU_ATOMIC(sub, EMU_OPERAND, old - value)
EMU_ATOMIC(max, EMU_OPERAND, old < value ? value : old)
EMU_ATOMIC(min, EMU_OPERAND, value < old ? value : old)
EMU_ATOMIC(exch, EMU_OPERAND, value)
EMU_ATOMIC(and, EMU_OPERAND, old& value)
EMU_ATOMIC(or, EMU_OPERAND, old | value)
EMU_ATOMIC(xor, EMU_OPERAND, old ^ value)
EMU_ATOMIC(inc, EMU_OPERAND, old >= value ? T(0) : T(old + 1))
EMU_ATOMIC(dec, EMU_OPERAND, old == 0 || old > value ? value : T(old - 1))
EMU_ATOMIC(
    cas,
    (const char* site, T* address, std::common_type_t<T> expected, std::common_type_t<T> value),
    old == expected ? value : old)
#undef EMU_OPERAND
#undef EMU_ATOMIC
#define atomicAdd(...) emu_add(EMU_SITE, __VA_ARGS__)
#define atomicSub(...) emu_sub(EMU_SITE, __VA_ARGS__)
#define atomicMax(...) emu_max(EMU_SITE, __VA_ARGS__)
#define atomicMin(...) emu_min(EMU_SITE, __VA_ARGS__)
#define atomicExch(...) emu_exch(EMU_SITE, __VA_ARGS__)
#define atomicAnd(...) emu_and(EMU_SITE, __VA_ARGS__)
#define atomicOr(...) emu_or(EMU_SITE, __VA_ARGS__)
#define atomicXor(...) emu_xor(EMU_SITE, __VA_ARGS__)
#define atomicInc(...) emu_inc(EMU_SITE, __VA_ARGS__)
#define atomicDec(...) emu_dec(EMU_SITE, __VA_ARGS__)
#define atomicCAS(...) emu_cas(EMU_SITE, __VA_ARGS__)

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }

inline int __float2int_rn(float x) { return static_cast<int>(lrintf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rd(float x) { return static_cast<int>(floorf(x)); }
inline int __float2int_ru(float x) { return static_cast<int>(ceilf(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline int __float_as_int(float x) { return emu::same_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return emu::same_bits<unsigned>(x); }
inline float __int_as_float(int x) { return emu::same_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emu::same_bits<float>(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) {
  return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1) << (31 - bit);
  return reversed;
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
inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 4; ++i)
    sum += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return sum;
}

template <typename T>
inline T __ldg(const T* address) {
  return *address;
}
template <typename T>
inline T __ldcs(const T* address) {
  return *address;
}
template <typename T>
inline T __ldcg(const T* address) {
  return *address;
}
template <typename T>
inline T __ldca(const T* address) {
  return *address;
}
template <typename T>
inline void __stcs(T* address, T value) {
  *address = value;
}
template <typename T>
inline void __stcg(T* address, T value) {
  *address = value;
}

template <typename A, typename B>
inline std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <typename A, typename B>
inline std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}

// NVIDIA's headers have no host version of these: in float, rounded once.
#define EMU_HALF_FUNCTION(name, expression)    \
  inline __half name(__half h) {               \
    const float x = __half2float(h);           \
    return __float2half_rn(expression);        \
  }                                            \
  inline __nv_bfloat16 name(__nv_bfloat16 h) { \
    const float x = __bfloat162float(h);       \
    return __float2bfloat16_rn(expression);    \
  }
EMU_HALF_FUNCTION(hexp, expf(x))
EMU_HALF_FUNCTION(hexp2, exp2f(x))
EMU_HALF_FUNCTION(hlog, logf(x))
EMU_HALF_FUNCTION(hsqrt, sqrtf(x))
EMU_HALF_FUNCTION(hrsqrt, 1.0f / sqrtf(x))
EMU_HALF_FUNCTION(hrcp, 1.0f / x)
#undef EMU_HALF_FUNCTION
inline __half __hfma(__half a, __half b, __half c) {
  return __float2half_rn(fmaf(__half2float(a), __half2float(b), __half2float(c)));
}
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __float2bfloat16_rn(fmaf(__bfloat162float(a), __bfloat162float(b), __bfloat162float(c)));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return __half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return __nv_bfloat162(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
