// The launch that runs: its shape, its threads, whose turn it is, and what went wrong.
#pragma once
#include <stdint.h>

#include <vector>

#include "runtime.h"
#include "threads.h"

enum class Order { kForward, kReverse, kRandom };

struct LaunchState {
  EmuFunction function;
  void** arguments;
  EmuIndex grid, block, block_index;
  unsigned cluster;  // blocks in x that run together
  long spins = 0;    // atomics since the last barrier
};
extern LaunchState launch;

struct Failure {
  char message[2048];
  char site[512];
  void* pc;  // null where the site says it
};
extern Failure failure;

void set_order(Order order, uint64_t seed);
Order chosen_order();
bool coin();                                       // random, from the seed
void permute(std::vector<int>* turns, int count);  // 0 to count - 1 in the chosen order

extern long rounds;    // of the warps of a block
extern long progress;  // noted by threads

void prepare_threads(unsigned count);  // throws NoMemory
void release_stacks();                 // of threads that will not run
void run_cluster(unsigned number);     // until every thread has returned, or something failed
void block_thread(State state);        // gives the turn away
void try_collective(const Thread& first);
// A thread has waited for a barrier: what other blocks of the cluster copied has come.
void end_far_copies(unsigned barrier);
