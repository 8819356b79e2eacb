// The only inline assembly of the kernels: copies and loads past caches, tensor cores, ex2, programmatic
// launches.
//
// The CPU emulation has its own version of each function, under the same name. Sources: PTX ISA 8.7,
// sections cp.async, ld.global.nc, ldmatrix, mma.m16n8k16, ex2, griddepcontrol.
#pragma once

constexpr int kFewRows = 8;  // of a step, up to which a kernel should let the next one start early

#ifdef CPU_EMU
#include "ptx_on_cpu.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The address of shared memory as PTX instructions take it.
__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Begins to copy 16 bytes from global to shared memory, both 16-byte aligned, past the L1 cache.
// Where not valid, nothing is read and zeros are written; `from` must still be a pointer into some
// array.
__device__ __forceinline__ void cp_async16(void* to, const void* from, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}

// Loads 16 bytes, aligned to 16, of memory that nobody writes while the kernel runs, and that is read
// once: past the L1 cache.
__device__ __forceinline__ void load_once(unsigned (&result)[4], const void* from) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
               : "l"(from));
}

// Loads 16 bytes, aligned to 16, of shared memory, where the text says: the compiler would load many of
// them ahead, into registers that are wanted for other things.
__device__ __forceinline__ void load_shared(unsigned (&result)[4], const void* from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
               : "r"(shared_address(from))
               : "memory");
}

// Closes the group of the copies that this thread has begun.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kGroupsLeft of this thread's groups are still under way. What other threads
// copied is visible only after a __syncthreads() that follows.
template <int kGroupsLeft>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kGroupsLeft) : "memory");
}

// Loads 8x8 matrices of 16-bit elements from shared memory; lane 8*m + r names the 16-byte row r of
// matrix m. Lane l receives row l/4, columns 2*(l%4) and the next, of each; `trans` transposes.
__device__ __forceinline__ void ldmatrix_x2(unsigned (&result)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(result[0]), "=r"(result[1])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_trans(unsigned (&result)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(result[0]), "=r"(result[1])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4(unsigned (&result)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&result)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
               : "r"(shared_address(row))
               : "memory");
}

// c += a * b by a warp: a is T [16, 16] by rows, b is T [16, 8] by columns, c is float [16, 8]. T is
// __half or __nv_bfloat16. Lane l holds in c: row l/4, columns 2*(l%4) and the next, then the same
// of row l/4 + 8. ldmatrix_x4 of a's four 8x8 quarters, down then right, gives its fragment.
template <typename T>
__device__ __forceinline__ void mma_m16n8k16(
    float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]);
template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(
    float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(
    float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// 2^x, off by at most 2 units of the last place; 0 below -126.
__device__ __forceinline__ float exp2_approx(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// The GPU's clock, in nanoseconds, and the multiprocessor that this block runs on.
__device__ __forceinline__ unsigned long long clock_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)::"memory");
  return now;
}
__device__ __forceinline__ unsigned multiprocessor() {
  unsigned index;
  asm volatile("mov.u32 %0, %smid;" : "=r"(index));
  return index;
}

// In a build with -DDELAYED: lets the next kernel begin, and sleeps. A kernel that does not wait is then
// ahead of those that it should wait for. In a build with -DSTAMPED these places are noted.
__device__ __forceinline__ void delay() {
#ifdef DELAYED
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const unsigned long long start = clock_ns();
  do {
    __nanosleep(1000);
  } while (clock_ns() - start < 100000);
#endif
}

// In a programmatic launch: waits until the previous kernel has finished and its writes are visible.
// Every thread calls it before it touches activations or state, and before it returns. Before
// sm_90, and in an ordinary launch, the previous kernel has finished anyway.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  delay();
}

// Lets the next kernel begin as soon as every block has called this or returned. Where nobody calls it,
// that is when all have returned. It pays for few rows: our matrix kernels, which follow, read their
// weights meanwhile. With many rows the blocks that wait only take places from those that work, and
// lie unevenly on the multiprocessors afterwards.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  delay();
}

// The same from within a kernel's loop. A profiling build takes no note of it.
__device__ __forceinline__ void start_next_kernel() { let_next_kernel_start(); }

#ifdef STAMPED
#include "clock_stamps.cuh"
#endif
#endif
