// The program's own OpenMP threads in place of the pool's, for what this library computes between operators of
// PyTorch's CPU: those threads are awake and would have to give a core to ours.
#pragma once
#include <cstdint>

namespace maca {

// Entry points of the OpenMP runtime that PyTorch uses, as GCC calls them.
struct OpenMp {
  void (*start)(void (*task)(void*), void* context, unsigned count);
  void (*end)();
  int (*thread_number)();
  int (*team_size)();
  int (*max_threads)();
};

// While it lives, regions of the calling thread run on those threads, without barriers; on that thread alone when there
// are none, and in a forked child, where libgomp waits for threads that its parent had.
class BorrowedThreads {
 public:
  explicit BorrowedThreads(const OpenMp* threads);
  ~BorrowedThreads();
  BorrowedThreads(const BorrowedThreads&) = delete;
  BorrowedThreads& operator=(const BorrowedThreads&) = delete;

 private:
  const OpenMp* before_;
  bool was_in_region_;
};

}  // namespace maca
