#include "thread_pool.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "borrowed_threads.h"
#include "float_control.h"
#include "stream.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#define CPU_RELAX() _mm_pause()
#else
#define CPU_RELAX() std::this_thread::yield()
#endif

namespace maca {
namespace {

// A worker that just finished spins this long before it sleeps: the operators of a model come 5 to 300 us apart, those
// of a backward pass the furthest, and waking a sleeper costs 20 to 200 us on a virtual machine. Awake for 1 ms, a
// training step of a GPT took 0.94 of PyTorch's time, for 0.2 ms 1.44, for 0.04 ms 1.15; ResNet-18's inference 0.82,
// 0.76 and 1.25 (2 threads, Zen 3). libgomp, which PyTorch uses, spins for several ms, and sleeps at once when
// OMP_WAIT_POLICY says so; so do we.
std::chrono::microseconds awake() {
  const char* policy = std::getenv("OMP_WAIT_POLICY");
  const bool is_passive = policy && (policy[0] == 'P' || policy[0] == 'p');
  return std::chrono::microseconds(is_passive ? 20 : 1000);
}
// After this long it lets others run between its looks: with Python and a queue's thread there may be more threads than
// cores. A GPT's decoding took 1.23 to 1.33 of PyTorch's time without, 1.04 to 1.10 with; other models the same.
constexpr std::chrono::microseconds kAlone{20};
constexpr int kPausesPerLook = 32;  // at the clock, which costs about one pause
// Of a wait for threads that are at work: they end within microseconds, unless the system runs something else.
constexpr int kSpins = 1500;

thread_local int t_team_size = 1;
thread_local int t_thread_index = 0;
thread_local bool t_in_region = false;

struct BorrowedRegion {
  const OpenMp* threads;
  ThreadPool::Task task;
  void* context;
};
thread_local const OpenMp* t_borrowed = nullptr;
thread_local BorrowedRegion t_borrowed_region;  // of the thread that began it

// OpenMP's own threads begin a region after what the caller wrote, and end it before what the caller reads. Its library
// is not compiled for ThreadSanitizer, which has to be told.
#if defined(__SANITIZE_THREAD__)
void hand_over(BorrowedRegion* region) { __tsan_release(region); }
void take_over(BorrowedRegion* region) { __tsan_acquire(region); }
#else
void hand_over(BorrowedRegion*) {}
void take_over(BorrowedRegion*) {}
#endif

void enter_region(int size, int index) {
  t_team_size = size;
  t_thread_index = index;
  t_in_region = true;
}

void leave_region() {
  t_in_region = false;
  t_team_size = 1;
  t_thread_index = 0;
}

// On each of the threads but the one that began the region.
void run_borrowed(void* context) {
  auto* const region = static_cast<BorrowedRegion*>(context);
  take_over(region);
  enter_region(region->threads->team_size(), region->threads->thread_number());
  region->task(region->context);
  leave_region();
  hand_over(region);
}

struct Worker {
  // Twice the number of the region it may join, and one more when it has, or when it came too late.
  std::atomic<uint64_t> ticket{0};
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
  uint64_t float_control = 0;
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
      leave_region();
    });
  });
  return *g_state;
}

void work(State* s, Worker* self, int index) {
  const auto stay_awake = awake();
  uint64_t done = 0;
  for (;;) {
    int pauses = 0;
    std::chrono::steady_clock::time_point idle_since{};
    while (self->ticket.load(std::memory_order_acquire) == done) {
      if (++pauses % kPausesPerLook != 0) {
        CPU_RELAX();
        continue;
      }
      const auto now = std::chrono::steady_clock::now();
      if (pauses == kPausesPerLook) idle_since = now;
      if (now - idle_since < stay_awake) {
        if (now - idle_since > kAlone) std::this_thread::yield();
        continue;
      }
      std::unique_lock lock(self->mutex);
      self->asleep.store(true);
      self->wake.wait(lock, [&] { return self->ticket.load() != done; });
      self->asleep.store(false);
    }
    uint64_t ticket = self->ticket.load(std::memory_order_acquire);
    done = ticket | 1;
    if (ticket == done || !self->ticket.compare_exchange_strong(ticket, done)) continue;
    enter_region(s->count, index);
    set_float_control(s->float_control);
    s->task(s->context);
    leave_region();
    s->running.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace

ThreadPool& ThreadPool::instance() {
  static ThreadPool pool;
  return pool;
}

int ThreadPool::threads() const {
  return t_borrowed ? t_borrowed->max_threads() : state().limit.load(std::memory_order_relaxed);
}
void ThreadPool::set_threads(int count) { state().limit = std::max(1, count); }
int64_t ThreadPool::grain(int64_t wanted) {
  static const int64_t forced = forced_grain();
  return forced > 0 ? forced : wanted;
}

int ThreadPool::team_size() { return t_team_size; }
int ThreadPool::thread_index() { return t_thread_index; }
bool ThreadPool::in_region() { return t_in_region; }

BorrowedThreads::BorrowedThreads(const OpenMp* threads) : before_(t_borrowed), was_in_region_(t_in_region) {
  const bool can = threads && fork_generation() == 0;
  t_borrowed = can ? threads : nullptr;
  t_in_region = was_in_region_ || !can;
}

BorrowedThreads::~BorrowedThreads() {
  t_borrowed = before_;
  t_in_region = was_in_region_;
}

void ThreadPool::run(int count, Task task, void* context) {
  begin(count, task, context);
  take_part(task, context);
  end();
}

void ThreadPool::share(int count, Task task, void* context) {
  begin(count, task, context);
  take_part(task, context);
  if (!t_borrowed) withdraw();
  end();
}

void ThreadPool::withdraw() {
  State& s = *g_state;
  for (int i = 0; i < s.count - 1; ++i) {
    uint64_t offered = 2 * s.number;
    if (s.workers[static_cast<size_t>(i)]->ticket.compare_exchange_strong(offered, offered | 1))
      s.running.fetch_sub(1, std::memory_order_relaxed);
  }
}

// What a task reads through `context`, and what its lambdas captured, lies on the caller's stack. The caller's own
// share begins two cache lines further down (they are fetched in pairs): else its local variables lie beside them, and
// each write takes those lines from the other threads. Transposing 64 x 3136 bytes on two threads took a third longer.
void ThreadPool::take_part(Task task, void* context) {
  [[maybe_unused]] volatile char gap[128];
  gap[0] = 0;
  task(context);
  gap[127] = 0;
}

void ThreadPool::begin(int count, Task task, void* context) {
  if (t_borrowed) {
    t_borrowed_region = {t_borrowed, task, context};
    hand_over(&t_borrowed_region);
    t_borrowed->start(run_borrowed, &t_borrowed_region, static_cast<unsigned>(count));
    return enter_region(t_borrowed->team_size(), 0);
  }
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
  s.float_control = float_control();
  s.count = count;
  s.arrived = 0;
  s.running.store(count - 1, std::memory_order_relaxed);
  ++s.number;
  for (int i = 0; i < count - 1; ++i) {
    Worker& worker = *s.workers[static_cast<size_t>(i)];
    worker.ticket.store(2 * s.number);
    if (worker.asleep.load()) {
      std::lock_guard lock(worker.mutex);
      worker.wake.notify_one();
    }
  }
  enter_region(count, 0);
}

void ThreadPool::end() {
  if (t_borrowed) {
    t_borrowed->end();
    take_over(&t_borrowed_region);
    return leave_region();
  }
  State& s = *g_state;
  for (int spins = 0; s.running.load(std::memory_order_acquire) > 0; ++spins) {
    if (spins < kSpins)
      CPU_RELAX();
    else
      std::this_thread::yield();
  }
  leave_region();
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
