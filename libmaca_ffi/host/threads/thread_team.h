// A parallel region that a kernel divides itself, in several steps with barriers between them.
#pragma once
#include <type_traits>

#include "thread_pool.h"

namespace maca {

// f(index, size) on a team of up to `count` threads at once, on the calling thread alone inside another region.
// Barriers in f are safe; it must not throw.
template <class F> void on_team(int count, F&& f) {
  if (count <= 1 || ThreadPool::in_region()) {
    f(0, 1);
    return;
  }
  const auto task = [](void* context) {
    (*static_cast<std::remove_reference_t<F>*>(context))(ThreadPool::thread_index(), ThreadPool::team_size());
  };
  ThreadPool::instance().run(count, task, &f);
}

// The wait for all of the team.
inline void team_barrier() { ThreadPool::instance().barrier(); }

}  // namespace maca
