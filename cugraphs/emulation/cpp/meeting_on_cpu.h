// What kernels/meeting.cuh offers, on the CPU: the runtime (meetings.cpp) knows what orders what, and tells
// where a place is used again in disorder. Part of meeting.cuh.
#pragma once
#include <string.h>

#include "runtime.h"

namespace emu {

template <typename T>
EMU_UNCHECKED __forceinline__ unsigned bits_of(T value) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4, "a place has 2 or 4 bytes");
  unsigned bits = 0;
  memcpy(&bits, static_cast<const void*>(&value), sizeof(T));
  return bits;
}

// A vector of up to 16 bytes, of values of 2 bytes up to 8.
template <typename T, int kCount>
EMU_UNCHECKED __forceinline__ void load_places(
    PlaceWords<kCount>& to, const T* from, const char* waits_at) {
  constexpr int kLargest = sizeof(T) == 2 && kCount == 4 ? 8 : 4 * kCount;
  for (int done = 0; done < 4 * kCount; done += kLargest) {
    emu_look(
        reinterpret_cast<char*>(to.v) + done, reinterpret_cast<const char*>(from) + done, sizeof(T),
        kLargest / sizeof(T), waits_at);
  }
}

template <typename T, int kCount>
__forceinline__ void look_until_there(const char* site, PlaceWords<kCount>& found, const T* from) {
  if (lacks_some<T>(found)) load_places(found, from, site);
}

}  // namespace emu

template <typename T>
__forceinline__ void put(T* place, T value) {
  emu_put(place, sizeof(T), emu::bits_of(value));
}
template <typename T>
__forceinline__ void clear(T* place) {
  emu_clear(place, sizeof(T));
}
template <typename T>
__forceinline__ void put_four(T* places, const T (&values)[4]) {
  emu_check_aligned(places, 4 * sizeof(T));
  for (int i = 0; i < 4; ++i) emu_put(places + i, sizeof(T), emu::bits_of(values[i]));
}
template <typename T>
__forceinline__ void clear_four(T* places) {
  emu_check_aligned(places, 4 * sizeof(T));
  for (int i = 0; i < 4; ++i) emu_clear(places + i, sizeof(T));
}
__forceinline__ void clear_count(int* count) { emu_clear(count, sizeof(*count)); }

template <int kValues, typename T>
__forceinline__ Looked<T, kValues> look(const T* from) {
  Looked<T, kValues> found;
  emu::load_places(found, from, nullptr);
  return found;
}

__forceinline__ void arrive(int* count) { emu_arrive(count, 0); }
__forceinline__ void arrive_releasing(int* count) { emu_arrive(count, 1); }

#define look_until_there(...) emu::look_until_there(EMU_SITE, __VA_ARGS__)
#define wait_for_arrivals(count, arrivals) emu_wait_for_arrivals(EMU_SITE, count, arrivals, 0)
#define wait_for_arrivals_acquiring(count, arrivals) \
  emu_wait_for_arrivals(EMU_SITE, count, arrivals, 1)
