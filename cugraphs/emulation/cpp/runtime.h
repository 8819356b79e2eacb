// What a kernel compiled for the CPU asks of the runtime that schedules its threads.
//
// A `site` is "file:line" of the call in the kernel's text; messages repeat it.
#pragma once
#include <stddef.h>

struct EmuIndex {
  unsigned x, y, z;
};

// One operation of a warp, run once when its last lane has arrived. `lanes` is the set of lanes that
// take part; `in` and `out` point at each lane's operand and result.
typedef void (*EmuCollective)(unsigned lanes, const void* const* in, void* const* out);

// How a collective orders the memory accesses of its lanes: only some act as __syncwarp().
enum EmuOrdering { kEmuUnordered = 0, kEmuOrdersMemory = 1 };

// The vote of a barrier: none, or a reduction of the threads' predicates.
enum EmuVote { kEmuNoVote, kEmuCount, kEmuAnd, kEmuOr };

// A __global__ function: how to call it, and its parameters as text, one "kind size pointee;" each
// (kind: p pointer to const, m pointer to mutable, i integer, f floating, s other).
struct EmuFunction {
  void (*call)(void* function, void** arguments);
  void* function;
  const char* parameters;
};

extern "C" {
// Constant within a thread, so the compiler may call them once.
EmuIndex emu_thread_index(void) __attribute__((const));
EmuIndex emu_block_index(void) __attribute__((const));
EmuIndex emu_block_size(void) __attribute__((const));
EmuIndex emu_grid_size(void) __attribute__((const));
int emu_lane(void) __attribute__((const));

void emu_barrier(const char* site, EmuVote vote, int predicate, int* result);
void emu_warp(
    unsigned mask,
    const char* site,
    const void* in,
    void* out,
    EmuCollective collective,
    EmuOrdering ordering);
// Gives the turn to other threads until ready(awaited).
void emu_wait_until(const char* site, bool (*ready)(const void* awaited), const void* awaited);
// Gives the turn to other warps and blocks, of a thread that polls. From then on only phases of barriers that
// it ends, and its own end, count as progress of it, so that a launch in which all others wait is found to hang.
void emu_give_turn(const char* site);
void emu_fence(void);
void emu_yield(void);
[[noreturn]] void emu_fail(const char* site, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

// Records an access that the compiler does not see: atomics, and the loads of emulated PTX.
void emu_atomic(const void* address, int bytes, const char* site);
void emu_access(const void* address, int bytes, bool is_write, const char* site);

void emu_copy_async(void* to, const void* from, int bytes, int bytes_read, const char* site);
void emu_copy_commit(void);
void emu_copy_wait(int groups_left);
void emu_wait_for_previous_kernel(void);
void emu_note_phase(const char* site, int number, int ends);
void emu_let_next_kernel_start(const char* site);

// Barriers in shared memory, of a block of the cluster, by their offset: what orders threads (order.h). A
// thread arrives; its arrival, or the last byte of a copy, ends the phase; a thread has waited for the end
// of one.
unsigned emu_block_rank(void);
void emu_barrier_begins(unsigned barrier);
void emu_check_begun(unsigned rank, unsigned barrier, const char* site);  // before this
void emu_arrives(unsigned rank, unsigned barrier);
void emu_phase_ends(unsigned rank, unsigned barrier);
void emu_has_waited(unsigned barrier);
// The same of the block's barriers that have a name.
void emu_arrives_at_name(int name);
void emu_name_has_met(int name);
void emu_has_waited_for_name(int name);

// The copy engine reads memory, and writes to shared memory at `to`, some time until the phase ends that is open
// now.
void emu_copies_from(
    unsigned rank, unsigned barrier, const void* from, int bytes, const char* site);
void emu_copies(unsigned rank, unsigned barrier, unsigned to, int bytes, const char* site);
// The copy engine and the tensor cores come after what the thread has done to shared memory.
void emu_fence_shared_memory(void);
// Tensor cores read shared memory for the thread's warp, some time until it has waited for the group.
void emu_multiplies(const void* from, int bytes, const char* site);
void emu_close_products(void);  // the group
void emu_await_products(int groups_left);

// Of the cluster: all its threads arrive, and wait until all have.
void emu_cluster_arrive(const char* site);
void emu_cluster_wait(const char* site);
// What block `rank` of the cluster has at `offset` of its dynamic shared memory, to be read.
const void* emu_cluster_shared(unsigned rank, unsigned offset, int bytes, const char* site);
// The same, to be written: by the copy engine, or as a barrier. The block's own is not checked here.
void* emu_cluster_shared_to_write(unsigned rank, unsigned offset, int bytes, const char* site);
// A copy to there begins, and has come once a thread of that block has waited for the barrier, here at its
// place in the block's own memory. A block may not return before.
void emu_copies_to_cluster(unsigned rank, unsigned barrier);

// Values of 2 or 4 bytes between blocks that meet in memory, and counts (kernels/meeting.cuh).
void emu_put(void* place, int bytes, unsigned value);
void emu_clear(void* place, int bytes);
void emu_check_aligned(const void* places, int bytes);  // that are stored as one
// So many values. Where there is a site, the thread waits there until all have come; else it finds
// nothing where nothing orders that they are there.
void emu_look(void* found, const void* from, int bytes, int count, const char* waits_at);
void emu_arrive(int* count, int releases);
void emu_wait_for_arrivals(const char* site, const int* count, int arrivals, int acquires);
}
