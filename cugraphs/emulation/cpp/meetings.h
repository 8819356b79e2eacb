// What orders what between blocks that meet in memory, and the places by which they hand on values.
//
// Knows the order of PTX's memory model at the grain of blocks: each has a time that grows at its barriers,
// and a clock that says up to which time of every other block it comes after. Arrivals that release and
// waits that acquire hand clocks on; barriers of a block give all its threads what one has acquired.
#pragma once
#include <stdint.h>

void begin_meetings(unsigned blocks, bool meets);  // of a launch
bool launch_meets();                               // its blocks run at once
void note_block_barrier();                         // of the block that runs
uint32_t block_time();                             // of the block that runs
// Whether what a thread of a block (from 1) did at a time of it comes before what the running one does.
bool comes_before(uint32_t block, int thread, uint32_t time);
