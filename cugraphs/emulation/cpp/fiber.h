// Switching between the stacks of threads and the scheduler's own. Knows nothing of CUDA.
#pragma once
#include <stddef.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

constexpr size_t kStackBytes = 256 * 1024;

struct Stack {
  char* memory = nullptr;  // kStackBytes, above one page that faults on overflow
#if defined(__x86_64__)
  void* top = nullptr;  // where the registers of a fiber that does not run are saved
#else
  ucontext_t context;
#endif
};

constexpr size_t kGuardBytes = 4096;
constexpr int kMapsOfStack = 2;  // of a process's memory maps: the stack and its guard

bool allocate(Stack* stack);  // once; false, and errno, where there is no memory
void release(Stack* stack);
void prepare(Stack* stack, void (*entry)());  // that is allocated; entry must not return
void enter(Stack* stack);                     // runs it until it leaves
void leave(Stack* stack);                     // back to where it was entered
