// One pool of compute threads for the whole library, whoever calls: the Python thread, PyTorch's autograd
// thread or a stream's worker. The calling thread always takes part as thread 0.
#pragma once
#include <cstdint>

namespace maca {

class ThreadPool {
 public:
  using Task = void (*)(void* context);

  static ThreadPool& instance();

  int threads() const;  // that a region started now would get
  void set_threads(int count);

  // A region: `task(context)` runs on `count` threads at once, so barriers inside it are safe. It must not throw.
  void run(int count, Task task, void* context);
  // The same of a task that takes pieces of work until none is left: whoever has not begun when the caller is through
  // is not waited for. With Python's and a queue's there may be more threads than cores, and the system lets one wait.
  void share(int count, Task task, void* context);
  // run() in parts: begin() starts it on the other threads and returns; the caller then takes part and calls end().
  void begin(int count, Task task, void* context);
  static void take_part(Task task, void* context);
  void end();
  void barrier();

  // The smallest piece worth a thread: `wanted`, or MACA_GRAIN, with which tests split small operands too.
  static int64_t grain(int64_t wanted);

  static int team_size();     // of the region the calling thread is in, 1 outside
  static int thread_index();  // in that region, 0 outside
  static bool in_region();    // true too where the system had no thread for a second member of the team

 private:
  static void withdraw();  // the offer to join, to workers that have not
};

// Splits [0, n) into at most one piece a thread, none smaller than `grain`, and calls f(begin, end). Runs inline
// when one piece is enough or inside another region. Of several exceptions the one of the first piece is rethrown on
// the calling thread, so that an error names the same element in every run. The split depends on the thread count: a
// result that must not (a float sum) has to cut its own fixed chunks.
template <class F> void parallel_for(int64_t n, int64_t grain, F&& f);

}  // namespace maca

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>

namespace maca {

template <class F> void parallel_for(int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  ThreadPool& pool = ThreadPool::instance();
  grain = std::max<int64_t>(ThreadPool::grain(grain), 1);
  const int64_t pieces = std::min<int64_t>(pool.threads(), (n + grain - 1) / grain);
  if (pieces <= 1 || ThreadPool::in_region()) {
    f(int64_t{0}, n);
    return;
  }
  struct Region {
    F& f;
    int64_t n, pieces;
    std::atomic<int64_t> next{0};
    std::mutex mutex{};
    int64_t failed = std::numeric_limits<int64_t>::max();  // the first piece that did
    std::exception_ptr error{};
  } region{f, n, pieces};
  const auto task = [](void* context) {
    auto& r = *static_cast<Region*>(context);
    for (int64_t i; (i = r.next.fetch_add(1, std::memory_order_relaxed)) < r.pieces;) {
      try {
        r.f(r.n * i / r.pieces, r.n * (i + 1) / r.pieces);
      } catch (...) {
        std::lock_guard lock(r.mutex);
        if (i < r.failed) r.failed = i, r.error = std::current_exception();
      }
    }
  };
  pool.share(static_cast<int>(pieces), task, &region);
  if (region.error) std::rethrow_exception(region.error);
}

}  // namespace maca
