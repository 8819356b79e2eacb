// Runs a launch one block at a time. A thread is a fiber that runs until it blocks at a barrier or in a
// collective of its warp; a warp runs as far ahead as it can before the next one starts. Warps, lanes
// and blocks take turns in forward, reverse or random order, so a result that leans on a missing
// barrier changes with the order.
#include "runtime.h"

#include <dlfcn.h>
#include <link.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "checks.h"
#include "threads.h"

Thread* running;
uint32_t block_number, barrier_epoch;
std::vector<uint16_t> warp_epochs;
bool fenced, programmatic, failed;

namespace {

constexpr int kWarp = 32;
constexpr unsigned char kPoison = 0xff;  // a NaN in fp32, fp16 and bf16; -1 as an integer
constexpr long kMostSpins = 20'000'000;

enum class Order { kForward, kReverse, kRandom };

std::vector<Thread> threads;
std::vector<std::unique_ptr<Stack>> stacks;  // of the largest block so far
EmuIndex block_index, block_size, grid_size;
EmuFunction kernel;
void** kernel_arguments;
Order order;
uint64_t random_state;
long spins;

char failure[2048];
char failure_site[512];
void* failure_pc;

uint64_t next_random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

bool coin() { return next_random() >> 32 & 1; }

void permute(std::vector<int>* turns, int count) {
  turns->resize(count);
  for (int i = 0; i < count; ++i) (*turns)[i] = order == Order::kReverse ? count - 1 - i : i;
  if (order != Order::kRandom) return;
  for (int i = count - 1; i > 0; --i) std::swap((*turns)[i], (*turns)[next_random() % (i + 1)]);
}

void block_thread(State state) {
  running->state = state;
  leave(running->stack);
}

// Lanes of the warp that exist: the last warp of a block may be partial.
int lanes_of(int warp) {
  return std::min<int>(kWarp, static_cast<int>(threads.size()) - warp * kWarp);
}

bool same_site(const char* a, const char* b) { return a == b || !strcmp(a, b); }

// Completes the collective that a thread waits in, once every live lane of its mask has arrived.
void try_collective(const Thread& first) {
  Thread* lanes = &threads[first.warp * kWarp];
  unsigned arrived = 0;
  for (int lane = 0; lane < lanes_of(first.warp); ++lane) {
    const Thread& thread = lanes[lane];
    if (!(first.mask >> lane & 1) || thread.state == State::kDone) continue;
    if (thread.state != State::kInWarp || thread.mask != first.mask) return;
    if (!same_site(thread.site, first.site)) {
      fail(
          first.site, nullptr,
          "lanes of warp %d meet in one collective from different places, also %s", first.warp,
          file_name(thread.site));
      return;
    }
    arrived |= 1u << lane;
  }
  const void* in[kWarp] = {};
  void* out[kWarp] = {};
  for (int lane = 0; lane < lanes_of(first.warp); ++lane) {
    if (!(arrived >> lane & 1)) continue;
    in[lane] = lanes[lane].in;
    out[lane] = lanes[lane].out;
  }
  first.collective(arrived, in, out);
  if (first.ordering == kEmuOrdersMemory) ++warp_epochs[first.warp];
  for (int lane = 0; lane < lanes_of(first.warp); ++lane) {
    if (arrived >> lane & 1) lanes[lane].state = State::kReady;
  }
}

// A lane that returned may have been the last that a collective waited for.
void try_collectives_of(int warp) {
  for (int lane = 0; lane < lanes_of(warp) && !failed; ++lane) {
    const Thread& thread = threads[warp * kWarp + lane];
    if (thread.state == State::kInWarp) try_collective(thread);
  }
}

// Opens the barrier once every thread that has not returned is there.
bool try_barrier() {
  const Thread* first = nullptr;
  int arrived = 0, votes = 0;
  for (const Thread& thread : threads) {
    if (thread.state == State::kDone) continue;
    if (thread.state != State::kAtBarrier) return false;
    if (first && !same_site(first->site, thread.site)) {
      fail(
          first->site, nullptr,
          "threads of a block meet at different barriers: thread %d here, thread %d at %s",
          first->number, thread.number, file_name(thread.site));
      return false;
    }
    if (!first) first = &thread;
    ++arrived;
    votes += thread.predicate;
  }
  if (!first) return false;
  for (Thread& thread : threads) {
    if (thread.state != State::kAtBarrier) continue;
    switch (thread.vote) {
      case kEmuNoVote:
        break;
      case kEmuCount:
        *thread.vote_result = votes;
        break;
      case kEmuAnd:
        *thread.vote_result = votes == arrived;
        break;
      case kEmuOr:
        *thread.vote_result = votes > 0;
        break;
    }
    thread.state = State::kReady;
  }
  ++barrier_epoch;
  spins = 0;
  return true;
}

void fail_deadlock() {
  const Thread* waiting[2] = {};
  int shown = 0;
  long returned = 0;
  for (const Thread& thread : threads) {
    if (thread.state == State::kDone) {
      ++returned;
    } else if (shown == 0 || (shown == 1 && !same_site(waiting[0]->site, thread.site))) {
      waiting[shown++] = &thread;
    }
  }
  char other[256] = "";
  if (shown == 2) {
    snprintf(
        other, sizeof(other), ", thread %d at %s", waiting[1]->number, file_name(waiting[1]->site));
  }
  fail(
      waiting[0]->site, nullptr,
      "deadlock: thread %d waits here for threads that never come%s; %ld of %zu have returned",
      waiting[0]->number, other, returned, threads.size());
}

void complete(const AsyncCopy& copy) {
  memcpy(copy.to, copy.from, copy.bytes_read);
  memset(static_cast<char*>(copy.to) + copy.bytes_read, 0, copy.bytes - copy.bytes_read);
}

void thread_body() {
  kernel.call(kernel.function, kernel_arguments);
  if (programmatic && !running->waited_for_previous) {
    fail("", nullptr, "a thread returns without griddepcontrol.wait from a programmatic launch");
  }
  emu_copy_commit();
  emu_copy_wait(0);
  block_thread(State::kDone);
  abort();
}

// Runs the lanes of a warp until none of them can go on; whether any ran.
bool run_warp(int warp, std::vector<int>* turns) {
  bool any = false;
  for (;;) {
    bool ran = false;
    permute(turns, lanes_of(warp));
    for (int lane : *turns) {
      Thread& thread = threads[warp * kWarp + lane];
      if (thread.state != State::kReady) continue;
      ran = any = true;
      running = &thread;
      enter(thread.stack);
      running = nullptr;
      if (!failed && thread.state == State::kDone) try_collectives_of(warp);
      if (failed) return false;
    }
    if (!ran) return any;
  }
}

void run_block() {
  std::vector<int> warp_turns, lane_turns;
  const int warps = (static_cast<int>(threads.size()) + kWarp - 1) / kWarp;
  for (Thread& thread : threads) {
    thread.state = State::kReady;
    thread.waited_for_previous = false;
    thread.groups.clear();
    thread.open_group.clear();
    prepare(thread.stack, thread_body);
  }
  for (;;) {
    bool progress = false;
    permute(&warp_turns, warps);
    for (int warp : warp_turns) {
      progress |= run_warp(warp, &lane_turns);
      if (failed) return;
    }
    progress |= try_barrier();
    if (failed) return;
    const bool all_done = std::all_of(threads.begin(), threads.end(), [](const Thread& thread) {
      return thread.state == State::kDone;
    });
    if (all_done) return;
    if (!progress) return fail_deadlock();
  }
}

// Where the kernel's library keeps its constants and its thread-local storage: shared memory.
struct Library {
  uintptr_t address;
  uintptr_t shared_begin = 0, shared_end = 0;
};

int visit_library(dl_phdr_info* info, size_t, void* data) {
  auto* library = static_cast<Library*>(data);
  const auto begin_of = [&](const auto& header) { return info->dlpi_addr + header.p_vaddr; };
  bool is_it = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    const uintptr_t begin = begin_of(header);
    is_it |= header.p_type == PT_LOAD && library->address >= begin &&
             library->address < begin + header.p_memsz;
  }
  if (!is_it) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type == PT_LOAD)
      add_constants(begin_of(header), begin_of(header) + header.p_memsz);
    if (header.p_type == PT_TLS && info->dlpi_tls_data) {
      library->shared_begin = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
      library->shared_end = library->shared_begin + header.p_memsz;
    }
  }
  return 1;
}

}  // namespace

const char* file_name(const char* site) {
  const char* slash = strrchr(site, '/');
  return slash ? slash + 1 : site;
}

void fail(const char* site, void* pc, const char* format, ...) {
  if (!failed) {
    int length = snprintf(failure, sizeof(failure), "block (%u, %u, %u)", block_index.x,
                          block_index.y, block_index.z);
    if (running) {
      length += snprintf(failure + length, sizeof(failure) - length, ", thread %d", running->number);
    }
    length += snprintf(failure + length, sizeof(failure) - length, ": ");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure + length, sizeof(failure) - length, format, arguments);
    va_end(arguments);
    snprintf(failure_site, sizeof(failure_site), "%s", site ? file_name(site) : "");
    failure_pc = site ? nullptr : pc;
    failed = true;
  }
  if (running) leave(running->stack);  // it is never entered again
}

extern "C" {

EmuIndex emu_thread_index() { return running->index; }
EmuIndex emu_block_index() { return block_index; }
EmuIndex emu_block_size() { return block_size; }
EmuIndex emu_grid_size() { return grid_size; }
int emu_lane() { return running->lane; }
void emu_yield() { block_thread(State::kReady); }
void emu_fence() { fenced = true; }
void emu_wait_for_previous_kernel() { running->waited_for_previous = true; }

void emu_fail(const char* site, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  fail(site, nullptr, "%s", text);
  abort();
}

void emu_barrier(const char* site, EmuVote vote, int predicate, int* result) {
  running->site = site;
  running->vote = vote;
  running->predicate = predicate;
  running->vote_result = result;
  block_thread(State::kAtBarrier);
}

void emu_warp(
    unsigned mask,
    const char* site,
    const void* in,
    void* out,
    EmuCollective collective,
    EmuOrdering ordering) {
  Thread* self = running;
  if (!(mask >> self->lane & 1)) {
    emu_fail(
        site, "the mask %08x of a warp's collective lacks the calling lane %d", mask, self->lane);
  }
  self->site = site;
  self->mask = mask;
  self->in = in;
  self->out = out;
  self->collective = collective;
  self->ordering = ordering;
  self->state = State::kInWarp;
  try_collective(*self);
  if (self->state == State::kReady) return;  // the last to arrive goes on at once
  leave(self->stack);
}

void emu_access(const void* address, int bytes, bool is_write, const char* site) {
  check_access(reinterpret_cast<uintptr_t>(address), bytes, is_write, kPlain, site, nullptr);
}

void emu_atomic(const void* address, int bytes, const char* site) {
  if (++spins > kMostSpins) {
    emu_fail(site, "%ld atomics without a barrier: a wait for another block or warp?", spins);
  }
  if (order == Order::kRandom && coin()) emu_yield();
  check_access(reinterpret_cast<uintptr_t>(address), bytes, true, kAtomic, site, nullptr);
}

// The bytes arrive at the latest at the wait. In reverse order they arrive at once, in random order
// either way: a barrier that is missing before the copy shows only when they are early, one that is
// missing after it only when they are late.
void emu_copy_async(void* to, const void* from, int bytes, int bytes_read, const char* site) {
  const auto target = reinterpret_cast<uintptr_t>(to);
  if ((target | reinterpret_cast<uintptr_t>(from)) & (bytes - 1)) {
    emu_fail(site, "misaligned cp.async of %d bytes", bytes);
  }
  if (bytes_read) emu_access(from, bytes_read, false, site);
  emu_access(to, bytes, true, site);
  mark_in_flight(target, bytes);
  const AsyncCopy copy{to, from, bytes, bytes_read};
  running->open_group.push_back(copy);
  if (order == Order::kReverse || (order == Order::kRandom && coin())) complete(copy);
}

void emu_copy_commit() {
  running->groups.push_back(std::move(running->open_group));
  running->open_group.clear();
}

void emu_copy_wait(int groups_left) {
  auto& groups = running->groups;
  while (static_cast<int>(groups.size()) > groups_left) {
    for (const AsyncCopy& copy : groups.front()) {
      emu_access(copy.to, copy.bytes, true, "cp.async");
      complete(copy);
    }
    groups.erase(groups.begin());
  }
}

// ------------------------------------------------------------------------------ called from Python

void emu_set_order(int chosen, unsigned long long seed) {
  order = static_cast<Order>(chosen);
  random_state = (seed + 1) * 0x9e3779b97f4a7c15ull;
}

void emu_clear_operands() { clear_operands(); }

void emu_add_operand(
    uintptr_t address, size_t bytes, int uninitialised, int writable, const char* name) {
  add_operand(address, bytes, uninitialised, writable, name);
}

const char* emu_failure() { return failure; }
const char* emu_failure_site() { return failure_site; }

// The failing address as an offset into the kernel's library, 0 where the site says it.
uintptr_t emu_failure_offset() {
  Dl_info info;
  if (!failure_pc || !dladdr(failure_pc, &info)) return 0;
  // The address is where the call returns to; one byte before is still the call.
  return static_cast<uintptr_t>(
      static_cast<char*>(failure_pc) - static_cast<char*>(info.dli_fbase) - 1);
}

// A variable in the thread-local storage of the kernel's library: shared memory, or a byte of the
// compiler's own, which has no name.
struct EmuVariable {
  size_t offset, bytes;
  const char* name;
};

// Runs the launch; 0, or 1 with emu_failure(). `dynamic_shared` is the kernel library's function of
// that name.
int emu_launch(
    EmuFunction (*function)(),
    unsigned char* (*dynamic_shared)(unsigned*),
    void** arguments,
    const unsigned* grid,
    unsigned block_threads,
    unsigned shared_bytes,
    int checked,
    int is_programmatic,
    const size_t* guards,
    int num_guards) {
  running = nullptr;
  failed = false;
  failure[0] = failure_site[0] = 0;
  failure_pc = nullptr;
  checking = checked;
  programmatic = is_programmatic;
  kernel = function();
  kernel_arguments = arguments;
  grid_size = {grid[0], grid[1], grid[2]};
  block_size = {block_threads, 1, 1};

  unsigned capacity_bytes = 0;
  const auto dynamic = reinterpret_cast<uintptr_t>(dynamic_shared(&capacity_bytes));
  begin_launch();
  Library library{reinterpret_cast<uintptr_t>(function)};
  dl_iterate_phdr(visit_library, &library);
  const uintptr_t ranges[3][2] = {{library.shared_begin, dynamic},
                                  {dynamic, dynamic + std::min(shared_bytes, capacity_bytes)},
                                  {dynamic + capacity_bytes, library.shared_end}};
  if (checked) {
    for (const auto& range : ranges) add_shared(range[0], range[1]);
    for (int i = 0; i < num_guards; ++i) ignore_shared(library.shared_begin + guards[i]);
  }

  threads.resize(block_threads);
  while (stacks.size() < block_threads) stacks.push_back(std::make_unique<Stack>());
  warp_epochs.assign((block_threads + kWarp - 1) / kWarp, 1);
  barrier_epoch = 1;
  for (unsigned i = 0; i < block_threads; ++i) {
    threads[i].index = {i, 0, 0};
    threads[i].number = static_cast<int>(i);
    threads[i].stack = stacks[i].get();
    threads[i].lane = static_cast<int>(i) % kWarp;
    threads[i].warp = static_cast<int>(i) / kWarp;
  }
  std::vector<int> turns;
  permute(&turns, static_cast<int>(grid[0] * grid[1] * grid[2]));
  for (int i : turns) {
    const auto number = static_cast<unsigned>(i);
    block_index = {number % grid[0], number / grid[0] % grid[1], number / grid[0] / grid[1]};
    block_number = number + 1;
    for (const auto& range : ranges) {
      if (range[1] > range[0])
        memset(reinterpret_cast<void*>(range[0]), kPoison, range[1] - range[0]);
    }
    if (checked) begin_block();
    ++barrier_epoch;
    spins = 0;
    fenced = false;
    run_block();
    running = nullptr;
    if (failed) return 1;
  }
  return 0;
}
}
