// How blocks that all run at once hand values to each other through global memory, and count themselves.
// For launches that say so (Launch.meets), on sm_90a.
//
// A value has a *place*, a mailbox: 2 or 4 bytes, all ones as long as nothing was put there. Who needs the value
// looks until it is there. Nothing else is inferred from it, so neither side orders anything (PTX ISA 8.7,
// memory consistency model: relaxed accesses of one size to one place are ordered by coherence alone). A
// place is used again once it was cleared; that the clear comes after all who read it, and before those who
// look for the next value, is what an arrival that releases and a wait that acquires are for, of all
// blocks: a grid barrier.
//
// A *count* is a place of 4 bytes too: it counts up from all ones. A wait that does not acquire is a hint
// that it is time to look.
//
// Waits are bounded: where a value never comes, the launch fails and does not hang.
#pragma once
#include "ptx_sm90.cuh"

// Values as words of 32 bits, each one or two of them.
template <int kCount>
struct alignas(4 * kCount) PlaceWords {
  unsigned v[kCount];
};

template <typename T, int kValues>
using Looked = PlaceWords<kValues * sizeof(T) / 4>;

// Four values of 2 or 4 bytes are 2 or 4 words.
template <typename T>
__device__ __forceinline__ PlaceWords<sizeof(T)> four_values(const T (&values)[4]) {
  PlaceWords<sizeof(T)> words;
  memcpy(&words, values, sizeof(words));
  return words;
}

// Whether some value is not there yet.
template <typename T, int kCount>
__device__ __forceinline__ bool lacks_some(const PlaceWords<kCount>& words) {
  unsigned found = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const unsigned missing = ~words.v[i];  // 0 in the bits of a value that is not there
    found |= sizeof(T) == 4 ? (missing == 0) : ((missing - 0x00010001u) & ~missing & 0x80008000u);
  }
  return found != 0;
}

#ifdef CPU_EMU
#include "meeting_on_cpu.h"
#else
constexpr int kMostLooks = 1 << 24;  // some ten seconds

template <int kBytes>
struct PlaceBits;
template <>
struct PlaceBits<2> {
  using Type = unsigned short;
  static constexpr Type kNothing = 0xffff;
};
template <>
struct PlaceBits<4> {
  using Type = unsigned;
  static constexpr Type kNothing = 0xffffffffu;
};

__device__ __forceinline__ void store_place(void* place, unsigned short bits) {
  asm volatile("st.relaxed.gpu.global.b16 [%0], %1;" : : "l"(place), "h"(bits) : "memory");
}
__device__ __forceinline__ void store_place(void* place, unsigned bits) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" : : "l"(place), "r"(bits) : "memory");
}

// A value, whose bits are not all ones, and which is there for whoever looks until it is.
template <typename T>
__device__ __forceinline__ void put(T* place, T value) {
  store_place(place, *reinterpret_cast<const typename PlaceBits<sizeof(T)>::Type*>(&value));
}
template <typename T>
__device__ __forceinline__ void clear(T* place) {
  store_place(place, PlaceBits<sizeof(T)>::kNothing);
}
__device__ __forceinline__ void clear_count(int* count) { clear(count); }

// Four adjacent values, aligned to all of them, in one store; a vector is stored as its values too.
template <int kBytes>
__device__ __forceinline__ void store_places(void* places, const PlaceWords<kBytes>& bits) {
  if constexpr (kBytes == 4) {
    asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(places), "r"(bits.v[0]), "r"(bits.v[1]), "r"(bits.v[2]), "r"(bits.v[3])
                 : "memory");
  } else {
    asm volatile(
        "{\n.reg .b16 a, b, c, d;\n"
        "mov.b32 {a, b}, %1;\nmov.b32 {c, d}, %2;\n"
        "st.relaxed.gpu.global.v4.b16 [%0], {a, b, c, d};\n}\n"
        :
        : "l"(places), "r"(bits.v[0]), "r"(bits.v[1])
        : "memory");
  }
}
template <typename T>
__device__ __forceinline__ void put_four(T* places, const T (&values)[4]) {
  store_places<sizeof(T)>(places, four_values(values));
}
template <typename T>
__device__ __forceinline__ void clear_four(T* places) {
  PlaceWords<sizeof(T)> nothing;
#pragma unroll
  for (int i = 0; i < sizeof(T); ++i) nothing.v[i] = 0xffffffffu;
  store_places<sizeof(T)>(places, nothing);
}

// A vector is loaded as its values: a load of another size than what was stored has no meaning.
template <int kBytes>
__device__ __forceinline__ void load_places(PlaceWords<1>& to, const void* from) {
  if constexpr (kBytes == 4) {
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(to.v[0]) : "l"(from) : "memory");
  } else {
    asm volatile(
        "{\n.reg .b16 a, b;\n"
        "ld.relaxed.gpu.global.v2.b16 {a, b}, [%1];\n"
        "mov.b32 %0, {a, b};\n}\n"
        : "=r"(to.v[0])
        : "l"(from)
        : "memory");
  }
}
template <int kBytes>
__device__ __forceinline__ void load_places(PlaceWords<2>& to, const void* from) {
  if constexpr (kBytes == 4) {
    asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];"
                 : "=r"(to.v[0]), "=r"(to.v[1])
                 : "l"(from)
                 : "memory");
  } else {
    asm volatile(
        "{\n.reg .b16 a, b, c, d;\n"
        "ld.relaxed.gpu.global.v4.b16 {a, b, c, d}, [%2];\n"
        "mov.b32 %0, {a, b};\nmov.b32 %1, {c, d};\n}\n"
        : "=r"(to.v[0]), "=r"(to.v[1])
        : "l"(from)
        : "memory");
  }
}
template <int kBytes>
__device__ __forceinline__ void load_places(PlaceWords<4>& to, const void* from) {
  if constexpr (kBytes == 4) {
    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.v[0]), "=r"(to.v[1]), "=r"(to.v[2]), "=r"(to.v[3])
                 : "l"(from)
                 : "memory");
  } else {
    PlaceWords<2> halves[2];
    load_places<2>(halves[0], from);
    load_places<2>(halves[1], static_cast<const char*>(from) + 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) to.v[i] = halves[i / 2].v[i % 2];
  }
}

// What is there now of 1 to 4 values of 4 bytes, or 2, 4 or 8 of 2 bytes, aligned to as many (8 to 4 of
// them). To be followed by look_until_there; what lies between is done while they come.
template <int kValues, typename T>
__device__ __forceinline__ Looked<T, kValues> look(const T* from) {
  Looked<T, kValues> found;
  load_places<sizeof(T)>(found, from);
  return found;
}

// Looks again until all of them are there.
template <typename T, int kCount>
__device__ __forceinline__ void look_until_there(PlaceWords<kCount>& found, const T* from) {
  for (int looks = 0; lacks_some<T>(found); ++looks) {
    if (looks == kMostLooks) __trap();
    load_places<sizeof(T)>(found, from);
  }
}

// One more has arrived: a thread of a block, after a barrier of the block.
__device__ __forceinline__ void arrive(int* count) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" : : "l"(count) : "memory");
}
// The same; what the block did before is seen by those who wait for this count and acquire.
__device__ __forceinline__ void arrive_releasing(int* count) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" : : "l"(count) : "memory");
}

// Waits until so many have arrived.
__device__ __forceinline__ void wait_for_arrivals(const int* count, int arrivals) {
  unsigned found;
  int looks = 0;
  do {
    if (looks++ == kMostLooks) __trap();
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(count) : "memory");
  } while (static_cast<int>(found + 1) < arrivals);
}
// The same by one thread, for whose block, after a barrier, all is visible that was before arrivals that
// release.
__device__ __forceinline__ void wait_for_arrivals_acquiring(const int* count, int arrivals) {
  unsigned found;
  int looks = 0;
  do {
    if (looks++ == kMostLooks) __trap();
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(count) : "memory");
  } while (static_cast<int>(found + 1) < arrivals);
}
#endif
