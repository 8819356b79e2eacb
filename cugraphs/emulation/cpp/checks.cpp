#include "checks.h"

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "mapping.h"
#include "meetings.h"
#include "order.h"
#include "scheduler.h"
#include "threads.h"

bool checking;

namespace {

struct Cell {
  uint32_t writer, write_time;  // see order.h
  uint32_t write_block;
  uint32_t write_fences;  // of that block so far
  uint32_t reads;         // since it was written, by blocks that run with read_block
  uint32_t read_block;    // the last of them
  bool read_elsewhere;    // by blocks that do not
  bool written, written_atomically, read_atomically, initialised;
};

// Zeroed memory that costs nothing until it is touched.
struct Cells {
  Cell* data = nullptr;
  size_t count = 0;

  explicit Cells(size_t bytes) : count(bytes) {
    data = static_cast<Cell*>(map_memory(size_bytes()));
    if (!data) {
      throw NoMemory(
          std::string("what is known of ") + std::to_string(bytes) + " bytes takes " +
          std::to_string(size_bytes()) + " bytes of addresses, and the system answers \"" +
          strerror(errno) +
          "\"; raise the process's limit (ulimit -v) or vm.overcommit_memory, take a smaller case, "
          "or run it unchecked");
    }
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

// An access to be checked: by the thread that runs, or by an engine for it.
struct Access {
  bool is_write;
  Atomicity atomicity;
  By by;
  Engine actor;

  bool is_atomic() const { return atomicity == kAtomic; }
  bool reads() const { return !is_write || is_atomic(); }
  const char* how() const { return is_write ? "written" : "read"; }
};

// Whether a block is one of those whose threads take turns now.
bool runs_now(uint32_t block) { return block - (block_number - block_rank) < launch.cluster; }

// What an earlier access, of a block that runs now, lacks to come before the one here.
std::string unordered(const Access& access, uint32_t actor, uint32_t time, const char* did) {
  const std::string begin = std::string(access.how()) + " here, " + did + " by ";
  if (kind_of(actor) == Kind::kCopies) {
    return begin +
           "a copy, and this thread has not waited for the barrier that says that it is there";
  }
  if (kind_of(actor) == Kind::kProducts) {
    return begin + "a product of a warp (wgmma) that was not waited for";
  }
  const uint32_t rank = rank_of(actor);
  if (rank != block_rank) {
    return begin + "block " + std::to_string(rank) +
           " of the cluster with no barrier of the cluster between";
  }
  const std::string thread = begin + "thread " + std::to_string(thread_of(actor));
  if (access.by == By::kEngine && comes_before(actor, time)) {
    return thread + " with no fence (fence_shared_memory) between, so that " +
           (access.is_write ? "a copy may come before it" : "a product may not see it");
  }
  return thread + " with no barrier between";
}

// Whether what another block has written may be read or overwritten by the one that runs, since they have
// synchronised through memory.
bool is_published(const Cell& cell) {
  const bool is_there =
      cell.written_atomically || meeting_of(cell.write_block).published_fences > cell.write_fences;
  return is_there && meeting_of(block_number).sees_others;
}

// A race of an access with what was written earlier, as a message; empty where there is none.
std::string race_with_write(const Region& region, const Cell& cell, const Access& access) {
  const bool is_own = cell.write_block == block_number, runs = runs_now(cell.write_block);
  if (runs && comes_before(cell.writer, cell.write_time, access.by)) return {};
  if (is_own || region.shared) {
    return unordered(access, cell.writer, cell.write_time, "written");
  }
  if (!launch_meets() && is_published(cell)) return {};
  return std::string(access.how()) + " here, written by block " +
         std::to_string(cell.write_block - 1) +
         " in the same launch: a fence and an atomic of that block, or an atomic and a fence of "
         "this one, lack between";
}

// The same with what was read.
std::string race_with_reads(const Region& region, const Cell& cell, const Access& access) {
  if (region.shared || runs_now(cell.read_block)) {
    if (const Read* read = unordered_read(cell.reads, access.by)) {
      if (region.shared || rank_of(read->actor) == block_rank) {
        return unordered(access, read->actor, read->time, "read");
      }
      if (launch_meets() || !meeting_of(block_number).sees_others) {
        return "written here, read by another block in the same launch";
      }
    }
  }
  const bool elsewhere = cell.read_elsewhere || !runs_now(cell.read_block);
  if (!region.shared && elsewhere && !meeting_of(block_number).sees_others) {
    return "written here, read by another block in the same launch";
  }
  return {};
}

// What an access has made of the reads of its last byte.
struct AddedRead {
  uint32_t from, to = 0;
};

void record_read(Cell& cell, const Access& access, AddedRead& last) {
  if (cell.read_block && !runs_now(cell.read_block)) {
    cell.read_elsewhere = true;
    cell.reads = 0;
  }
  if (!last.to || cell.reads != last.from) last = {cell.reads, with_read(cell.reads, access.actor)};
  cell.reads = last.to;
  cell.read_block = block_number;
  cell.read_atomically = access.is_atomic();
}

void record_write(Cell& cell, const Access& access) {
  cell = Cell{};
  cell.writer = access.actor.actor;
  cell.write_time = access.actor.time;
  cell.write_block = block_number;
  cell.write_fences = meeting_of(block_number).fences;
  cell.written = cell.initialised = true;
  cell.written_atomically = access.is_atomic();
}

bool same_write(const Cell& a, const Cell& b) {
  return a.writer == b.writer && a.write_time == b.write_time && a.write_block == b.write_block &&
         a.written == b.written && a.written_atomically == b.written_atomically;
}
bool same_reads(const Cell& a, const Cell& b) {
  return a.reads == b.reads && a.read_block == b.read_block &&
         a.read_elsewhere == b.read_elsewhere && a.read_atomically == b.read_atomically;
}

// Checks and records an access to bytes of a region, or of what block `rank` of the cluster has there, of which
// `cells` knows.
void check_cells(
    const Region& region,
    unsigned rank,
    Cell* cells,
    size_t offset,
    size_t bytes,
    const Access& access,
    const char* site,
    void* pc) {
  const auto name = [&] {
    if (rank == block_rank) return region.name;
    return region.name + " of block " + std::to_string(rank) + " of the cluster";
  };
  Cell before{};  // as the last byte was
  AddedRead last;
  for (size_t i = offset; i < offset + bytes; ++i) {
    Cell& cell = cells[i];
    if (access.reads() && region.must_be_initialised && !cell.initialised) {
      fail(site, pc, "read of uninitialised %s at byte %zu", name().c_str(), i);
      return;
    }
    std::string found;
    if (cell.written && !(access.is_atomic() && cell.written_atomically) &&
        !same_write(cell, before)) {
      found = race_with_write(region, cell, access);
    }
    if (found.empty() && access.is_write && cell.read_block &&
        !(access.is_atomic() && cell.read_atomically) && !same_reads(cell, before)) {
      found = race_with_reads(region, cell, access);
    }
    if (!found.empty()) {
      fail(site, pc, "race on %s at byte %zu: %s", name().c_str(), i, found.c_str());
      return;
    }
    before = cell;
    if (access.is_write) {
      record_write(cell, access);
    } else {
      record_read(cell, access, last);
    }
  }
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
  shared.clear();
  aside.clear();
  constants.clear();
  ignored.clear();
  for (Region& region : operands) {
    for (size_t i = 0; i < region.cells.count; ++i) {
      Cell& cell = region.cells.data[i];
      if (!cell.written && !cell.read_block) continue;  // leaves untouched pages untouched
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

namespace {

// An access to what block `rank` of the cluster has in shared memory, where the address is this block's.
void check_shared(
    unsigned rank, uintptr_t address, size_t bytes, const Access& access, const char* site) {
  if (!checking || failed) return;
  for (size_t i = 0; i < shared.size(); ++i) {
    Region& region = shared[i];
    if (address < region.begin || address + bytes > region.end) continue;
    (rank == block_rank ? region.touched : aside[rank][i].touched) = true;
    Cell* const cells = rank == block_rank ? region.cells.data : aside[rank][i].cells.data;
    check_cells(region, rank, cells, address - region.begin, bytes, access, site, nullptr);
    return;
  }
  fail_out_of_bounds(address, bytes, access.is_write, site, nullptr);
}

}  // namespace

void check_far_read(unsigned rank, uintptr_t address, size_t bytes, const char* site) {
  if (!checking) return;
  check_shared(rank, address, bytes, {false, kPlain, By::kThread, {own_actor(), own_time()}}, site);
}

void check_copy(
    unsigned rank, uintptr_t address, size_t bytes, uint64_t barrier, const char* site) {
  if (!checking) return;
  check_shared(rank, address, bytes, {true, kPlain, By::kEngine, copies_until(barrier)}, site);
}

void check_product(uintptr_t address, size_t bytes, const char* site) {
  if (!checking) return;
  check_shared(block_rank, address, bytes, {false, kPlain, By::kEngine, products_of_warp()}, site);
}

void mark_in_flight(uintptr_t address, size_t bytes) {
  Region* region = find(address);
  if (!region || !region->shared || address + bytes > region->end) return;
  for (size_t i = 0; i < bytes; ++i) {
    region->cells.data[address - region->begin + i].initialised = false;
  }
}

namespace {

// By the thread that runs, or by the copies of a barrier.
void check_any(
    uintptr_t address,
    size_t bytes,
    bool is_write,
    Atomicity atomicity,
    const uint64_t* copies_of,
    const char* site,
    void* pc) {
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
  if (!region->writable) return;  // nobody writes it
  if (region->shared && !copies_of) note_shared_access();
  const Engine actor = copies_of ? copies_until(*copies_of) : Engine{own_actor(), own_time()};
  const Access access{is_write, atomicity, By::kThread, actor};
  check_cells(*region, block_rank, region->cells.data, offset, bytes, access, site, pc);
  if (atomicity == kAtomic && !region->shared) {
    Meeting& own = meeting_of(block_number);
    own.has_met = true;
    if (is_write) own.published_fences = own.fences;
  }
}

}  // namespace

void check_access(
    uintptr_t address,
    size_t bytes,
    bool is_write,
    Atomicity atomicity,
    const char* site,
    void* pc) {
  if (!checking || failed || !running) return;
  check_any(address, bytes, is_write, atomicity, nullptr, site, pc);
}

void check_source(uintptr_t address, size_t bytes, uint64_t barrier, const char* site) {
  if (!checking || failed) return;
  check_any(address, bytes, false, kPlain, &barrier, site, nullptr);
}
