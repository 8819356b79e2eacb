// Dynamic shared memory of one kernel library: what `extern __shared__ unsigned char smem[];` names.
// 227 KiB is the most that a block can have on any device.
alignas(1024) thread_local unsigned char smem[227 * 1024];

extern "C" unsigned char* emu_dynamic_shared(unsigned* capacity_bytes) {
  *capacity_bytes = sizeof(smem);
  return smem;
}
