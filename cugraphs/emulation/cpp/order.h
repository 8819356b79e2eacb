// What comes before what between the threads of blocks that run at once: of one block, of a cluster, or of a
// launch whose blocks meet. Barriers of all kinds, __syncwarp and the copy engine make that order.
//
// An *actor* is who accesses memory: a lane of a warp, or what works apart from any thread, the copies of one
// barrier or the products (wgmma) of one warp. Each warp has a time, an access that of its actor then; a
// thread has a clock, which says up to which time of each warp it comes after what was done. A thread that
// arrives at a barrier adds its clock to the phase, and one that has waited takes the clock of the phase that
// ended. Copies and products are in no thread's clock until one has waited for them.
//
// What threads do to shared memory must be fenced too (fence_shared_memory) before copies and products come near it:
// they may not see what was written, and a copy may come before a read that is still under way.
#pragma once
#include <stdint.h>

// Forgets everything: `blocks` of so many threads are about to run. Nothing is kept where it is not needed.
void begin_order(unsigned blocks, unsigned threads, bool needed);

uint32_t own_actor();           // the thread that runs
uint32_t own_time();            // of an access that it makes now
int thread_of(uint32_t actor);  // in its block
uint32_t rank_of(uint32_t actor);
// Whether what an actor did at a time comes before what the thread that runs does now, or what the copy engine or
// the tensor cores do for it.
enum class By { kThread, kEngine };
bool comes_before(uint32_t actor, uint32_t time, By by = By::kThread);
void note_shared_access();  // by the thread that runs, with which copies and products may not be in order yet
void fence_own_accesses();  // with which they are from now on

void order_lanes(int warp, unsigned lanes);  // of the block that runs, as __syncwarp
void order_block();                          // that runs, as __syncthreads

// Barriers, by number: of shared memory, of a block's names, of the cluster, and counts in global memory.
uint64_t barrier_in(unsigned rank, unsigned offset);
uint64_t named_barrier(int name);  // of the block that runs
constexpr uint64_t kClusterBarrier = ~uint64_t{0};
uint64_t barrier_of_count(const int* count);
void begin_barrier(uint64_t barrier);  // of shared memory, anew
// Who began a barrier, where nothing orders that before the thread that runs; -1 where something does.
int begun_in_disorder_by(uint64_t barrier);
void release(uint64_t barrier);    // the thread that runs arrives
void end_phase(uint64_t barrier);  // what has arrived is there for who waits
void acquire(uint64_t barrier);    // the thread that runs has waited

// Who copies for the phase of a barrier that is open now, and which phase that is; and who multiplies for a
// warp.
struct Engine {
  uint32_t actor, time;
};
Engine copies_until(uint64_t barrier);
Engine products_of_warp();  // of the thread that runs, in the group that it has not closed
void close_products();      // of that group
void await_products(int groups_left);
enum class Kind { kThread, kCopies, kProducts };
Kind kind_of(uint32_t actor);

// Sets of reads, of which those are kept that nothing orders before a later one. 0 is empty.
uint32_t with_read(uint32_t reads, Engine by);
struct Read {
  uint32_t actor;  // or another lane of its warp
  unsigned lanes;  // that have read, at the latest at this time
  uint32_t time;
  uint32_t next;  // of the set
};
// One that does not come before what runs now; null where there is none.
const Read* unordered_read(uint32_t reads, By by = By::kThread);
