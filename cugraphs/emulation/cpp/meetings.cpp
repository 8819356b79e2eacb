#include "meetings.h"

#include <string.h>

#include <unordered_map>

#include "checks.h"
#include "order.h"
#include "runtime.h"
#include "scheduler.h"
#include "threads.h"

#define CALLER __builtin_return_address(0)

namespace {

constexpr uint32_t kNothing = 0xffffffffu;

struct Access {
  uint32_t block = 0;  // from 1; 0: there was none
  uint32_t actor = 0, time = 0;
};

struct Place {
  int bytes = 0;
  Access cleared, put;  // last, in this launch; there is a value where put.block is not 0
  uint32_t users = 0;   // of the value, as reads; of a count, its arrivals and waits
};

bool meets;
std::unordered_map<uintptr_t, Place> places;

Access this_access() { return {block_number, own_actor(), own_time()}; }

bool comes_before(const Access& access) {
  return !access.block || ::comes_before(access.actor, access.time);
}

uint32_t value_at(const void* place, int bytes) {
  uint32_t value = kNothing;  // 2 bytes are widened so that nothing stays all ones
  memcpy(&value, place, bytes);
  return value;
}

// The place at an address; it fails where it overlaps one of another size.
Place& place_at(const void* address, int bytes, void* pc) {
  if (!meets) fail(nullptr, pc, "a place is used by a launch that does not meet");
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const uintptr_t other : {at - 2, at, at + 2}) {
    const auto found = places.find(other);
    if (found == places.end() || found->second.bytes == bytes) continue;
    if (other + found->second.bytes <= at || other >= at + bytes) continue;
    fail(
        nullptr, pc,
        "a place of %d bytes is used as one of %d: accesses of different sizes that race",
        found->second.bytes, bytes);
  }
  Place& place = places[at];
  place.bytes = bytes;
  return place;
}

void note_user(Place& place) { place.users = with_read(place.users, {own_actor(), own_time()}); }

void store(void* address, int bytes, uint32_t value, void* pc) {
  if (chosen_order() == Order::kRandom && coin()) emu_yield();
  check_access(reinterpret_cast<uintptr_t>(address), bytes, true, kAtomic, nullptr, pc);
  Place& place = place_at(address, bytes, pc);
  const bool clears = value == kNothing;
  const char* const what = clears ? "cleared" : "put";
  for (const Access* before : {&place.cleared, &place.put}) {
    if (comes_before(*before)) continue;
    fail(
        nullptr, pc, "%s here, %s by block %u in the same launch, and nothing orders that before",
        what, before == &place.put ? "put" : "cleared", before->block - 1);
  }
  if (const Read* user = unordered_read(place.users)) {
    fail(
        nullptr, pc,
        "%s here, where block %u has found a value, and nothing orders that before: it could find "
        "this one",
        what, rank_of(user->actor));
  }
  if (!clears && value_at(address, bytes) != kNothing) {
    fail(nullptr, pc, "put here, where a value was not cleared since its last use");
  }
  memcpy(address, &value, bytes);
  place.users = 0;
  if (clears) {
    place.cleared = this_access();
    place.put = {};
  } else {
    place.put = this_access();
  }
}

void fail_uncleared(const Place& place, const char* what, void* pc) {
  if (comes_before(place.cleared)) return;
  fail(
      nullptr, pc,
      "%s here, cleared by block %u in the same launch, and nothing orders that before: it may "
      "find "
      "what was there earlier",
      what, place.cleared.block - 1);
}

struct Awaited {
  const char* from;
  int bytes, count;
};

bool are_there(const void* awaited) {
  const auto& known = *static_cast<const Awaited*>(awaited);
  for (int i = 0; i < known.count; ++i) {
    if (value_at(known.from + i * known.bytes, known.bytes) == kNothing) return false;
  }
  return true;
}

struct Count {
  const int* at;
  int arrivals;
};

bool have_arrived(const void* awaited) {
  const auto& known = *static_cast<const Count*>(awaited);
  return *known.at + 1 >= known.arrivals;
}

// A count that the launch has cleared, or that nobody had used before it.
Place& count_at(const int* count, const char* what, void* pc) {
  const bool is_new = !places.count(reinterpret_cast<uintptr_t>(count));
  Place& place = place_at(count, sizeof(*count), pc);
  if (is_new && *count != -1) {
    fail(nullptr, pc, "%s at a count that was not cleared since its last use", what);
  }
  fail_uncleared(place, what, pc);
  return place;
}

}  // namespace

void begin_meetings(bool does_meet) {
  meets = does_meet;
  places.clear();
}

bool launch_meets() { return meets; }

extern "C" {

void emu_put(void* place, int bytes, unsigned value) {
  if (bytes == 2) value |= 0xffff0000u;
  if (value == kNothing) {
    fail(nullptr, CALLER, "a value of all ones is put, which says that there is none");
  }
  store(place, bytes, value, CALLER);
}

void emu_clear(void* place, int bytes) { store(place, bytes, kNothing, CALLER); }

void emu_check_aligned(const void* places, int bytes) {
  if (reinterpret_cast<uintptr_t>(places) % bytes == 0) return;
  fail(nullptr, CALLER, "misaligned store of %d bytes of places", bytes);
}

void emu_look(void* found, const void* from, int bytes, int count, const char* waits_at) {
  const auto address = reinterpret_cast<uintptr_t>(from);
  if (address % (bytes * count)) {
    fail(nullptr, CALLER, "misaligned look at %d values of %d bytes", count, bytes);
  }
  check_access(address, bytes * count, false, kAtomic, nullptr, CALLER);
  const Awaited awaited{static_cast<const char*>(from), bytes, count};
  if (waits_at) emu_wait_until(waits_at, are_there, &awaited);
  // What nothing orders before may or may not have come yet.
  const bool may_find =
      waits_at || chosen_order() == Order::kReverse || (chosen_order() == Order::kRandom && coin());
  for (int i = 0; i < count; ++i) {
    const char* const at = awaited.from + i * bytes;
    Place& place = place_at(at, bytes, CALLER);
    uint32_t value = value_at(at, bytes);
    fail_uncleared(place, "looked at", CALLER);
    if (value != kNothing && !place.put.block) {
      fail(
          nullptr, CALLER,
          "looked at here, where a value of an earlier launch was not cleared since its last use");
    }
    if (value != kNothing && !may_find && !comes_before(place.put)) value = kNothing;
    if (value != kNothing) note_user(place);
    memcpy(static_cast<char*>(found) + i * bytes, &value, bytes);
  }
}

void emu_arrive(int* count, int releases) {
  if (chosen_order() == Order::kRandom && coin()) emu_yield();
  check_access(reinterpret_cast<uintptr_t>(count), sizeof(*count), true, kAtomic, nullptr, CALLER);
  note_user(count_at(count, "an arrival", CALLER));
  ++*count;
  if (!releases) return;
  release(barrier_of_count(count));
  end_phase(barrier_of_count(count));
}

void emu_wait_for_arrivals(const char* site, const int* count, int arrivals, int acquires) {
  const auto address = reinterpret_cast<uintptr_t>(count);
  check_access(address, sizeof(*count), false, kAtomic, nullptr, CALLER);
  count_at(count, "a wait", CALLER);
  const Count awaited{count, arrivals};
  emu_wait_until(site, have_arrived, &awaited);
  note_user(places[address]);
  if (acquires) acquire(barrier_of_count(count));
}
}
