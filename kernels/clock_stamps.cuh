// When each block of each launch came to its wait, went on, and returned: for a build with -DSTAMPED.
//
// The stamp of a block is begun where its kernel waits for the previous one, and ended by thread 0 when
// it leaves the function that waits. Part of ptx.cuh; no kernel lives here.
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

class StampOfBlock {
 public:
  __device__ __forceinline__ StampOfBlock() : stamp_(nullptr) {
    if (threadIdx.x == 0 && stamp_place.stamps != nullptr) {
      const unsigned index = atomicAdd(stamp_place.count, 1u);
      if (index < stamp_place.room) stamp_ = stamp_place.stamps + index;
    }
    if (stamp_ != nullptr) stamp_->waits_ns = clock_ns();
    wait_for_previous_kernel();
    if (stamp_ != nullptr) {
      stamp_->goes_on_ns = clock_ns();
      stamp_->function = stamp_place.function;
      stamp_->block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      stamp_->multiprocessor = multiprocessor();
    }
  }
  __device__ __forceinline__ ~StampOfBlock() {
    if (stamp_ != nullptr) stamp_->ends_ns = clock_ns();
  }

 private:
  ClockStamp* stamp_;
};

#define wait_for_previous_kernel() StampOfBlock stamp_of_block
