// The shared memory of the blocks of a cluster, of which one at a time runs: the others' lies aside.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <vector>

// Where the kernel's library has shared memory: all of its thread-local storage, in which dynamic shared
// memory lies, more of it than a launch may use.
struct SharedPlace {
  uintptr_t begin, end;  // of all
  uintptr_t dynamic;     // where dynamic shared memory begins
  size_t dynamic_bytes, dynamic_capacity;
};
extern SharedPlace shared_place;

void poison_shared();

// What a block that does not run has in its shared memory.
struct SharedImage {
  std::vector<unsigned char> before, dynamic, after;

  void store();
  void load() const;
};
