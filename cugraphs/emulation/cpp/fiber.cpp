#include "fiber.h"

#include <errno.h>

#include "mapping.h"

bool allocate(Stack* stack) {
  if (stack->memory) return true;
  void* memory = map_memory(kGuardBytes + kStackBytes);
  if (!memory) return false;
  if (mprotect(memory, kGuardBytes, PROT_NONE)) {  // it makes two maps of one, so it may fail too
    const int error = errno;
    munmap(memory, kGuardBytes + kStackBytes);
    errno = error;
    return false;
  }
  stack->memory = static_cast<char*>(memory) + kGuardBytes;
  return true;
}

void release(Stack* stack) {
  if (!stack->memory) return;
  munmap(stack->memory - kGuardBytes, kGuardBytes + kStackBytes);
  stack->memory = nullptr;
}

#if defined(__x86_64__)
// swapcontext makes a system call a switch; this saves what the ABI asks a callee to save.
extern "C" void emu_switch(void** save, void* load);
asm(R"(
.text
.globl emu_switch
.hidden emu_switch
.type emu_switch, @function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch, . - emu_switch
)");

static void* scheduler_top;

void prepare(Stack* stack, void (*entry)()) {
  constexpr int kSavedRegisters = 6;
  void** top = reinterpret_cast<void**>(stack->memory + kStackBytes);
  *--top = nullptr;  // the return address of entry: it never returns
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  stack->top = top;
}

void enter(Stack* stack) { emu_switch(&scheduler_top, stack->top); }
void leave(Stack* stack) { emu_switch(&stack->top, scheduler_top); }

#else

static ucontext_t scheduler;

void prepare(Stack* stack, void (*entry)()) {
  getcontext(&stack->context);
  stack->context.uc_stack.ss_sp = stack->memory;
  stack->context.uc_stack.ss_size = kStackBytes;
  stack->context.uc_link = nullptr;
  makecontext(&stack->context, entry, 0);
}

void enter(Stack* stack) { swapcontext(&scheduler, &stack->context); }
void leave(Stack* stack) { swapcontext(&stack->context, &scheduler); }

#endif
