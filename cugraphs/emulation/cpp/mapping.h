// Zeroed memory of the system's that costs nothing until it is touched. Knows nothing of CUDA.
#pragma once
#include <stddef.h>
#include <sys/mman.h>

#include <stdexcept>

// There is not enough; says what for, how much was wanted and what to change. Never thrown in a fiber.
struct NoMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Null, and errno, where the system gives none. What is given is munmap's to give back.
inline void* map_memory(size_t bytes) {
  void* memory = mmap(
      nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}
