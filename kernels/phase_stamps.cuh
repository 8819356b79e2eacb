// When each block began and ended each phase of its launch: for a build with -DSTAMPED; nothing in others.
//
// A launch that names its phases (Launch.phases) numbers them in order, on from one op of its stack to the
// next. Notes go through a pointer in shared memory: a load from global memory would come behind all that
// the block has under way, and the stamps would take as long as what they are of.
#pragma once
#include "ptx.cuh"

#ifdef CPU_EMU
#include "phase_stamps_on_cpu.h"
#elif defined(STAMPED)
struct PhaseStamp {
  unsigned long long begins_ns, ends_ns;  // of the GPU's clock; 0: not noted
};

struct PhasePlace {
  PhaseStamp* stamps;  // of each block that leaves a ClockStamp, in their order: [room, count]
  unsigned long long count;  // of phases of a block
};

// The host fills it, in each module whose launches have phases.
extern "C" __device__ PhasePlace phase_place = {};

// Of this block; null: none are taken.
__device__ __forceinline__ PhaseStamp*& phases_of_block() {
  __shared__ PhaseStamp* stamps;
  return stamps;
}

// By all threads, after wait_for_previous_kernel(); a barrier of the block follows before the first note.
__device__ __forceinline__ void begin_phases() {
  if (threadIdx.x != 0) return;
  const ClockStamp* const own = stamp_of_block();
  PhaseStamp* const all = phase_place.stamps;
  const bool notes = own != nullptr && all != nullptr;
  phases_of_block() = notes ? all + (own - stamp_place.stamps) * phase_place.count : nullptr;
}
// What the block needs for the phase is there: thread 0 says so.
__device__ __forceinline__ void note_phase_begin(int number) {
  if (threadIdx.x != 0 || phases_of_block() == nullptr) return;
  phases_of_block()[number].begins_ns = clock_ns();
}
// A warp has done its part: the block's last one counts.
__device__ __forceinline__ void note_phase_end(int number) {
  if (threadIdx.x % 32 != 0 || phases_of_block() == nullptr) return;
  atomicMax(&phases_of_block()[number].ends_ns, clock_ns());
}
#else
__device__ __forceinline__ void begin_phases() {}
__device__ __forceinline__ void note_phase_begin(int) {}
__device__ __forceinline__ void note_phase_end(int) {}
#endif
