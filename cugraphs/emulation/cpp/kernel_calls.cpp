// What kernels call: indices, barriers, collectives of a warp, atomics, asynchronous copies.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checks.h"
#include "order.h"
#include "runtime.h"
#include "scheduler.h"
#include "shared_memory.h"

namespace {

constexpr long kMostSpins = 20'000'000;

bool round_has_ended(const void* thread) {
  return static_cast<const Thread*>(thread)->seen_rounds != rounds;
}

void complete(const AsyncCopy& copy) {
  memcpy(copy.to, copy.from, copy.bytes_read);
  memset(static_cast<char*>(copy.to) + copy.bytes_read, 0, copy.bytes - copy.bytes_read);
}

}  // namespace

extern "C" {

EmuIndex emu_thread_index() { return running->index; }
EmuIndex emu_block_index() { return launch.block_index; }
EmuIndex emu_block_size() { return launch.block; }
EmuIndex emu_grid_size() { return launch.grid; }
int emu_lane() { return running->lane; }
void emu_yield() { block_thread(State::kReady); }
void emu_fence() { note_fence(); }
void emu_wait_for_previous_kernel() { running->waited_for_previous = true; }

void emu_let_next_kernel_start(const char* site) {
  if (settles && !running->waited_for_previous) {
    emu_fail(site, "a launch that settles lets the next one start before griddepcontrol.wait");
  }
}

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

void emu_wait_until(const char* site, bool (*ready)(const void*), const void* awaited) {
  if (ready(awaited)) return;
  running->site = site;
  running->ready = ready;
  running->awaited = awaited;
  block_thread(State::kWaiting);
}

void emu_give_turn(const char* site) {
  running->polls = true;
  running->seen_rounds = rounds;
  emu_wait_until(site, round_has_ended, running);
}

void emu_access(const void* address, int bytes, bool is_write, const char* site) {
  check_access(reinterpret_cast<uintptr_t>(address), bytes, is_write, kPlain, site, nullptr);
}

void emu_atomic(const void* address, int bytes, const char* site) {
  if (++launch.spins > kMostSpins) {
    emu_fail(
        site, "%ld atomics without a barrier: a wait for another block or warp?", launch.spins);
  }
  if (chosen_order() == Order::kRandom && coin()) emu_yield();
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
  if (chosen_order() == Order::kReverse || (chosen_order() == Order::kRandom && coin()))
    complete(copy);
}

unsigned emu_block_rank() { return block_rank; }
void emu_check_begun(unsigned rank, unsigned barrier, const char* site) {
  const int thread = begun_in_disorder_by(barrier_in(rank, barrier));
  if (thread < 0) return;
  emu_fail(
      site, "a barrier is used here that thread %d has initialised with no barrier between",
      thread);
}
void emu_barrier_begins(unsigned barrier) { begin_barrier(barrier_in(block_rank, barrier)); }
void emu_arrives(unsigned rank, unsigned barrier) { release(barrier_in(rank, barrier)); }
void emu_phase_ends(unsigned rank, unsigned barrier) {
  end_phase(barrier_in(rank, barrier));
  ++progress;
}
void emu_has_waited(unsigned barrier) {
  acquire(barrier_in(block_rank, barrier));
  end_far_copies(barrier);
}
void emu_arrives_at_name(int name) { release(named_barrier(name)); }
void emu_name_has_met(int name) { end_phase(named_barrier(name)); }
void emu_has_waited_for_name(int name) { acquire(named_barrier(name)); }

void emu_copies_from(
    unsigned rank, unsigned barrier, const void* from, int bytes, const char* site) {
  check_source(reinterpret_cast<uintptr_t>(from), bytes, barrier_in(rank, barrier), site);
}
void emu_copies(unsigned rank, unsigned barrier, unsigned to, int bytes, const char* site) {
  check_copy(rank, shared_place.dynamic + to, bytes, barrier_in(rank, barrier), site);
}
void emu_fence_shared_memory() { fence_own_accesses(); }
void emu_multiplies(const void* from, int bytes, const char* site) {
  check_product(reinterpret_cast<uintptr_t>(from), bytes, site);
}
void emu_close_products() { close_products(); }
void emu_await_products(int groups_left) { await_products(groups_left); }

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
}
