#include "checks.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "meetings.h"
#include "threads.h"

bool checking;

namespace {

// Which threads have read a byte since the last barrier.
enum Readers : uint8_t { kNone, kOne, kSeveralLanes, kSeveralWarps };

constexpr uint32_t kSeveralBlocks = ~0u;

struct Cell {
  uint32_t write_epoch, read_epoch;
  uint32_t write_block, read_block;
  uint32_t write_time;      // of the writer's block: its fences, or where blocks meet its barriers
  uint16_t writer, reader;  // thread numbers
  uint16_t write_warp_epoch, read_warp_epoch;
  uint32_t write_cluster_epoch, far_read_epoch;  // far: by another block of the cluster
  Readers readers;
  bool written, written_atomically, read_atomically, initialised;
};

// Zeroed memory that costs nothing until it is touched.
struct Cells {
  Cell* data = nullptr;
  size_t count = 0;

  explicit Cells(size_t bytes) : count(bytes) {
    void* memory = mmap(
        nullptr, size_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1, 0);
    if (memory == MAP_FAILED) __builtin_trap();
    data = static_cast<Cell*>(memory);
  }
  Cells(Cells&& other) noexcept : data(other.data), count(other.count) { other.data = nullptr; }
  Cells(const Cells&) = delete;
  ~Cells() {
    if (data) munmap(data, size_bytes());
  }
  size_t size_bytes() const { return (count + 1) * sizeof(Cell); }
};

struct Range {
  uintptr_t begin, end;
};

struct Region {
  uintptr_t begin, end;
  bool shared;
  bool must_be_initialised;
  bool writable;
  bool early;  // may be read before griddepcontrol.wait
  std::string name;
  Cells cells;
  bool touched = false;     // in this block
  std::vector<Range> late;  // may not
};

// What belongs to a region of shared memory of a block that does not run.
struct Aside {
  Cells cells;
  bool touched;
};

// How a block has synchronised with others through memory.
struct Meeting {
  uint32_t fences = 0;  // so far
  uint32_t published_fences =
      0;                 // before its last atomic: what was written before them is there for others
  bool has_met = false;  // an atomic
  bool sees_others = false;  // a fence after an atomic: what they have published
};
std::vector<Meeting> meetings;  // by block number

Meeting& meeting_of(uint32_t block) {
  if (meetings.size() <= block) meetings.resize(block + 1);
  return meetings[block];
}

std::vector<Region> operands, shared;
std::vector<std::vector<Aside>> aside;  // by the block's rank in the cluster
std::vector<Region*> by_address;
std::vector<Range> constants;
std::vector<uintptr_t> ignored;
std::map<std::pair<uint32_t, uintptr_t>, std::vector<Range>> in_flight;  // by block and barrier

Region* find(uintptr_t address) {
  const auto after = std::upper_bound(
      by_address.begin(), by_address.end(), address,
      [](uintptr_t wanted, const Region* region) { return wanted < region->begin; });
  if (after == by_address.begin()) return nullptr;
  Region* region = *(after - 1);
  return address < region->end ? region : nullptr;
}

bool in_constants(uintptr_t begin, uintptr_t end) {
  for (const Range& range : constants) {
    if (begin >= range.begin && end <= range.end) return true;
  }
  return false;
}

bool is_late(const Region& region, uintptr_t begin, uintptr_t end) {
  return std::any_of(region.late.begin(), region.late.end(), [&](const Range& range) {
    return begin < range.end && end > range.begin;
  });
}

const char* access_name(bool is_write) { return is_write ? "write" : "read"; }

void fail_out_of_bounds(
    uintptr_t address, size_t bytes, bool is_write, const char* site, void* pc) {
  constexpr uintptr_t kFirstPage = 4096;
  if (address < kFirstPage) {
    fail(
        site, pc, "%s of %zu bytes through a null pointer: an optional operand that was left out?",
        access_name(is_write), bytes);
    return;
  }
  const Region* nearest = nullptr;
  uintptr_t least = ~uintptr_t{0};
  for (const Region* region : by_address) {
    const uintptr_t distance =
        address >= region->end ? address - region->end : region->begin - address;
    if (distance < least) least = distance, nearest = region;
  }
  if (nearest) {
    fail(
        site, pc, "%s of %zu bytes out of bounds, at byte %td of %s, which has %zu",
        access_name(is_write), bytes, static_cast<ptrdiff_t>(address - nearest->begin),
        nearest->name.c_str(), static_cast<size_t>(nearest->end - nearest->begin));
  } else {
    fail(site, pc, "%s of %zu bytes out of bounds", access_name(is_write), bytes);
  }
}

// Whether an access of thread `other` since the last barrier is unordered with the running thread's.
bool unordered(uint32_t epoch, uint16_t other, uint16_t warp_epoch) {
  if (epoch != barrier_epoch || other == running->number) return false;
  const bool same_warp = other / 32 == running->warp;
  return !(same_warp && warp_epoch != warp_epochs[running->warp]);  // a __syncwarp lies between
}

bool read_unordered(const Cell& cell) {
  if (cell.read_epoch != barrier_epoch) return false;
  switch (cell.readers) {
    case kNone:
      return false;
    case kOne:
      return unordered(cell.read_epoch, cell.reader, cell.read_warp_epoch);
    case kSeveralLanes:
      return cell.reader / 32 != running->warp ||
             cell.read_warp_epoch == warp_epochs[running->warp];
    case kSeveralWarps:
      return true;
  }
  return false;
}

void record_read(Cell& cell, Atomicity atomicity) {
  const auto number = static_cast<uint16_t>(running->number);
  const uint16_t warp_epoch = warp_epochs[running->warp];
  if (cell.read_epoch != barrier_epoch || cell.readers == kNone) {
    cell.readers = kOne;
  } else if (cell.reader / 32 != running->warp) {
    cell.readers = kSeveralWarps;
  } else if (cell.read_warp_epoch != warp_epoch && cell.readers != kSeveralWarps) {
    cell.readers = kOne;  // earlier reads of this warp are ordered before
  } else if (cell.reader != number && cell.readers == kOne) {
    cell.readers = kSeveralLanes;
  }
  cell.reader = number;
  cell.read_epoch = barrier_epoch;
  cell.read_warp_epoch = warp_epoch;
  cell.read_atomically = atomicity == kAtomic;
  if (cell.read_block && cell.read_block != block_number) {
    cell.read_block = kSeveralBlocks;
  } else {
    cell.read_block = block_number;
  }
}

void record_write(Cell& cell, Atomicity atomicity) {
  cell.writer = static_cast<uint16_t>(running->number);
  cell.write_epoch = barrier_epoch;
  cell.write_warp_epoch = warp_epochs[running->warp];
  cell.write_block = block_number;
  cell.write_time = launch_meets() ? block_time() : meeting_of(block_number).fences;
  cell.write_cluster_epoch = cluster_epoch;
  cell.written = cell.initialised = true;
  cell.written_atomically = atomicity == kAtomic;
}

// Whether the block that runs may read or overwrite what another one has written.
bool is_published(const Cell& cell) {
  if (launch_meets()) return comes_before(cell.write_block, cell.writer, cell.write_time);
  const bool is_there =
      cell.written_atomically || meeting_of(cell.write_block).published_fences > cell.write_time;
  return is_there && meeting_of(block_number).sees_others;
}

// A race of this access with an earlier one, as a message; empty where there is none.
std::string race(const Region& region, const Cell& cell, bool is_write, Atomicity atomicity) {
  const bool atomic = atomicity == kAtomic;
  const char* how = is_write ? "written" : "read";
  if (cell.written && !(atomic && cell.written_atomically)) {
    if (unordered(cell.write_epoch, cell.writer, cell.write_warp_epoch)) {
      return std::string(how) + " here, written by thread " + std::to_string(cell.writer) +
             " with no barrier between";
    }
    if (!region.shared && cell.write_block && cell.write_block != block_number &&
        !is_published(cell)) {
      return std::string(how) + " here, written by block " + std::to_string(cell.write_block - 1) +
             " in the same launch: a fence and an atomic of that block, or an atomic and a fence "
             "of "
             "this one, lack between";
    }
  }
  if (is_write && region.shared && cell.far_read_epoch == cluster_epoch) {
    return "written here, read by another block of the cluster with no barrier of the cluster "
           "between";
  }
  if (is_write && cell.readers != kNone && !(atomic && cell.read_atomically)) {
    if (read_unordered(cell)) {
      return "written here, read by thread " + std::to_string(cell.reader) +
             " with no barrier between";
    }
    if (!region.shared && cell.read_block && cell.read_block != block_number &&
        (launch_meets() || !meeting_of(block_number).sees_others)) {
      return "written here, read by another block in the same launch";
    }
  }
  return {};
}

}  // namespace

void clear_operands() { operands.clear(); }

void add_operand(
    uintptr_t address,
    size_t bytes,
    bool uninitialised,
    bool writable,
    bool early,
    const char* name) {
  operands.push_back(
      {address, address + bytes, false, uninitialised, writable, early, name, Cells(bytes)});
}

void mark_late(uintptr_t address, size_t bytes) {
  operands.back().late.push_back({address, address + bytes});
}

void begin_launch() {
  meetings.clear();
  in_flight.clear();
  shared.clear();
  aside.clear();
  constants.clear();
  ignored.clear();
  for (Region& region : operands) {
    for (size_t i = 0; i < region.cells.count; ++i) {
      Cell& cell = region.cells.data[i];
      if (!cell.written && cell.readers == kNone) continue;  // leaves untouched pages untouched
      const bool initialised = cell.initialised;
      cell = Cell{};
      cell.initialised = initialised;
    }
  }
}

void add_shared(uintptr_t address, size_t bytes, const char* name) {
  if (!bytes) return;
  shared.push_back(
      {address, address + bytes, true, true, true, false, std::string("shared memory ") + name,
       Cells(bytes)});
}

void add_constants(uintptr_t begin, uintptr_t end) { constants.push_back({begin, end}); }

void ignore_shared(uintptr_t address) { ignored.push_back(address); }

void end_of_setup() {
  by_address.clear();
  for (auto* regions : {&operands, &shared}) {
    for (Region& region : *regions) by_address.push_back(&region);
  }
  std::sort(by_address.begin(), by_address.end(), [](const Region* a, const Region* b) {
    return a->begin < b->begin;
  });
}

void note_fence() {
  Meeting& own = meeting_of(block_number);
  ++own.fences;
  own.sees_others |= own.has_met;
}

void begin_block() {
  for (Region& region : shared) {
    if (!region.touched) continue;  // the library holds other functions' shared memory too
    for (size_t i = 0; i < region.cells.count; ++i) region.cells.data[i] = Cell{};
    region.touched = false;
  }
}

void exchange_shared(unsigned rank) {
  if (aside.size() <= rank) aside.resize(rank + 1);
  std::vector<Aside>& of_block = aside[rank];
  for (size_t i = 0; i < shared.size(); ++i) {
    if (of_block.size() <= i) of_block.push_back({Cells(shared[i].cells.count), false});
    std::swap(shared[i].cells.data, of_block[i].cells.data);
    std::swap(shared[i].touched, of_block[i].touched);
  }
}

void check_far_read(unsigned rank, uintptr_t address, size_t bytes, const char* site) {
  if (!checking || failed) return;
  for (size_t i = 0; i < shared.size(); ++i) {
    const Region& region = shared[i];
    if (address < region.begin || address + bytes > region.end) continue;
    const char* name = region.name.c_str();
    for (size_t byte = address - region.begin; byte < address - region.begin + bytes; ++byte) {
      Cell& cell = aside[rank][i].cells.data[byte];
      if (!cell.initialised) {
        fail(
            site, nullptr, "read of uninitialised %s of block %u of the cluster at byte %zu", name,
            rank, byte);
        return;
      }
      if (cell.write_cluster_epoch == cluster_epoch) {
        fail(
            site, nullptr,
            "race on %s at byte %zu: read here, written by block %u of the cluster with no barrier "
            "of the cluster between",
            name, byte, rank);
        return;
      }
      cell.far_read_epoch = cluster_epoch;
    }
    return;
  }
}

void note_far_write(unsigned rank, uintptr_t address, size_t bytes) {
  if (!checking || failed) return;
  for (size_t i = 0; i < shared.size(); ++i) {
    const Region& region = shared[i];
    if (address < region.begin || address + bytes > region.end) continue;
    aside[rank][i].touched = true;
    for (size_t byte = address - region.begin; byte < address - region.begin + bytes; ++byte) {
      aside[rank][i].cells.data[byte] = Cell{};
      aside[rank][i].cells.data[byte].initialised = true;
    }
    return;
  }
}

void mark_in_flight(uintptr_t address, size_t bytes) {
  Region* region = find(address);
  if (!region || !region->shared || address + bytes > region->end) return;
  for (size_t i = 0; i < bytes; ++i) {
    region->cells.data[address - region->begin + i].initialised = false;
  }
}

void mark_in_flight_until(uintptr_t barrier, uintptr_t address, size_t bytes) {
  if (!checking || failed) return;
  mark_in_flight(address, bytes);
  in_flight[{block_number, barrier}].push_back({address, address + bytes});
}

void end_flights(uintptr_t barrier) {
  const auto found = in_flight.find({block_number, barrier});
  if (found == in_flight.end()) return;
  for (const Range& range : found->second) {
    Region* region = find(range.begin);
    for (uintptr_t i = range.begin; i < range.end; ++i) {
      region->cells.data[i - region->begin].initialised = true;
    }
  }
  in_flight.erase(found);
}

void check_access(
    uintptr_t address,
    size_t bytes,
    bool is_write,
    Atomicity atomicity,
    const char* site,
    void* pc) {
  if (!checking || failed || !running) return;
  const auto stack = reinterpret_cast<uintptr_t>(running->stack->memory);
  if (address >= stack && address + bytes <= stack + kStackBytes) return;

  if (bytes == 1 && std::find(ignored.begin(), ignored.end(), address) != ignored.end()) return;
  Region* region = find(address);
  if (!region) {
    if (!is_write && in_constants(address, address + bytes)) return;
    fail_out_of_bounds(address, bytes, is_write, site, pc);
    return;
  }
  const size_t offset = address - region->begin;
  const char* name = region->name.c_str();
  if (address + bytes > region->end) {
    fail(
        site, pc, "%s of %zu bytes at byte %zu runs past the end of %s", access_name(is_write),
        bytes, offset, name);
    return;
  }
  region->touched = true;
  if (is_write && !region->writable) {
    fail(site, pc, "write to %s, an operand that is READ", name);
    return;
  }
  if (programmatic && !running->waited_for_previous && !region->shared &&
      (is_write || !region->early || is_late(*region, address, address + bytes))) {
    fail(
        site, pc, "%s of %s before griddepcontrol.wait: earlier kernels may still use it",
        access_name(is_write), name);
    return;
  }
  for (size_t i = 0; i < bytes; ++i) {
    Cell& cell = region->cells.data[offset + i];
    const bool reads = !is_write || atomicity == kAtomic;
    if (reads && region->must_be_initialised && !cell.initialised) {
      fail(site, pc, "read of uninitialised %s at byte %zu", name, offset + i);
      return;
    }
    const std::string found = race(*region, cell, is_write, atomicity);
    if (!found.empty()) {
      fail(site, pc, "race on %s at byte %zu: %s", name, offset + i, found.c_str());
      return;
    }
    if (is_write) {
      record_write(cell, atomicity);
    } else {
      record_read(cell, atomicity);
    }
  }
  if (atomicity == kAtomic && !region->shared) {
    Meeting& own = meeting_of(block_number);
    own.has_met = true;
    if (is_write) own.published_fences = own.fences;
  }
}
