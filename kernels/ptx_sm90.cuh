// What only sm_90a has, as inline assembly: wgmma, tensor maps and the copy engine, mbarriers, named
// barriers, registers that move between warpgroups.
//
// The CPU emulation has its own version of each function, under the same name. It multiplies and copies
// at once, from and to the addresses that descriptors and maps name: so it shows indices, layouts, masks,
// and, checked, that each access of shared memory waits for those before it, be they threads', copies or
// products, and is fenced; not that registers of a product are left alone until it has ended. Sources: PTX
// ISA 8.7, sections wgmma.mma_async, cp.async.bulk.tensor, mbarrier, setmaxnreg, barrier, fence.proxy.
#pragma once
#include "ptx.cuh"

// Where wgmma finds a matrix of 16-bit elements in shared memory: rows of 64 elements, of which 8 lie one
// after the other, 1,024 bytes aligned to as many, vector v (16 bytes) of row r at place v ^ r.
// `eight_rows` is the distance from 8 rows to the next 8, `columns` that from 64 columns to the next,
// which counts only where rows run along k; both in bytes.
__device__ __forceinline__ unsigned long long wgmma_matrix(
    unsigned address, int eight_rows, int columns) {
  constexpr unsigned long long kSwizzle128 = 1ull << 62;
  return kSwizzle128 | static_cast<unsigned long long>(eight_rows >> 4) << 32 |
         static_cast<unsigned long long>(columns >> 4) << 16 | address >> 4;
}

// Where a box begins in the four dims of a map, the innermost first.
struct BoxStart {
  int at[4];
};

#ifdef CPU_EMU
#include "ptx_sm90_on_cpu.h"
#else
// What cuTensorMapEncodeTiled makes: how the copy engine sees an array. A __grid_constant__ parameter.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

// ------------------------------------------------------------------------------ barriers in memory
// Barriers are named by their address in shared memory, 8 bytes each. A wait is for the end of the phase
// whose number's lowest bit is `parity`; one on a phase that has not begun ends at once with parity 1.

__device__ __forceinline__ void mbarrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :
               : "r"(barrier), "r"(arrivals)
               : "memory");
}

// Makes barriers that this thread has initialised visible to the copy engine; a __syncthreads() follows.
__device__ __forceinline__ void mbarrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}

// Arrives, and keeps the phase open until the copy engine has written so many bytes.
__device__ __forceinline__ void mbarrier_arrive_expecting(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(barrier), "r"(bytes)
               : "memory");
}

// The barrier's memory may be used for other things.
__device__ __forceinline__ void mbarrier_end(unsigned barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" : : "r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_wait(unsigned barrier, int parity) {
  unsigned done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!done);
}

// Whether the phase has ended; does not wait for it. Who hears that it has may read what was waited for.
__device__ __forceinline__ bool mbarrier_has_ended(unsigned barrier, int parity) {
  unsigned done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done;
}

// A word of shared memory by which one warp tells others how things are. It orders nothing, and who reads
// it may be late.
__device__ __forceinline__ void store_hint(int* hint, int value) {
  asm volatile("st.volatile.shared.s32 [%0], %1;"
               :
               : "r"(shared_address(hint)), "r"(value)
               : "memory");
}
__device__ __forceinline__ int load_hint(const int* hint) {
  int value;
  asm volatile("ld.volatile.shared.s32 %0, [%1];"
               : "=r"(value)
               : "r"(shared_address(hint))
               : "memory");
  return value;
}

// The compiler no longer knows where `value` comes from: what follows from it is worked out again after this,
// where it would lie in registers otherwise.
__device__ __forceinline__ void work_out_anew(int& value) { asm volatile("" : "+r"(value)); }

// Barriers 1 to 15 of the block, for some of its warps: `threads` of them, those that only arrive among
// them.
__device__ __forceinline__ void named_barrier_wait(int name, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int name, int threads) {
  asm volatile("bar.arrive %0, %1;" : : "r"(name), "r"(threads) : "memory");
}

// ------------------------------------------------------------------------------------------- copies

// What this thread has done to shared memory comes before what wgmma and the copy engine do there after the barrier
// that follows: they see what was written, by stores or cp.async that were waited for, and a copy does not overtake
// a read. Without it, loads whose values nothing has needed yet may still be under way at the barrier: another kernel
// on the same multiprocessor holds them up long enough for a copy to fill their place.
__device__ __forceinline__ void fence_shared_memory() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// As cp_async16, to an address in shared memory.
__device__ __forceinline__ void cp_async16_to(unsigned to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}

// Begins to copy to shared memory what is read once, so that it leaves the L2 cache first; addresses and
// bytes are multiples of 16. The bytes count at `barrier`.
__device__ __forceinline__ void copy_bytes(
    unsigned to, const void* from, int bytes, unsigned barrier) {
  asm volatile(
      "{\n.reg .b64 once;\n"
      "createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], once;\n}\n"
      :
      : "r"(to), "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Begins to copy a map's box; zeros where the array has ended. The bytes count at `barrier`.
__device__ __forceinline__ void copy_box(
    unsigned to, const TensorMap* map, BoxStart start, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];"
      :
      : "r"(to), "l"(map), "r"(barrier), "r"(start.at[0]), "r"(start.at[1]), "r"(start.at[2]),
        "r"(start.at[3])
      : "memory");
}

// As copy_box, of what is read once: other things stay in the L2 cache.
__device__ __forceinline__ void copy_box_once(
    unsigned to, const TensorMap* map, BoxStart start, unsigned barrier) {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
      :
      : "r"(to), "l"(map), "r"(barrier), "r"(start.at[0]), "r"(start.at[1]), "r"(start.at[2]),
        "r"(start.at[3]), "l"(policy)
      : "memory");
}

// As copy_box, to the same place of all blocks of the cluster; the bytes count at each one's own `barrier`.
__device__ __forceinline__ void copy_box_to_cluster(
    unsigned to, const TensorMap* map, BoxStart start, unsigned barrier, int blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
      "cluster "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
      :
      : "r"(to), "l"(map), "r"(barrier), "r"(start.at[0]), "r"(start.at[1]), "r"(start.at[2]),
        "r"(start.at[3]), "h"(static_cast<unsigned short>((1 << blocks) - 1))
      : "memory");
}

// Loads a word that the launch before does not write, before the wait for it: not from the L1 cache, which
// may hold what the word was in an earlier step.
__device__ __forceinline__ int load_early(const int* from) {
  int value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// Adds to what blocks count; what it was before. Who adds later sees what was written here before: by
// this thread, and by those that it met at a barrier since.
__device__ __forceinline__ int add_and_meet(int* count, int value) {
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(count), "r"(value)
               : "memory");
  return before;
}

// Loads what another block has written in this launch: from the L2 cache.
__device__ __forceinline__ float4 load_from_others(const float4* from) { return __ldcg(from); }
__device__ __forceinline__ float2 load_from_others(const float2* from) { return __ldcg(from); }

// ----------------------------------------------------------------------------------------- clusters

// All threads of all blocks of a cluster meet: what they wrote before they arrive is visible to all after
// the wait.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// The same, of what no thread wrote but barriers that it has made visible.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address of what block `rank` of the cluster has at `address` of its own shared memory.
__device__ __forceinline__ unsigned cluster_address(unsigned address, int rank) {
  unsigned found;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(address), "r"(rank));
  return found;
}
// Arrives at a barrier of another block, or of this one, whose address cluster_address has found. Orders
// nothing that this thread has written: a release to the cluster waits for the whole memory system.
__device__ __forceinline__ void mbarrier_arrive_in_cluster(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" : : "r"(barrier) : "memory");
}
__device__ __forceinline__ void load_of_cluster(float (&result)[2], unsigned address) {
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
               : "=f"(result[0]), "=f"(result[1])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_of_cluster(float (&result)[4], unsigned address) {
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(result[0]), "=f"(result[1]), "=f"(result[2]), "=f"(result[3])
               : "r"(address)
               : "memory");
}

// ---------------------------------------------------------------------------------- warpgroups, wgmma

// All warps of a warpgroup call these, once: it takes or gives registers, in multiples of 8 a thread.
template <int kRegisters>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kRegisters));
}

// Before the first product of a group: registers that it uses have been written.
__device__ __forceinline__ void wgmma_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Closes the group of the products that were begun.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// What is computed of these registers before this stays before it, and what after it after it: the
// compiler moves arithmetic freely past a wait otherwise.
template <int kCount>
__device__ __forceinline__ void keep_order(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// Waits until at most kGroupsLeft groups are under way; `sums` belong to one that has ended, and are not
// touched before.
template <int kGroupsLeft, int kCount>
__device__ __forceinline__ void wgmma_wait(float (&sums)[kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kGroupsLeft) : "memory");
  keep_order(sums);
}

// The same for what is not looked at before the last group has ended.
template <int kGroupsLeft>
__device__ __forceinline__ void wgmma_wait_for_earlier() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kGroupsLeft) : "memory");
}

// wgmma_scores: c (+)= a * b^T, a [64, 16] and b [n, 16] in shared memory, rows along n.
// wgmma_sums: c (+)= a * b, a [64, 16] in registers, b [16, n] in shared memory, rows along k.
// c is float [64, n], n twice its registers. Warp w of the group holds rows 16*w to 16*w + 15 of a and c
// as mma_m16n8k16 does, the fragments of 8 columns of c one after the other. `adds` is false where c is
// to be overwritten. T is only a type.
// clang-format off
#define NAMES_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define NAMES_16 NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_24 NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define NAMES_32 NAMES_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_48 NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES_64 NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_96 NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81," \
  "%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define NAMES_112 NAMES_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define EIGHT_SUMS(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), \
  "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define SUMS_8 EIGHT_SUMS(0)
#define SUMS_16 EIGHT_SUMS(0), EIGHT_SUMS(8)
#define SUMS_24 SUMS_16, EIGHT_SUMS(16)
#define SUMS_32 SUMS_24, EIGHT_SUMS(24)
#define SUMS_48 SUMS_32, EIGHT_SUMS(32), EIGHT_SUMS(40)
#define SUMS_64 SUMS_48, EIGHT_SUMS(48), EIGHT_SUMS(56)
#define SUMS_96 SUMS_64, EIGHT_SUMS(64), EIGHT_SUMS(72), EIGHT_SUMS(80), EIGHT_SUMS(88)
#define SUMS_112 SUMS_96, EIGHT_SUMS(96), EIGHT_SUMS(104)
#define WGMMA_SCORES(T, type, n, count, a_, b_, adds_)                                                  \
  __device__ __forceinline__ void wgmma_scores(                                                         \
      T, float (&c)[count], unsigned long long a, unsigned long long b, bool adds) {                    \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " adds_ ", 0;\n"                                     \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" NAMES_##count "}, " \
                 a_ ", " b_ ", p, 1, 1, 0, 0;\n}\n"                                                     \
                 : SUMS_##count : "l"(a), "l"(b), "r"(static_cast<int>(adds)));                         \
  }
#define WGMMA_SUMS(T, type, n, count, a_, b_, adds_)                                                    \
  __device__ __forceinline__ void wgmma_sums(                                                           \
      T, float (&c)[count], const unsigned* a, unsigned long long b, bool adds) {                       \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " adds_ ", 0;\n"                                     \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" NAMES_##count "}, " \
                 "{" a_ "}, " b_ ", p, 1, 1, 1;\n}\n"                                                   \
                 : SUMS_##count                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)));    \
  }
WGMMA_SCORES(__nv_bfloat16, "bf16", "16", 8, "%8", "%9", "%10")
WGMMA_SCORES(__nv_bfloat16, "bf16", "32", 16, "%16", "%17", "%18")
WGMMA_SCORES(__nv_bfloat16, "bf16", "48", 24, "%24", "%25", "%26")
WGMMA_SCORES(__nv_bfloat16, "bf16", "64", 32, "%32", "%33", "%34")
WGMMA_SCORES(__nv_bfloat16, "bf16", "96", 48, "%48", "%49", "%50")
WGMMA_SCORES(__nv_bfloat16, "bf16", "128", 64, "%64", "%65", "%66")
WGMMA_SCORES(__nv_bfloat16, "bf16", "192", 96, "%96", "%97", "%98")
WGMMA_SCORES(__nv_bfloat16, "bf16", "224", 112, "%112", "%113", "%114")
WGMMA_SCORES(__half, "f16", "16", 8, "%8", "%9", "%10")
WGMMA_SCORES(__half, "f16", "32", 16, "%16", "%17", "%18")
WGMMA_SCORES(__half, "f16", "48", 24, "%24", "%25", "%26")
WGMMA_SCORES(__half, "f16", "64", 32, "%32", "%33", "%34")
WGMMA_SCORES(__half, "f16", "96", 48, "%48", "%49", "%50")
WGMMA_SCORES(__half, "f16", "128", 64, "%64", "%65", "%66")
WGMMA_SCORES(__half, "f16", "192", 96, "%96", "%97", "%98")
WGMMA_SCORES(__half, "f16", "224", 112, "%112", "%113", "%114")
WGMMA_SUMS(__nv_bfloat16, "bf16", "64", 32, "%32,%33,%34,%35", "%36", "%37")
WGMMA_SUMS(__nv_bfloat16, "bf16", "128", 64, "%64,%65,%66,%67", "%68", "%69")
WGMMA_SUMS(__half, "f16", "64", 32, "%32,%33,%34,%35", "%36", "%37")
WGMMA_SUMS(__half, "f16", "128", 64, "%64,%65,%66,%67", "%68", "%69")
// clang-format on
#endif
