#include "thread_pool.h"

#include <pthread.h>

#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#define CPU_RELAX() _mm_pause()
#else
#define CPU_RELAX() std::this_thread::yield()
#endif

namespace maca {
namespace {

// A worker that just finished spins this many pauses (about 50 us) before it sleeps: the ops of a model come
// 5 to 30 us apart, and waking a sleeper costs 20 to 60 us on a virtual machine.
constexpr int kSpins = 1500;

thread_local int t_team_size = 1;
thread_local int t_thread_index = 0;
thread_local bool t_in_region = false;

struct Worker {
  std::atomic<uint64_t> ticket{0};  // number of the region it shall join
  std::atomic<bool> asleep{false};
  std::mutex mutex;
  std::condition_variable wake;
};

struct State {
  std::mutex region;  // one region at a time: a second caller waits its turn
  std::vector<Worker*> workers;
  std::atomic<int> limit{1};
  uint64_t number = 0;
  ThreadPool::Task task = nullptr;
  void* context = nullptr;
  int count = 1;
  std::atomic<int> running{0};
  std::atomic<int> arrived{0};
  std::atomic<int> phase{0};
};

int default_threads() {
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    const int value = std::atoi(text);
    if (value > 0) return value;
  }
  const unsigned cores = std::thread::hardware_concurrency();
  return cores > 0 ? static_cast<int>(cores) : 1;
}

int64_t forced_grain() {
  const char* text = std::getenv("MACA_GRAIN");
  return text != nullptr ? std::atoll(text) : 0;
}

// Never freed: workers may outlive static destruction, and a forked child abandons its parent's threads.
State* make_state() {
  auto* s = new State;
  s->limit = default_threads();
  return s;
}
State* g_state = nullptr;

State& state() {
  static std::once_flag once;
  std::call_once(once, [] {
    g_state = make_state();
    pthread_atfork(nullptr, nullptr, [] {
      const int limit = g_state->limit;
      g_state = make_state();
      g_state->limit = limit;
      t_team_size = 1;
      t_thread_index = 0;
      t_in_region = false;
    });
  });
  return *g_state;
}

void work(State* s, Worker* self, int index) {
  uint64_t done = 0;
  for (;;) {
    int spins = 0;
    while (self->ticket.load(std::memory_order_acquire) == done) {
      if (++spins < kSpins) {
        CPU_RELAX();
        continue;
      }
      std::unique_lock lock(self->mutex);
      self->asleep.store(true);
      self->wake.wait(lock, [&] { return self->ticket.load() != done; });
      self->asleep.store(false);
    }
    done = self->ticket.load(std::memory_order_acquire);
    t_team_size = s->count;
    t_thread_index = index;
    t_in_region = true;
    s->task(s->context);
    t_in_region = false;
    t_team_size = 1;
    t_thread_index = 0;
    s->running.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace

ThreadPool& ThreadPool::instance() {
  static ThreadPool pool;
  return pool;
}

int ThreadPool::threads() const { return state().limit.load(std::memory_order_relaxed); }
void ThreadPool::set_threads(int count) { state().limit = std::max(1, count); }
int64_t ThreadPool::grain(int64_t wanted) {
  static const int64_t forced = forced_grain();
  return forced > 0 ? forced : wanted;
}

int ThreadPool::team_size() { return t_team_size; }
int ThreadPool::thread_index() { return t_thread_index; }
bool ThreadPool::in_region() { return t_in_region; }

void ThreadPool::begin(int count, Task task, void* context) {
  State& s = state();
  s.region.lock();
  try {
    while (static_cast<int>(s.workers.size()) < count - 1) {
      auto worker = std::make_unique<Worker>();
      s.workers.reserve(s.workers.size() + 1);
      std::thread(work, &s, worker.get(), static_cast<int>(s.workers.size()) + 1).detach();
      s.workers.push_back(worker.release());
    }
  } catch (...) {  // the system has no more threads: go on with those there are
    count = static_cast<int>(s.workers.size()) + 1;
  }
  s.task = task;
  s.context = context;
  s.count = count;
  s.arrived = 0;
  s.running.store(count - 1, std::memory_order_relaxed);
  ++s.number;
  for (int i = 0; i < count - 1; ++i) {
    Worker& worker = *s.workers[static_cast<size_t>(i)];
    worker.ticket.store(s.number);
    if (worker.asleep.load()) {
      std::lock_guard lock(worker.mutex);
      worker.wake.notify_one();
    }
  }
  t_team_size = count;
  t_thread_index = 0;
  t_in_region = true;
}

void ThreadPool::end() {
  State& s = *g_state;
  for (int spins = 0; s.running.load(std::memory_order_acquire) > 0; ++spins) {
    if (spins < kSpins)
      CPU_RELAX();
    else
      std::this_thread::yield();
  }
  t_team_size = 1;
  t_in_region = false;
  s.region.unlock();
}

void ThreadPool::barrier() {
  State& s = *g_state;
  if (t_team_size <= 1) return;
  const int phase = s.phase.load(std::memory_order_acquire);
  if (s.arrived.fetch_add(1) + 1 == s.count) {
    s.arrived.store(0);
    s.phase.fetch_add(1, std::memory_order_release);
    return;
  }
  for (int spins = 0; s.phase.load(std::memory_order_acquire) == phase; ++spins) {
    if (spins < kSpins)
      CPU_RELAX();
    else
      std::this_thread::yield();
  }
}

}  // namespace maca
