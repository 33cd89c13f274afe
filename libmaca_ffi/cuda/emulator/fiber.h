// A thread of a kernel: a stack of its own on a thread of the host, left and entered where the kernel waits.
#pragma once
#include <cstddef>
#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace emulated {

class Fiber {
 public:
  // The next switch to it calls `entry`, which never returns.
  void start(char* stack, size_t bytes, void (*entry)());
  // Leaves `from`, which is running, and goes on in `to`.
  static void change(Fiber& from, Fiber& to);

 private:
#ifdef __x86_64__
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace emulated
