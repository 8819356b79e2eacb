// CUDA C++ as g++ sees it: included before the unchanged text of a .cu file.
//
// A thread is a fiber of the runtime (runtime.cpp). bf16 and fp16 arithmetic are NVIDIA's own host
// versions, so they round as on the device.
#pragma once
#define CPU_EMU 1

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>
#include <vector_types.h>

#undef __shared__
#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __align__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

// At block scope thread_local implies static, and `extern thread_local T smem[];` is legal too, so
// one word serves static and dynamic shared memory. All thread-local storage of the kernel's library
// is shared memory: the runtime poisons it before each block.
#define __shared__ thread_local

// Code of the emulation itself, in which the compiler must plant no checks.
#define EMU_UNCHECKED __attribute__((no_sanitize("thread", "undefined")))

#define EMU_TEXT(x) #x
#define EMU_TEXT_OF(x) EMU_TEXT(x)
#define EMU_SITE __FILE__ ":" EMU_TEXT_OF(__LINE__)

#include "device_math.h"
#include "entry_points.h"
#include "runtime.h"
#include "warp.h"

#define threadIdx (emu_thread_index())
#define blockIdx (emu_block_index())
#define blockDim (emu_block_size())
#define gridDim (emu_grid_size())
static const int warpSize = 32;

namespace emu {
inline int barrier(const char* site, EmuVote vote, bool predicate) {
  int result;
  emu_barrier(site, vote, predicate, &result);
  return result;
}
}  // namespace emu

#define __syncthreads() emu_barrier(EMU_SITE, kEmuNoVote, 0, nullptr)
#define __syncthreads_count(predicate) emu::barrier(EMU_SITE, kEmuCount, (predicate) != 0)
#define __syncthreads_and(predicate) emu::barrier(EMU_SITE, kEmuAnd, (predicate) != 0)
#define __syncthreads_or(predicate) emu::barrier(EMU_SITE, kEmuOr, (predicate) != 0)
#define __threadfence() emu_fence()
#define __threadfence_block() emu_fence()
#define __threadfence_system() emu_fence()
#define __nanosleep(ns) emu_yield()
#define __trap() emu_fail(EMU_SITE, "__trap()")
#define assert(condition) \
  ((condition) ? (void)0 : emu_fail(EMU_SITE, "assert(%s) does not hold", #condition))
