#include "fiber.h"

#include <cstdint>

#ifdef __x86_64__
// swapcontext asks the system for the signal mask, 0.3 us each time; a block of 256 threads changes 1000 times.
extern "C" void emulated_change_stack(void** from, void* to);
asm(R"(
  .text
  .hidden emulated_change_stack
  .globl emulated_change_stack
  .type emulated_change_stack, @function
emulated_change_stack:
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
  .size emulated_change_stack, . - emulated_change_stack
)");
#endif

namespace emulated {

#ifdef __x86_64__
void Fiber::start(char* stack, size_t bytes, void (*entry)()) {
  const uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{15};
  void** place = reinterpret_cast<void**>(top);
  *--place = nullptr;  // where a function's return address would be, so that the stack is aligned in `entry`
  *--place = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--place = nullptr;
  stack_pointer_ = place;
}
void Fiber::change(Fiber& from, Fiber& to) { emulated_change_stack(&from.stack_pointer_, to.stack_pointer_); }
#else
void Fiber::start(char* stack, size_t bytes, void (*entry)()) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
}
void Fiber::change(Fiber& from, Fiber& to) { swapcontext(&from.context_, &to.context_); }
#endif

}  // namespace emulated
