// Runs a launch one block at a time; those of a cluster in turn, each as far as it can. A thread is a fiber
// that runs until it blocks at a barrier or in a collective of its warp; a warp runs as far ahead as it can
// before the next one starts. Warps, lanes and blocks take turns in forward, reverse or random order, so a
// result that leans on a missing barrier changes with the order.
#include "scheduler.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <string>

#include "checks.h"
#include "mapping.h"
#include "meetings.h"
#include "order.h"
#include "shared_memory.h"

Thread* running;
uint32_t block_number, block_rank, cluster_epoch;
bool programmatic, settles, failed;
LaunchState launch;
Failure failure;
long rounds, progress;

namespace {

constexpr int kWarp = 32;
constexpr int kMostIdle = 20;  // turns of all blocks in which some threads poll and nobody goes on

std::vector<Thread> threads;                 // of the block that runs
std::vector<std::unique_ptr<Stack>> stacks;  // of the largest cluster so far

// A block of the cluster. While it does not run, what it has lies here.
struct Block {
  unsigned number;
  bool done;
  std::vector<Thread> threads;
  SharedImage image;
};
std::vector<Block> cluster;
// A copy that block `from` of the cluster began, which is there for block `to` once that has waited for the
// barrier.
struct FarCopy {
  unsigned from, to, barrier;
};
std::vector<FarCopy> far_copies;
size_t cluster_live, cluster_met;  // threads that have not returned, and that have arrived
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
  if (first.ordering == kEmuOrdersMemory) order_lanes(first.warp, arrived);
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
  order_block();
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

// Opens the cluster's barrier once every thread that has not returned has arrived.
void try_cluster_barrier() {
  if (!cluster_met || cluster_met < cluster_live) return;
  cluster_met = 0;
  ++cluster_epoch;
  end_phase(kClusterBarrier);
  launch.spins = 0;
}

bool cluster_has_met(const void* thread) {
  return static_cast<const Thread*>(thread)->cluster_phase != cluster_epoch;
}

void thread_body() {
  launch.function.call(launch.function.function, launch.arguments);
  if (programmatic && !running->waited_for_previous) {
    fail("", nullptr, "a thread returns without griddepcontrol.wait from a programmatic launch");
  }
  emu_copy_commit();
  emu_copy_wait(0);
  --cluster_live;
  if (running->cluster_phase == cluster_epoch) --cluster_met;
  try_cluster_barrier();
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
      ran = true;
      const long before = progress;
      running = &thread;
      enter(thread.stack);
      running = nullptr;
      any |= !thread.polls || thread.state == State::kDone || progress != before;
      if (!failed && thread.state == State::kDone) try_collectives_of(warp);
      if (failed) return false;
    }
    if (!ran) return any;
  }
}

// Says what the stacks of a launch want, of which there are `done`.
[[noreturn]] void fail_stacks(size_t wanted, size_t done) {
  const std::string error = strerror(errno);
  release_stacks();  // so that the process has memory again to report it
  std::string here;
  if (FILE* file = fopen("/proc/sys/vm/max_map_count", "r")) {
    long most_maps;
    if (fscanf(file, "%ld", &most_maps) == 1) here = "; here " + std::to_string(most_maps);
    fclose(file);
  }
  const auto text = [](size_t number) { return std::to_string(number); };
  throw NoMemory(
      text(wanted) + " threads run at the same time, and after the stacks of " + text(done) +
      " the system answers \"" + error + "\": all take " + text(wanted * kMapsOfStack) +
      " memory maps and " + text(wanted * (kGuardBytes + kStackBytes)) +
      " bytes of addresses; raise vm.max_map_count (sysctl" + here +
      ") or the process's limit (ulimit -v), or take a case of fewer threads");
}

}  // namespace

void release_stacks() {
  for (auto& stack : stacks) release(stack.get());
}

void prepare_threads(unsigned count) {
  cluster.clear();
  cluster.resize(launch.cluster);
  const size_t num_threads = size_t{count} * launch.cluster;
  while (stacks.size() < num_threads) stacks.push_back(std::make_unique<Stack>());
  for (size_t i = 0; i < num_threads; ++i) {
    if (!allocate(stacks[i].get())) fail_stacks(num_threads, i);
  }
  cluster_epoch = 1;
  const unsigned lanes = (count + kWarp - 1) / kWarp * kWarp;  // of whole warps
  for (unsigned rank = 0; rank < launch.cluster; ++rank) {
    cluster[rank].threads.resize(count);
    for (unsigned i = 0; i < count; ++i) {
      Thread& thread = cluster[rank].threads[i];
      thread.index = {i, 0, 0};
      thread.number = static_cast<int>(i);
      thread.actor = rank * lanes + i;
      thread.lane = static_cast<int>(i) % kWarp;
      thread.warp = static_cast<int>(i) / kWarp;
      thread.stack = stacks[rank * count + i].get();
    }
  }
}

namespace {

// Makes a block the one that runs, and puts it aside again.
void exchange(Block& block) { std::swap(threads, block.threads); }

void resume(unsigned rank) {
  const EmuIndex& grid = launch.grid;
  Block& block = cluster[rank];
  block_rank = rank;
  exchange(block);
  if (launch.cluster > 1) {
    block.image.load();
    exchange_shared(rank);
  }
  launch.block_index = {block.number % grid.x, block.number / grid.x % grid.y,
                        block.number / grid.x / grid.y};
  block_number = block.number + 1;
  launch.spins = 0;
}

void put_aside() {
  Block& block = cluster[block_rank];
  exchange(block);
  if (launch.cluster > 1) {
    block.image.store();
    exchange_shared(block_rank);
  }
}

// Lets the block that runs go on until none of its threads can; whether any did.
bool run_block() {
  std::vector<int> warp_turns, lane_turns;
  const int warps = (static_cast<int>(threads.size()) + kWarp - 1) / kWarp;
  for (bool any = false;;) {
    bool goes_on = false;
    ++rounds;
    permute(&warp_turns, warps);
    for (int warp : warp_turns) {
      goes_on |= run_warp(warp, &lane_turns);
      if (failed) return false;
    }
    goes_on |= try_barrier();
    if (failed || !goes_on) return any;
    any = true;
  }
}

bool is_done(const std::vector<Thread>& of_block) {
  return std::all_of(of_block.begin(), of_block.end(), [](const Thread& thread) {
    return thread.state == State::kDone;
  });
}

// Of a block whose threads have returned: its copies to other blocks have come too.
void check_far_copies() {
  for (const FarCopy& copy : far_copies) {
    if (copy.from != block_rank) continue;
    return fail(
        "", nullptr,
        "the block has returned, and what it copies to block %u of the cluster may be under way",
        copy.to);
  }
}

void begin_block_of_cluster(unsigned rank, unsigned number) {
  Block& block = cluster[rank];
  block.number = number;
  block.done = false;
  for (Thread& thread : block.threads) {
    thread.state = State::kReady;
    thread.waited_for_previous = false;
    thread.cluster_phase = 0;
    thread.polls = false;
    thread.groups.clear();
    thread.open_group.clear();
    prepare(thread.stack, thread_body);
  }
  poison_shared();
  if (launch.cluster == 1) return begin_block();
  block.image.store();
  exchange_shared(rank);
  begin_block();
  exchange_shared(rank);
}

}  // namespace

namespace {

void* shared_of_cluster(
    unsigned rank, unsigned offset, int bytes, bool is_write, const char* site) {
  if (rank >= cluster.size()) {
    emu_fail(site, "block %u of a cluster of %zu", rank, cluster.size());
  }
  if (rank == block_rank) return reinterpret_cast<void*>(shared_place.dynamic + offset);
  const char* const how = is_write ? "write" : "read";
  Block& block = cluster[rank];
  if (block.done) {
    emu_fail(
        site, "%s of the shared memory of block %u of the cluster, which has returned", how, rank);
  }
  if (offset + bytes > shared_place.dynamic_bytes) {
    emu_fail(
        site, "%s of byte %u of the shared memory of another block, which has %zu", how, offset,
        shared_place.dynamic_bytes);
  }
  return block.image.dynamic.data() + offset;
}

}  // namespace

void run_cluster(unsigned number) {
  begin_order(
      launch.cluster, static_cast<unsigned>(cluster[0].threads.size()), checking || launch_meets());
  for (unsigned rank = 0; rank < launch.cluster; ++rank)
    begin_block_of_cluster(rank, number + rank);
  cluster_live = cluster.size() * cluster[0].threads.size();
  cluster_met = 0;
  ++cluster_epoch;
  far_copies.clear();
  std::vector<int> turns;
  for (int idle = 0;;) {
    bool goes_on = false, all_done = true;
    permute(&turns, static_cast<int>(launch.cluster));
    for (int rank : turns) {
      Block& block = cluster[rank];
      if (block.done) continue;
      resume(rank);
      goes_on |= run_block();
      if (failed) return;
      block.done = is_done(threads);
      if (block.done) check_far_copies();
      if (failed) return;
      all_done &= block.done;
      put_aside();
    }
    if (all_done) return;
    idle = goes_on ? 0 : idle + 1;
    if (idle > kMostIdle) {
      for (int rank : turns) {
        if (cluster[rank].done) continue;
        resume(rank);
        return fail_deadlock();
      }
    }
  }
}

extern "C" {

void emu_cluster_arrive(const char* site) {
  if (running->cluster_phase == cluster_epoch) {
    emu_fail(site, "a thread arrives twice at one barrier of the cluster");
  }
  running->cluster_phase = cluster_epoch;
  release(kClusterBarrier);
  ++cluster_met;
  try_cluster_barrier();
}

void emu_cluster_wait(const char* site) {
  if (!running->cluster_phase) emu_fail(site, "a thread waits for a cluster without arriving");
  emu_wait_until(site, cluster_has_met, running);
  acquire(kClusterBarrier);
}

const void* emu_cluster_shared(unsigned rank, unsigned offset, int bytes, const char* site) {
  void* const found = shared_of_cluster(rank, offset, bytes, false, site);
  if (rank == block_rank) {
    emu_access(found, bytes, false, site);
  } else {
    check_far_read(rank, shared_place.dynamic + offset, bytes, site);
  }
  return found;
}

void emu_copies_to_cluster(unsigned rank, unsigned barrier) {
  if (rank != block_rank) {
    far_copies.push_back({block_rank, rank, barrier});
  }
}

void* emu_cluster_shared_to_write(unsigned rank, unsigned offset, int bytes, const char* site) {
  return shared_of_cluster(rank, offset, bytes, true, site);
}

}  // extern "C"

void end_far_copies(unsigned barrier) {
  const auto has_come = [&](const FarCopy& copy) {
    return copy.to == block_rank && copy.barrier == barrier;
  };
  far_copies.erase(
      std::remove_if(far_copies.begin(), far_copies.end(), has_come), far_copies.end());
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
