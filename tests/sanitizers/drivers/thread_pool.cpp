// The host library's thread pool, its stand-in for OpenMP, and OpenMP threads that it borrows.
#include "threads/thread_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <stdexcept>

#include "check.h"
#include "threads/borrowed_threads.h"
#include "threads/thread_team.h"

using maca::parallel_for;
using maca::ThreadPool;

extern "C" {
void GOMP_parallel(void (*task)(void*), void* context, unsigned count, unsigned flags);
void GOMP_barrier();
bool GOMP_loop_static_start(long start, long end, long step, long chunk, long* begin, long* stop);
bool GOMP_loop_static_next(long* begin, long* end);
int omp_get_num_threads();
int omp_get_thread_num();
}

namespace {

// What a region writes is read by its caller without a lock, and what the caller writes by the region.
void sum(int64_t n, int64_t grain) {
  std::vector<int64_t> numbers(static_cast<size_t>(n));
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) numbers[static_cast<size_t>(i)] = i + 1;
  });
  CHECK(std::accumulate(numbers.begin(), numbers.end(), int64_t{0}) == n * (n + 1) / 2);
}

// Regions whose caller is through before anybody has come: nobody may come later, into a frame that is gone.
void withdraw() {
  for (int i = 0; i < 20; ++i) {
    int64_t pieces[4] = {};
    parallel_for(4, 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) pieces[k] = k + i;
    });
    for (int64_t k = 0; k < 4; ++k) CHECK(pieces[k] == k + i);
  }
}

void nest() {
  std::vector<int64_t> numbers(64);
  parallel_for(8, 1, [&](int64_t begin, int64_t end) {
    parallel_for(8 * (end - begin), 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) numbers[static_cast<size_t>(8 * begin + i)] = 1;
    });
  });
  CHECK(std::accumulate(numbers.begin(), numbers.end(), int64_t{0}) == 64);
}

// Each member reads what its neighbor wrote before the barrier.
void team(int count) {
  std::vector<int> written(static_cast<size_t>(count));
  maca::on_team(count, [&](int index, int size) {
    for (int step = 1; step <= 3; ++step) {
      written[static_cast<size_t>(index)] = step;
      maca::team_barrier();
      CHECK(written[static_cast<size_t>((index + 1) % size)] == step);
      maca::team_barrier();
    }
  });
}

void fail() {
  try {
    parallel_for(8, 1, [](int64_t begin, int64_t) { throw std::runtime_error(std::to_string(begin)); });
    CHECK(false);
  } catch (const std::runtime_error& e) {
    CHECK(std::string(e.what()) == "0");
  }
}

struct Loop {
  std::vector<long> visits = std::vector<long>(100);
  long after = 0;
};
void run_loop(void* context) {
  Loop& loop = *static_cast<Loop*>(context);
  long begin, end;
  for (bool more = GOMP_loop_static_start(0, 100, 1, 0, &begin, &end); more; more = GOMP_loop_static_next(&begin, &end))
    for (long i = begin; i < end; ++i) ++loop.visits[static_cast<size_t>(i)];
  GOMP_barrier();
  if (omp_get_thread_num() == 0) loop.after = std::accumulate(loop.visits.begin(), loop.visits.end(), 0L);
}
void openmp() {
  Loop loop;
  GOMP_parallel(run_loop, &loop, 0, 0);
  CHECK(loop.after == 100 && omp_get_num_threads() == 1);
}

// In the place of libgomp, each of whose regions begins and ends its threads here.
thread_local std::vector<std::thread> t_borrowed;
thread_local int t_number = 0, t_size = 1;
const maca::OpenMp kBorrowed = {
    [](void (*task)(void*), void* context, unsigned count) {
      t_size = static_cast<int>(count);
      for (int i = 1; i < t_size; ++i)
        t_borrowed.emplace_back([=, size = t_size] {
          t_number = i;
          t_size = size;
          task(context);
        });
    },
    [] {
      for (std::thread& thread : t_borrowed) thread.join();
      t_borrowed.clear();
      t_size = 1;
    },
    [] { return t_number; },
    [] { return t_size; },
    [] { return 3; },
};
void borrow() {
  const maca::BorrowedThreads borrowed(&kBorrowed);
  sum(100, 1);
  nest();
}

void everything(int index, long turn) {
  switch ((index + turn) % 8) {
    case 0: return sum(1000, 1);
    case 1: return sum(7, 3);
    case 2: return withdraw();
    case 3: return nest();
    case 4: return team(1 + static_cast<int>(turn % 4));
    case 5: return fail();
    case 6: return openmp();
    default: std::this_thread::sleep_for(std::chrono::microseconds(turn % 3 * 800));  // workers go to sleep meanwhile
  }
}

// A child has none of the threads, and makes its own.
void fork_once() {
  const pid_t child = fork();
  if (child == 0) {
    for (int turn = 0; turn < 16; ++turn) everything(0, turn);
    std::_Exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

}  // namespace

int main() {
  ThreadPool& pool = ThreadPool::instance();
  long turns = 0;
  for (const int threads : {2, 1, 3, 8, 5}) {
    if (threads == 8) setenv("OMP_WAIT_POLICY", "PASSIVE", 1);  // workers that begin from now on sleep at once
    pool.set_threads(threads);
    for (const int callers : {1, 4}) turns += on_threads(callers, 300, everything);
  }
  turns += on_threads(3, 500, [&](int index, long turn) {
    if (index == 0) pool.set_threads(1 + static_cast<int>(turn % 6));
    everything(index, turn);
  });
  for (int i = 0; i < 20; ++i) borrow();
  for (int i = 0; i < 3; ++i) fork_once();
  std::printf("%ld turns\n", turns);
}
