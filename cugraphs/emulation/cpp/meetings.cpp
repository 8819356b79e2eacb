#include "meetings.h"

#include <string.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checks.h"
#include "runtime.h"
#include "scheduler.h"
#include "threads.h"

#define CALLER __builtin_return_address(0)

namespace {

constexpr uint32_t kNothing = 0xffffffffu;
constexpr int kSeveralThreads = -1;

struct Access {
  uint32_t block = 0;  // from 1; 0: there was none
  int thread = 0;
  uint32_t time = 0;
};

// Accesses of a block before its time here come before whoever has the clock, and those of single threads
// up to theirs.
struct Clock {
  std::vector<uint32_t> blocks;
  std::map<std::pair<uint32_t, int>, uint32_t> threads;

  void join(const Clock& other) {
    if (blocks.size() < other.blocks.size()) blocks.resize(other.blocks.size());
    for (size_t i = 0; i < other.blocks.size(); ++i) {
      blocks[i] = std::max(blocks[i], other.blocks[i]);
    }
    for (const auto& [thread, time] : other.threads) {
      threads[thread] = std::max(threads[thread], time);
    }
  }
  bool covers(const Access& access) const {
    if (access.block < blocks.size() && access.time < blocks[access.block]) return true;
    const auto found = threads.find({access.block, access.thread});
    return found != threads.end() && access.time <= found->second;
  }
};

struct BlockClock {
  uint32_t time = 1;
  Clock known;                     // to all its threads
  std::map<int, Clock> of_thread;  // that one has acquired since the last barrier
};

struct Place {
  int bytes = 0;
  Access cleared, put;  // last, in this launch; there is a value where put.block is not 0
  std::vector<Access>
      users;  // of the value, one for each block; of a count, its arrivals and waits
};

bool meets;
std::vector<BlockClock> clocks;  // by block, from 1
std::unordered_map<uintptr_t, Place> places;
std::unordered_map<uintptr_t, Clock> released;  // by count

BlockClock& own_clock() { return clocks[block_number]; }

Access this_access() { return {block_number, running->number, block_time()}; }

bool comes_before(const Access& access) {
  return !access.block || ::comes_before(access.block, access.thread, access.time);
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

void note_user(Place& place, const Access& access) {
  for (Access& user : place.users) {
    if (user.block != access.block) continue;
    if (user.time == access.time && user.thread != access.thread) user.thread = kSeveralThreads;
    if (user.time < access.time) user = access;
    return;
  }
  place.users.push_back(access);
}

void store(void* address, int bytes, uint32_t value, void* pc) {
  if (chosen_order() == Order::kRandom && coin()) emu_yield();
  check_access(reinterpret_cast<uintptr_t>(address), bytes, true, kAtomic, nullptr, pc);
  Place& place = place_at(address, bytes, pc);
  const bool clears = value == kNothing;
  const char* const what = clears ? "cleared" : "put";
  for (const Access& before : {place.cleared, place.put}) {
    if (comes_before(before)) continue;
    fail(
        nullptr, pc, "%s here, %s by block %u in the same launch, and nothing orders that before",
        what, before.block == place.put.block && before.time == place.put.time ? "put" : "cleared",
        before.block - 1);
  }
  for (const Access& user : place.users) {
    if (comes_before(user)) continue;
    fail(
        nullptr, pc,
        "%s here, where block %u has found a value, and nothing orders that before: it could find "
        "this one",
        what, user.block - 1);
  }
  if (!clears && value_at(address, bytes) != kNothing) {
    fail(nullptr, pc, "put here, where a value was not cleared since its last use");
  }
  memcpy(address, &value, bytes);
  place.users.clear();
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

void begin_meetings(unsigned blocks, bool does_meet) {
  meets = does_meet;
  clocks.assign(meets ? blocks + 1 : 0, {});
  places.clear();
  released.clear();
}

bool launch_meets() { return meets; }

uint32_t block_time() { return own_clock().time; }

void note_block_barrier() {
  if (!meets) return;
  BlockClock& own = own_clock();
  for (const auto& [thread, clock] : own.of_thread) own.known.join(clock);
  own.of_thread.clear();
  ++own.time;
}

bool comes_before(uint32_t block, int thread, uint32_t time) {
  const BlockClock& own = own_clock();
  if (block == block_number) return time < own.time || thread == running->number;
  const Access access{block, thread, time};
  if (own.known.covers(access)) return true;
  const auto found = own.of_thread.find(running->number);
  return found != own.of_thread.end() && found->second.covers(access);
}

extern "C" {

void emu_block_met() {
  emu_order_memory();
  note_block_barrier();
}

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
    if (value != kNothing) note_user(place, this_access());
    memcpy(static_cast<char*>(found) + i * bytes, &value, bytes);
  }
}

void emu_arrive(int* count, int releases) {
  if (chosen_order() == Order::kRandom && coin()) emu_yield();
  check_access(reinterpret_cast<uintptr_t>(count), sizeof(*count), true, kAtomic, nullptr, CALLER);
  note_user(count_at(count, "an arrival", CALLER), this_access());
  ++*count;
  if (!releases) return;
  Clock& clock = released[reinterpret_cast<uintptr_t>(count)];
  const BlockClock& own = own_clock();
  clock.join(own.known);
  const auto found = own.of_thread.find(running->number);
  if (found != own.of_thread.end()) clock.join(found->second);
  Clock self;
  self.blocks.resize(block_number + 1);
  self.blocks[block_number] = own.time;
  self.threads[{block_number, running->number}] = own.time;
  clock.join(self);
}

void emu_wait_for_arrivals(const char* site, const int* count, int arrivals, int acquires) {
  const auto address = reinterpret_cast<uintptr_t>(count);
  check_access(address, sizeof(*count), false, kAtomic, nullptr, CALLER);
  count_at(count, "a wait", CALLER);
  const Count awaited{count, arrivals};
  emu_wait_until(site, have_arrived, &awaited);
  note_user(places[address], this_access());
  if (acquires) own_clock().of_thread[running->number].join(released[address]);
}
}
