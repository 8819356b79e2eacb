// Warp shuffles, votes, matches and reductions, and __syncwarp. Part of cuda_on_cpu.h.
#pragma once
#include <string.h>

#include <type_traits>

#include "runtime.h"

namespace emu {

constexpr int kWarp = 32;

template <typename T>
struct Shuffled {
  T value;
  int source;
  int width;
};

enum class Shuffle { kIndex, kUp, kDown, kXor };

// The lane that `lane` reads from, itself where the shuffle leaves its segment.
EMU_UNCHECKED inline int source_lane(Shuffle shuffle, int lane, int source, int width) {
  const int first = lane & ~(width - 1), end = first + width;
  int from = lane;
  switch (shuffle) {
    case Shuffle::kIndex:
      return first + (source & (width - 1));
    case Shuffle::kUp:
      from = lane - source;
      break;
    case Shuffle::kDown:
      from = lane + source;
      break;
    case Shuffle::kXor:
      from = lane ^ source;
      break;
  }
  // A xor may reach a lower segment, as on the device.
  if (from >= end || (from < first && shuffle != Shuffle::kXor)) return lane;
  return from;
}

template <typename T, Shuffle kShuffle>
EMU_UNCHECKED void shuffle_lanes(unsigned lanes, const void* const* in, void* const* out) {
  for (int lane = 0; lane < kWarp; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    const auto* own = static_cast<const Shuffled<T>*>(in[lane]);
    const int from = source_lane(kShuffle, lane, own->source, own->width);
    if (from >= 0 && from < kWarp && (lanes >> from & 1)) {
      memcpy(out[lane], &static_cast<const Shuffled<T>*>(in[from])->value, sizeof(T));
    } else {
      memset(out[lane], 0xff, sizeof(T));  // an absent lane's value is undefined: here, a NaN
    }
  }
}

template <Shuffle kShuffle, typename T>
inline T shuffle(const char* site, unsigned mask, T value, int source, int width = kWarp) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "2, 4 or 8 bytes");
  if (width < 1 || width > kWarp || (width & (width - 1))) {
    emu_fail(site, "the width of a shuffle is %d, expected a power of two up to 32", width);
  }
  const Shuffled<T> in{value, source, width};
  alignas(T) unsigned char out[sizeof(T)];
  emu_warp(mask, site, &in, out, shuffle_lanes<T, kShuffle>, kEmuUnordered);
  T result;
  memcpy(static_cast<void*>(&result), out, sizeof(T));
  return result;
}

struct Ballot {
  unsigned set;
  unsigned lanes;
};

EMU_UNCHECKED inline void vote_lanes(unsigned lanes, const void* const* in, void* const* out) {
  unsigned set = 0;
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((lanes >> lane & 1) && *static_cast<const bool*>(in[lane])) set |= 1u << lane;
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    if (lanes >> lane & 1) *static_cast<Ballot*>(out[lane]) = {set, lanes};
  }
}

inline Ballot vote(const char* site, unsigned mask, bool predicate) {
  Ballot result;
  emu_warp(mask, site, &predicate, &result, vote_lanes, kEmuUnordered);
  return result;
}

inline bool all(const char* site, unsigned mask, bool predicate) {
  const Ballot ballot = vote(site, mask, predicate);
  return ballot.set == ballot.lanes;
}

template <typename T>
EMU_UNCHECKED void match_lanes(unsigned lanes, const void* const* in, void* const* out) {
  for (int lane = 0; lane < kWarp; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    unsigned same = 0;
    for (int other = 0; other < kWarp; ++other) {
      if ((lanes >> other & 1) && !memcmp(in[lane], in[other], sizeof(T))) same |= 1u << other;
    }
    *static_cast<unsigned*>(out[lane]) = same;
  }
}

template <typename T>
inline unsigned match_any(const char* site, unsigned mask, T value) {
  unsigned result;
  emu_warp(mask, site, &value, &result, match_lanes<T>, kEmuUnordered);
  return result;
}

struct Sum {
  template <typename T>
  static T of(T a, T b) {
    return a + b;
  }
};
struct Least {
  template <typename T>
  static T of(T a, T b) {
    return b < a ? b : a;
  }
};
struct Greatest {
  template <typename T>
  static T of(T a, T b) {
    return a < b ? b : a;
  }
};

template <typename Operation, typename T>
EMU_UNCHECKED void reduce_lanes(unsigned lanes, const void* const* in, void* const* out) {
  T total{};
  bool first = true;
  for (int lane = 0; lane < kWarp; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    const T value = *static_cast<const T*>(in[lane]);
    total = first ? value : Operation::of(total, value);
    first = false;
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    if (lanes >> lane & 1) *static_cast<T*>(out[lane]) = total;
  }
}

template <typename Operation, typename T>
inline T reduce(const char* site, unsigned mask, T value) {
  static_assert(std::is_integral<T>::value, "__reduce_*_sync takes 32-bit integers");
  T result;
  emu_warp(mask, site, &value, &result, reduce_lanes<Operation, T>, kEmuUnordered);
  return result;
}

EMU_UNCHECKED inline void no_operation(unsigned, const void* const*, void* const*) {}

inline void sync_warp(const char* site, unsigned mask = 0xffffffffu) {
  emu_warp(mask, site, nullptr, nullptr, no_operation, kEmuOrdersMemory);
}

}  // namespace emu

#define __shfl_sync(...) emu::shuffle<emu::Shuffle::kIndex>(EMU_SITE, __VA_ARGS__)
#define __shfl_up_sync(...) emu::shuffle<emu::Shuffle::kUp>(EMU_SITE, __VA_ARGS__)
#define __shfl_down_sync(...) emu::shuffle<emu::Shuffle::kDown>(EMU_SITE, __VA_ARGS__)
#define __shfl_xor_sync(...) emu::shuffle<emu::Shuffle::kXor>(EMU_SITE, __VA_ARGS__)
#define __syncwarp(...) emu::sync_warp(EMU_SITE __VA_OPT__(, ) __VA_ARGS__)
#define __ballot_sync(mask, predicate) (emu::vote(EMU_SITE, mask, (predicate) != 0).set)
#define __any_sync(mask, predicate) (emu::vote(EMU_SITE, mask, (predicate) != 0).set != 0)
#define __all_sync(mask, predicate) emu::all(EMU_SITE, mask, (predicate) != 0)
#define __match_any_sync(mask, value) emu::match_any(EMU_SITE, mask, value)
#define __reduce_add_sync(mask, value) emu::reduce<emu::Sum>(EMU_SITE, mask, value)
#define __reduce_min_sync(mask, value) emu::reduce<emu::Least>(EMU_SITE, mask, value)
#define __reduce_max_sync(mask, value) emu::reduce<emu::Greatest>(EMU_SITE, mask, value)
