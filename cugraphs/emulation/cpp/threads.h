// The state of a launch that scheduler and checks share.
#pragma once
#include <stdint.h>

#include <vector>

#include "fiber.h"
#include "runtime.h"

enum class State { kReady, kAtBarrier, kInWarp, kWaiting, kDone };

struct AsyncCopy {
  void* to;
  const void* from;
  int bytes, bytes_read;
};
using CopyGroup = std::vector<AsyncCopy>;

struct Thread {
  EmuIndex index;
  int number, lane, warp;
  uint32_t actor;  // see order.h
  State state;
  bool waited_for_previous;  // has called griddepcontrol.wait
  uint32_t cluster_phase;    // the barrier of the cluster at which it has arrived last
  const char* site;          // of the collective that it waits in

  EmuVote vote;  // at a barrier
  int predicate;
  int* vote_result;

  unsigned mask;  // in a warp's collective
  EmuCollective collective;
  EmuOrdering ordering;
  const void* in;
  void* out;

  bool polls;                          // has given the turn away, maybe for nothing
  long seen_rounds;                    // when it did
  bool (*ready)(const void* awaited);  // of a thread that waits for what others do
  const void* awaited;

  CopyGroup open_group;
  std::vector<CopyGroup> groups;
  Stack* stack;
};

// The thread that runs; null in the scheduler.
extern Thread* running;
extern uint32_t block_number;   // of the block that runs in this launch, from 1
extern uint32_t block_rank;     // of it in its cluster
extern uint32_t cluster_epoch;  // grows at each barrier of a cluster
extern bool programmatic;       // the launch may begin before the previous one ends
extern bool settles;            // it lets the next one begin only after its wait
extern bool failed;

// Records the first failure and, in a thread, leaves it for good. `pc` is an address in the kernel's
// code, null where `site` says it all.
void fail(const char* site, void* pc, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

const char* file_name(const char* site);
