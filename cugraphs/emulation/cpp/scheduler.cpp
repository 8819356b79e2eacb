// Runs a launch one block at a time. A thread is a fiber that runs until it blocks at a barrier or in a
// collective of its warp; a warp runs as far ahead as it can before the next one starts. Warps, lanes
// and blocks take turns in forward, reverse or random order, so a result that leans on a missing
// barrier changes with the order.
#include "scheduler.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <memory>

#include "checks.h"

Thread* running;
uint32_t block_number, barrier_epoch;
std::vector<uint16_t> warp_epochs;
bool fenced, programmatic, failed;
LaunchState launch;
Failure failure;

namespace {

constexpr int kWarp = 32;

std::vector<Thread> threads;
std::vector<std::unique_ptr<Stack>> stacks;  // of the largest block so far
Order order;
uint64_t random_state;

uint64_t next_random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

// Lanes of the warp that exist: the last warp of a block may be partial.
int lanes_of(int warp) {
  return std::min<int>(kWarp, static_cast<int>(threads.size()) - warp * kWarp);
}

bool same_site(const char* a, const char* b) { return a == b || !strcmp(a, b); }

}  // namespace

void set_order(Order chosen, uint64_t seed) {
  order = chosen;
  random_state = (seed + 1) * 0x9e3779b97f4a7c15ull;
}

Order chosen_order() { return order; }

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

namespace {

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
  launch.spins = 0;
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

void thread_body() {
  launch.function.call(launch.function.function, launch.arguments);
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
      if (thread.state == State::kWaiting && thread.ready(thread.awaited)) {
        thread.state = State::kReady;
      }
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

}  // namespace

void prepare_threads(unsigned count) {
  threads.resize(count);
  while (stacks.size() < count) stacks.push_back(std::make_unique<Stack>());
  warp_epochs.assign((count + kWarp - 1) / kWarp, 1);
  barrier_epoch = 1;
  for (unsigned i = 0; i < count; ++i) {
    threads[i].index = {i, 0, 0};
    threads[i].number = static_cast<int>(i);
    threads[i].lane = static_cast<int>(i) % kWarp;
    threads[i].warp = static_cast<int>(i) / kWarp;
    threads[i].stack = stacks[i].get();
  }
}

void run_block(unsigned number) {
  const EmuIndex& grid = launch.grid;
  launch.block_index = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
  launch.spins = 0;
  block_number = number + 1;
  ++barrier_epoch;
  fenced = false;
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

const char* file_name(const char* site) {
  const char* slash = strrchr(site, '/');
  return slash ? slash + 1 : site;
}

void fail(const char* site, void* pc, const char* format, ...) {
  if (!failed) {
    int length = snprintf(
        failure.message, sizeof(failure.message), "block (%u, %u, %u)", launch.block_index.x,
        launch.block_index.y, launch.block_index.z);
    if (running) {
      length += snprintf(
          failure.message + length, sizeof(failure.message) - length, ", thread %d",
          running->number);
    }
    length += snprintf(failure.message + length, sizeof(failure.message) - length, ": ");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure.message + length, sizeof(failure.message) - length, format, arguments);
    va_end(arguments);
    snprintf(failure.site, sizeof(failure.site), "%s", site ? file_name(site) : "");
    failure.pc = site ? nullptr : pc;
    failed = true;
  }
  if (running) leave(running->stack);  // it is never entered again
}
