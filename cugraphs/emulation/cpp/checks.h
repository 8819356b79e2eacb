// Shadow memory of the checked build: who last wrote and read each byte, and whether it holds
// anything. Reports accesses that are out of bounds, uninitialised or unordered.
#pragma once
#include <stddef.h>
#include <stdint.h>

extern bool checking;

// Memory that may be accessed: an operand, or shared memory. Operands keep what they know from one
// launch to the next, until they are cleared.
void clear_operands();
void add_operand(
    uintptr_t address,
    size_t bytes,
    bool uninitialised,
    bool writable,
    bool early,  // may be read before griddepcontrol.wait
    const char* name);
void mark_late(uintptr_t address, size_t bytes);  // of the newest operand, what may not
void begin_launch();                              // forgets accesses of the launch before
void add_shared(uintptr_t address, size_t bytes, const char* name);  // for this launch
void add_constants(uintptr_t begin, uintptr_t end);  // readable: tables of the kernel's library
void ignore_shared(uintptr_t address);  // a byte of the compiler's own in shared memory
void end_of_setup();                    // all memory of the launch has been added
void begin_block();                     // shared memory holds nothing
void note_fence();                      // of the block that runs

// What is known of the shared memory of block `rank` of the cluster comes in, and goes aside again.
void exchange_shared(unsigned rank);
// A read of what block `rank` of the cluster has, which lies aside, where the address is this block's.
void check_far_read(unsigned rank, uintptr_t address, size_t bytes, const char* site);
// What the copy engine reads, and writes to shared memory of that block, until the barrier's phase ends; what
// the tensor cores read for the warp that runs.
void check_source(uintptr_t address, size_t bytes, uint64_t barrier, const char* site);
void check_copy(unsigned rank, uintptr_t address, size_t bytes, uint64_t barrier, const char* site);
void check_product(uintptr_t address, size_t bytes, const char* site);

enum Atomicity { kPlain, kAtomic };
void check_access(
    uintptr_t address,
    size_t bytes,
    bool is_write,
    Atomicity atomicity,
    const char* site,
    void* pc);
void mark_in_flight(uintptr_t address, size_t bytes);  // shared memory that a copy will fill
