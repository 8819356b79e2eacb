#include "order.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "threads.h"

namespace {

constexpr uint32_t kLanes = 32;
constexpr unsigned kAfterShared = 1u << 31;  // an offset behind all shared memory

// What a single thread has done before a time, and what of it is in order with the engines.
struct Single {
  uint32_t actor, before, fenced_before;
};

// Never changed while more than one has it.
struct Clock {
  int references = 0;
  std::vector<uint32_t> before, fenced_before;  // by warp, then by engine
  std::vector<Single> singles;                  // by actor

  bool covers(uint32_t actor, uint32_t time, bool fenced) const {
    const auto& times = fenced ? fenced_before : before;
    if (actor / kLanes < times.size() && time < times[actor / kLanes]) return true;
    const auto found = std::lower_bound(
        singles.begin(), singles.end(), actor,
        [](const Single& single, uint32_t wanted) { return single.actor < wanted; });
    if (found == singles.end() || found->actor != actor) return false;
    return time < (fenced ? found->fenced_before : found->before);
  }
  static uint32_t at(const std::vector<uint32_t>& times, size_t i) {
    return i < times.size() ? times[i] : 0;
  }
  static void raise(std::vector<uint32_t>& times, size_t i, uint32_t time) {
    if (times.size() <= i) times.resize(i + 1);
    times[i] = std::max(times[i], time);
  }
  static void raise(std::vector<uint32_t>& times, const std::vector<uint32_t>& others) {
    if (times.size() < others.size()) times.resize(others.size());
    const size_t count = others.size();
    uint32_t* const to = times.data();
    for (size_t i = 0; i < count; ++i) to[i] = std::max(to[i], others[i]);
  }
  bool says_nothing_new(const Single& single) const {
    return single.before <= at(before, single.actor / kLanes) &&
           single.fenced_before <= at(fenced_before, single.actor / kLanes);
  }
  void join(const Clock& other) {
    raise(before, other.before);
    raise(fenced_before, other.fenced_before);
    add(other.singles);
  }
  // Singles in order.
  void add(const std::vector<Single>& others) {
    std::vector<Single> all;
    auto own = singles.begin();
    const auto keep = [&](const Single& single) {
      if (!says_nothing_new(single)) all.push_back(single);
    };
    for (const Single& other : others) {
      while (own != singles.end() && own->actor < other.actor) keep(*own++);
      Single both = other;
      if (own != singles.end() && own->actor == other.actor) {
        both.before = std::max(both.before, own->before);
        both.fenced_before = std::max(both.fenced_before, own->fenced_before);
        ++own;
      }
      keep(both);
    }
    while (own != singles.end()) keep(*own++);
    singles.swap(all);
  }
  bool covers_all_of(const Clock& other) const {
    const auto within = [](const std::vector<uint32_t>& less, const std::vector<uint32_t>& more) {
      for (size_t i = 0; i < less.size(); ++i) {
        if (less[i] > at(more, i)) return false;
      }
      return true;
    };
    return within(other.before, before) && within(other.fenced_before, fenced_before) &&
           std::all_of(other.singles.begin(), other.singles.end(), [&](const Single& single) {
             return says_nothing_new(single) ||
                    (covers(single.actor, single.before - 1, false) &&
                     (!single.fenced_before ||
                      covers(single.actor, single.fenced_before - 1, true)));
           });
  }
};

// A clock that several threads and barriers have in common; none says that nothing came before.
class Shared {
 public:
  Shared() = default;
  explicit Shared(Clock* clock) : clock_(clock) { ++clock->references; }
  Shared(const Shared& other) : clock_(other.clock_) {
    if (clock_) ++clock_->references;
  }
  Shared(Shared&& other) noexcept : clock_(other.clock_) { other.clock_ = nullptr; }
  Shared& operator=(Shared other) noexcept {
    std::swap(clock_, other.clock_);
    return *this;
  }
  ~Shared() {
    if (clock_ && !--clock_->references) delete clock_;
  }
  const Clock* get() const { return clock_; }
  const Clock* operator->() const { return clock_; }
  explicit operator bool() const { return clock_; }
  // To be changed: the clock itself where so many of the caller's are all that have it, else a copy.
  Clock* changed(int own) {
    if (clock_ && clock_->references == own) return clock_;
    Clock* const copy = clock_ ? new Clock(*clock_) : new Clock;
    copy->references = 0;
    *this = Shared(copy);
    return copy;
  }

 private:
  Clock* clock_ = nullptr;
};

struct ThreadOrder {
  Shared known;
  uint32_t
      unfenced_since;  // the time of the first access that the engines do not know of; 0: there is none
  bool has_fenced;
  uint32_t released_at;   // what it does next comes later than what it has handed on then
  uint32_t group_number;  // of products
};

struct Barrier {
  Clock open;  // of those who have arrived, but for what they did since
  Shared last_joined;
  std::vector<Single> arrived;
  Shared closed;        // of all phases that have ended
  uint32_t copies = 0;  // who copies
  uint32_t phase = 1;
  bool has_begun = false;  // by a thread
  Engine begun_by{};
};

bool kept;
unsigned block_threads, block_warps;
uint32_t engines_begin, engines_end;  // after all warps
std::vector<Kind> engine_kinds;
std::vector<uint32_t> times;            // by warp
std::vector<ThreadOrder> threads;       // by actor
std::vector<uint32_t> product_engines;  // by warp; 0: none yet
std::unordered_map<uint64_t, Barrier> barriers;
bool any_fence;
std::vector<Read> reads;

// What was made of two clocks, or of one, lately: lanes do alike.
struct Made {
  Shared from, with, result;
};
constexpr size_t kMade = 64;
Made joins[kMade], fences;
struct Awaited {
  Shared from, result;
  uint32_t engine, before;
} products;
struct AddedRead {
  uint32_t reads, actor, time, result;
};
constexpr size_t kAddedReads = 4096;
std::vector<AddedRead> added_reads;

ThreadOrder& own() { return threads[running->actor]; }

uint32_t new_engine(Kind kind) {
  engine_kinds.push_back(kind);
  return engines_end++;
}

Shared joined(const Shared& a, const Shared& b) {
  if (!b || a.get() == b.get()) return a;
  if (!a) return b;
  const auto hash = [](const Clock* clock) { return reinterpret_cast<uintptr_t>(clock) / 16; };
  Made& made = joins[(hash(a.get()) * 31 + hash(b.get())) % kMade];
  if (made.from.get() == a.get() && made.with.get() == b.get()) return made.result;
  made = {a, b, a};
  if (!a->covers_all_of(*b.get())) made.result.changed(0)->join(*b.get());
  return made.result;
}

// Until when the engines know what a thread has done. Where it has never fenced, nothing is known.
uint32_t fenced_before(const ThreadOrder& thread, uint32_t now) {
  if (!thread.has_fenced) return 0;
  return thread.unfenced_since ? thread.unfenced_since : now;
}

// All lanes of a warp have done what they did before its time now.
void order_warp(Clock* clock, uint32_t warp, unsigned lanes) {
  const uint32_t now = ++times[warp];
  Clock::raise(clock->before, warp, now);
  ThreadOrder* const first = &threads[warp * kLanes];
  uint32_t least = now;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    if (any_fence) least = std::min(least, fenced_before(first[lane], now));
  }
  if (!any_fence) return;
  Clock::raise(clock->fenced_before, warp, least);
  std::vector<Single> fenced;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    const Single single{warp * kLanes + lane, now, fenced_before(first[lane], now)};
    if (!clock->says_nothing_new(single)) fenced.push_back(single);
  }
  clock->add(fenced);
}

unsigned lanes_of(uint32_t warp) {
  const unsigned in_block = warp % block_warps, left = block_threads - in_block * kLanes;
  return left >= kLanes ? ~0u : (1u << left) - 1;
}

// Warps all of whose lanes are among the singles, in order, are a warp's time.
void compact(Clock& clock, const std::vector<Single>& singles) {
  for (size_t begin = 0, end; begin < singles.size(); begin = end) {
    const uint32_t warp = singles[begin].actor / kLanes;
    uint32_t least = ~0u, least_fenced = ~0u;
    for (end = begin; end < singles.size() && singles[end].actor / kLanes == warp; ++end) {
      least = std::min(least, singles[end].before);
      least_fenced = std::min(least_fenced, singles[end].fenced_before);
    }
    if (end - begin < static_cast<size_t>(__builtin_popcount(lanes_of(warp)))) continue;
    Clock::raise(clock.before, warp, least);
    if (least_fenced) Clock::raise(clock.fenced_before, warp, least_fenced);
  }
}

unsigned lane_of(uint32_t actor) { return 1u << actor % kLanes; }

bool holds(const Read& read, Engine by) {
  return read.time == by.time && read.actor / kLanes == by.actor / kLanes &&
         (read.lanes & lane_of(by.actor));
}

bool is_ordered(const Read& read, By by) {
  const Shared& known = own().known;
  const uint32_t first = read.actor / kLanes * kLanes;
  if (known && by == By::kThread && read.time < Clock::at(known->before, read.actor / kLanes)) {
    return true;
  }
  for (unsigned left = read.lanes; left; left &= left - 1) {
    if (!comes_before(first + __builtin_ctz(left), read.time, by)) return false;
  }
  return true;
}

uint32_t new_read(uint32_t actor, unsigned lanes, uint32_t time, uint32_t next) {
  reads.push_back({actor, lanes, time, next});
  return static_cast<uint32_t>(reads.size() - 1);
}

}  // namespace

void begin_order(unsigned blocks, unsigned of_block, bool needed) {
  kept = needed;
  for (Made& made : joins) made = {};
  fences = {};
  products = {};
  barriers.clear();
  threads.clear();
  if (!kept) return;
  block_threads = of_block;
  block_warps = (of_block + kLanes - 1) / kLanes;
  engines_begin = engines_end = blocks * block_warps;
  engine_kinds.clear();
  times.assign(engines_begin, 1);
  threads.resize(engines_begin * kLanes);
  product_engines.assign(engines_begin, 0);
  any_fence = false;
  reads.assign(1, {});
  added_reads.assign(kAddedReads, {});
}

uint32_t own_actor() { return running->actor; }

uint32_t own_time() {
  ThreadOrder& thread = own();
  uint32_t& time = times[running->actor / kLanes];
  if (time == thread.released_at) ++time;
  return time;
}

int thread_of(uint32_t actor) { return static_cast<int>(actor % (block_warps * kLanes)); }

uint32_t rank_of(uint32_t actor) { return actor / kLanes / block_warps; }

Kind kind_of(uint32_t actor) {
  const uint32_t engine = actor / kLanes;
  return engine < engines_begin ? Kind::kThread : engine_kinds[engine - engines_begin];
}

bool comes_before(uint32_t actor, uint32_t time, By by) {
  const ThreadOrder& thread = own();
  const bool fenced = by == By::kEngine && actor / kLanes < engines_begin;
  if (actor == running->actor &&
      !(fenced && thread.unfenced_since && time >= thread.unfenced_since))
    return true;
  return thread.known && thread.known->covers(actor, time, fenced);
}

void note_shared_access() {
  ThreadOrder& thread = own();
  if (!thread.unfenced_since) thread.unfenced_since = own_time();
}

void fence_own_accesses() {
  if (!kept) return;
  ThreadOrder& thread = own();
  any_fence = thread.has_fenced = true;
  thread.released_at = times[running->actor / kLanes];
  thread.unfenced_since = 0;
  if (!thread.known) return;
  if (fences.from.get() != thread.known.get()) {
    fences = {thread.known, {}, thread.known};
    Clock* const clock = fences.result.changed(0);
    clock->fenced_before = clock->before;
    for (Single& single : clock->singles) single.fenced_before = single.before;
  }
  thread.known = fences.result;
}

void order_lanes(int warp_of_block, unsigned lanes) {
  if (!kept) return;
  const uint32_t warp = block_rank * block_warps + warp_of_block;
  ThreadOrder* const first = &threads[warp * kLanes];
  Shared all;
  int holders = 1;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (!(lanes >> lane & 1)) continue;
    if (!all) all = first[lane].known;
    if (first[lane].known.get() == all.get()) {
      ++holders;
    } else {
      all = joined(all, first[lane].known);
      holders = 0;
    }
  }
  if (!all) holders = 0;
  order_warp(all.changed(holders), warp, lanes);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (lanes >> lane & 1) first[lane].known = all;
  }
}

void order_block() {
  if (!kept) return;
  const uint32_t first = block_rank * block_warps;
  ThreadOrder* const of_block = &threads[first * kLanes];
  Shared all;
  for (uint32_t i = 0; i < block_threads; ++i) {
    if (of_block[i].known.get() != all.get()) all = joined(all, of_block[i].known);
  }
  Clock* const clock = all.changed(0);
  for (uint32_t warp = first; warp < first + block_warps; ++warp) {
    order_warp(clock, warp, lanes_of(warp));
  }
  for (uint32_t i = 0; i < block_threads; ++i) of_block[i].known = all;
}

uint64_t barrier_in(unsigned rank, unsigned offset) { return uint64_t{rank} << 32 | offset; }
uint64_t named_barrier(int name) { return barrier_in(block_rank, kAfterShared + name); }
uint64_t barrier_of_count(const int* count) {
  return uint64_t{1} << 63 | reinterpret_cast<uintptr_t>(count);
}

void begin_barrier(uint64_t number) {
  if (!kept) return;
  Barrier& barrier = barriers[number];
  Barrier fresh;
  fresh.copies = barrier.copies;
  fresh.phase = barrier.phase + 1;
  fresh.has_begun = true;
  fresh.begun_by = {running->actor, own_time()};
  barrier = std::move(fresh);
}

int begun_in_disorder_by(uint64_t number) {
  if (!kept) return -1;
  const Barrier& barrier = barriers[number];
  if (!barrier.has_begun || comes_before(barrier.begun_by.actor, barrier.begun_by.time)) return -1;
  return thread_of(barrier.begun_by.actor);
}

void release(uint64_t number) {
  if (!kept) return;
  Barrier& barrier = barriers[number];
  ThreadOrder& thread = own();
  if (thread.known && thread.known.get() != barrier.last_joined.get()) {
    barrier.open.join(*thread.known.get());
    barrier.last_joined = thread.known;
  }
  const uint32_t now = own_time() + 1;
  barrier.arrived.push_back({running->actor, now, fenced_before(thread, now)});
  thread.released_at = now - 1;
}

void end_phase(uint64_t number) {
  if (!kept) return;
  Barrier& barrier = barriers[number];
  auto& arrived = barrier.arrived;
  std::stable_sort(arrived.begin(), arrived.end(), [](const Single& a, const Single& b) {
    return a.actor < b.actor;
  });
  size_t kept_singles = 0;  // the last of each
  for (size_t i = 0; i < arrived.size(); ++i) {
    if (i + 1 < arrived.size() && arrived[i + 1].actor == arrived[i].actor) continue;
    arrived[kept_singles++] = arrived[i];
  }
  arrived.resize(kept_singles);
  if (barrier.closed) barrier.open.join(*barrier.closed.get());
  compact(barrier.open, arrived);
  barrier.open.add(arrived);
  if (barrier.copies) Clock::raise(barrier.open.before, barrier.copies, barrier.phase + 1);
  ++barrier.phase;
  barrier.closed = Shared(new Clock(std::move(barrier.open)));
  barrier.open = {};
  barrier.last_joined = {};
  arrived.clear();
}

void acquire(uint64_t number) {
  if (!kept) return;
  ThreadOrder& thread = own();
  thread.known = joined(thread.known, barriers[number].closed);
}

Engine copies_until(uint64_t number) {
  Barrier& barrier = barriers[number];
  if (!barrier.copies) barrier.copies = new_engine(Kind::kCopies);
  return {barrier.copies * kLanes, barrier.phase};
}

Engine products_of_warp() {
  uint32_t& engine = product_engines[running->actor / kLanes];
  if (!engine) engine = new_engine(Kind::kProducts);
  return {engine * kLanes, own().group_number + 1};
}

void close_products() {
  if (kept) ++own().group_number;
}

void await_products(int groups_left) {
  if (!kept) return;
  ThreadOrder& thread = own();
  const uint32_t engine = product_engines[running->actor / kLanes];
  if (!engine || thread.group_number < static_cast<uint32_t>(groups_left)) return;
  const uint32_t before = thread.group_number - groups_left + 1;
  if (products.from.get() != thread.known.get() || products.engine != engine ||
      products.before != before || !thread.known) {
    products = {thread.known, thread.known, engine, before};
    Clock::raise(products.result.changed(0)->before, engine, before);
  }
  thread.known = products.result;
}

uint32_t with_read(uint32_t set, Engine by) {
  if (set && holds(reads[set], by)) return set;
  AddedRead& added = added_reads[(set * 7919 + by.actor * 31 + by.time) % kAddedReads];
  if (added.result && added.reads == set && added.actor == by.actor && added.time == by.time)
    return added.result;
  const auto is_of_warp = [&](const Read& read) {
    return read.actor / kLanes == by.actor / kLanes;
  };
  // Where engines are at work, one of them may be the next to write.
  const By next_writer = engines_end > engines_begin ? By::kEngine : By::kThread;
  unsigned lanes = lane_of(by.actor);
  uint32_t time = by.time;
  const auto merge = [&](const Read& read) {
    lanes |= read.lanes;
    time = std::max(time, read.time);
  };
  uint32_t rest = set;  // others that nothing orders before this one
  if (rest && is_of_warp(reads[rest])) {
    if (!is_ordered(reads[rest], next_writer)) merge(reads[rest]);
    rest = reads[rest].next;
  }
  bool stays = true;
  for (uint32_t i = rest; i && stays; i = reads[i].next) {
    stays = !is_of_warp(reads[i]) && !is_ordered(reads[i], next_writer);
  }
  if (!stays) {
    uint32_t kept_reads = 0;
    for (uint32_t i = rest; i; i = reads[i].next) {
      const Read read = reads[i];
      if (is_ordered(read, next_writer)) continue;
      if (is_of_warp(read)) {
        merge(read);
      } else {
        kept_reads = new_read(read.actor, read.lanes, read.time, kept_reads);
      }
    }
    rest = kept_reads;
  }
  const uint32_t result = new_read(by.actor, lanes, time, rest);
  added = {set, by.actor, by.time, result};
  return result;
}

const Read* unordered_read(uint32_t set, By by) {
  for (; set; set = reads[set].next) {
    if (!is_ordered(reads[set], by)) return &reads[set];
  }
  return nullptr;
}
