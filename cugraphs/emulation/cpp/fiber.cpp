#include "fiber.h"

#include <sys/mman.h>

namespace {

constexpr size_t kGuardBytes = 4096;

void allocate(Stack* stack) {
  if (stack->memory) return;
  void* memory = mmap(
      nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) __builtin_trap();
  mprotect(memory, kGuardBytes, PROT_NONE);
  stack->memory = static_cast<char*>(memory) + kGuardBytes;
}

}  // namespace

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
  allocate(stack);
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
  allocate(stack);
  getcontext(&stack->context);
  stack->context.uc_stack.ss_sp = stack->memory;
  stack->context.uc_stack.ss_size = kStackBytes;
  stack->context.uc_link = nullptr;
  makecontext(&stack->context, entry, 0);
}

void enter(Stack* stack) { swapcontext(&scheduler, &stack->context); }
void leave(Stack* stack) { swapcontext(&stack->context, &scheduler); }

#endif
