// Scratch memory of each thread, cut from the launch's workspace.
#pragma once
#include <memory>

#include "threads/thread_pool.h"

namespace maca {

// A thread beyond those that were counted when the plan was made allocates its own.
struct Scratch {
  explicit Scratch(int64_t bytes_each = 0)
      : bytes((bytes_each + 127) / 64 * 64), threads(ThreadPool::instance().threads()) {}
  uint64_t workspace() const { return static_cast<uint64_t>(bytes * threads); }
  char* of_thread(void* workspace, std::unique_ptr<char[]>& own) const {
    const int i = ThreadPool::thread_index();
    if (i < threads) return static_cast<char*>(workspace) + i * bytes;
    own = std::make_unique<char[]>(static_cast<size_t>(bytes));
    return own.get();
  }
  int64_t bytes;
  int threads;
};

}  // namespace maca
