// When each block of each launch came to its wait, went on, and returned: for a build with -DSTAMPED.
//
// The stamp of a block is begun where its kernel waits for the previous one, and ended when thread 0
// leaves the scope in which it waits or lets the next kernel start, whichever it leaves last. Part of
// ptx.cuh; no kernel lives here.
#pragma once

struct ClockStamp {
  unsigned long long waits_ns, goes_on_ns, ends_ns;  // of the GPU's clock
  unsigned function, block, multiprocessor, padding;
};

struct StampPlace {
  ClockStamp* stamps;  // [room]; null: none are taken
  unsigned* count;     // of blocks so far; those above the room leave no stamp
  unsigned room, function;
};

// The host fills it, in each module with the number of its function.
extern "C" __device__ StampPlace stamp_place = {};

// The stamp of this block, which its thread 0 writes.
__device__ __forceinline__ ClockStamp*& stamp_of_block() {
  __shared__ ClockStamp* stamp;
  return stamp;
}

// Ends the block's stamp with the scope that it is in, by the latest scope that does.
struct StampedStart {
  __device__ __forceinline__ StampedStart() {
    if (threadIdx.x == 0) stamp_of_block() = nullptr;
    let_next_kernel_start();
  }
  __device__ __forceinline__ ~StampedStart() {
    if (threadIdx.x == 0 && stamp_of_block() != nullptr) stamp_of_block()->ends_ns = clock_ns();
  }
};

struct StampedWait {
  ClockStamp* stamp = nullptr;

  __device__ __forceinline__ StampedWait() {
    if (threadIdx.x == 0 && stamp_place.stamps != nullptr) {
      const unsigned index = atomicAdd(stamp_place.count, 1u);
      if (index < stamp_place.room) stamp = stamp_place.stamps + index;
    }
    if (stamp != nullptr) stamp->waits_ns = clock_ns();
    wait_for_previous_kernel();
    if (stamp != nullptr) {
      stamp->goes_on_ns = clock_ns();
      stamp->function = stamp_place.function;
      stamp->block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      stamp->multiprocessor = multiprocessor();
    }
    if (threadIdx.x == 0) stamp_of_block() = stamp;
  }
  __device__ __forceinline__ ~StampedWait() {
    if (stamp != nullptr) stamp->ends_ns = clock_ns();
  }
};

#define let_next_kernel_start() StampedStart stamped_start
#define wait_for_previous_kernel() StampedWait stamped_wait
