// The OpenMP entry points that oneDNN's GCC build calls, on our thread pool.
//
// libgomp keeps one team for every thread that ever starts a region. PyTorch runs backward on a thread of its
// own, so oneDNN called from there got a second team that fought the first (a ResNet-18 step took 125 ms against
// 97). The shim loads this library with RTLD_DEEPBIND, whereby libdnnl.so, one of its dependencies, finds these
// symbols before libgomp's; PyTorch's own use of libgomp is untouched. Where the binding does not happen (a
// libdnnl that was loaded before us) oneDNN uses libgomp, and is merely slower.
#include "thread_pool.h"

using maca::ThreadPool;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
struct StaticLoop {
  long start, end, step, chunk;
  bool taken;
};
thread_local StaticLoop t_loop;
thread_local int t_inline_regions = 0;  // begun inside another region: run by their caller alone, a team of one

int team_size() { return t_inline_regions > 0 ? 1 : ThreadPool::team_size(); }
int thread_index() { return t_inline_regions > 0 ? 0 : ThreadPool::thread_index(); }
}  // namespace

EXPORT int omp_get_max_threads() { return ThreadPool::in_region() ? 1 : ThreadPool::instance().threads(); }
EXPORT int omp_get_num_threads() { return team_size(); }
EXPORT int omp_get_thread_num() { return thread_index(); }
EXPORT int omp_in_parallel() { return ThreadPool::in_region(); }

EXPORT void GOMP_parallel_start(void (*task)(void*), void* context, unsigned count) {
  if (ThreadPool::in_region() || count == 1) {
    ++t_inline_regions;
    return;
  }
  ThreadPool& pool = ThreadPool::instance();
  pool.begin(count == 0 ? pool.threads() : static_cast<int>(count), task, context);
}

EXPORT void GOMP_parallel_end() {
  if (t_inline_regions > 0) {
    --t_inline_regions;
    return;
  }
  ThreadPool::instance().end();
}

EXPORT void GOMP_parallel(void (*task)(void*), void* context, unsigned count, unsigned) {
  GOMP_parallel_start(task, context, count);
  ThreadPool::take_part(task, context);
  GOMP_parallel_end();
}

EXPORT void GOMP_barrier() {
  if (team_size() > 1) ThreadPool::instance().barrier();
}

// schedule(static) without a chunk size: each thread takes one contiguous piece.
EXPORT bool GOMP_loop_static_next(long* begin, long* end) {
  if (t_loop.taken) return false;
  t_loop.taken = true;
  const long count = (t_loop.end - t_loop.start + t_loop.step - (t_loop.step > 0 ? 1 : -1)) / t_loop.step;
  const long threads = team_size(), index = thread_index();
  *begin = t_loop.start + t_loop.step * (count * index / threads);
  *end = t_loop.start + t_loop.step * (count * (index + 1) / threads);
  return *begin != *end;
}

EXPORT bool GOMP_loop_static_start(long start, long end, long step, long chunk, long* begin, long* stop) {
  t_loop = {start, end, step, chunk, false};
  return GOMP_loop_static_next(begin, stop);
}

EXPORT void GOMP_loop_end_nowait() {}
