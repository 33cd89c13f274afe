#include "stream.h"

#include <pthread.h>

#include <atomic>

#include "float_control.h"

namespace maca {
namespace {
std::atomic<int> g_generation{0};
constexpr std::chrono::microseconds kAwake{200};
}  // namespace

int fork_generation() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++g_generation; });
  (void)registered;
  return g_generation.load(std::memory_order_relaxed);
}

Completion::~Completion() {
  if (generation != fork_generation()) (void)done_changed.release();  // destroying it would wait for a waiter
}

void Completion::finish() {
  std::lock_guard lock(mutex);
  done = true;
  when = std::chrono::steady_clock::now();
  done_changed->notify_all();
}

void Completion::wait() {
  if (generation != fork_generation()) return;
  std::unique_lock lock(mutex);
  done_changed->wait(lock, [&] { return done; });
}

bool Completion::finished() {
  if (generation != fork_generation()) return true;
  std::lock_guard lock(mutex);
  return done;
}

Stream::Stream() : generation_(fork_generation()), queue_(std::make_unique<Queue>()) {
  queue_->worker = std::thread([queue = queue_.get()] { queue->loop(); });
}

Stream::~Stream() {
  if (orphaned()) {
    (void)queue_.release();
    return;
  }
  {
    std::lock_guard lock(queue_->mutex);
    queue_->closing = true;
    queue_->arrived.notify_all();
  }
  queue_->worker.join();
}

void Stream::submit(std::function<void()> work) {
  if (orphaned()) return work();
  {
    std::lock_guard lock(queue_->mutex);
    queue_->waiting.push_back({std::move(work), float_control()});
    queue_->unfinished.fetch_add(1, std::memory_order_relaxed);
  }
  queue_->arrived.notify_one();
}

void Stream::synchronize() {
  if (orphaned()) return;
  // Waking a sleeper costs as much as many a kernel; the cores are others' meanwhile.
  for (const auto start = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - start < kAwake;) {
    if (idle()) return;
    std::this_thread::yield();
  }
  std::unique_lock lock(queue_->mutex);
  queue_->drained.wait(lock, [&] { return queue_->unfinished.load() == 0; });
}

bool Stream::idle() { return orphaned() || queue_->unfinished.load(std::memory_order_acquire) == 0; }

void Stream::Queue::loop() {
  std::unique_lock lock(mutex);
  for (;;) {
    arrived.wait(lock, [&] { return closing || !waiting.empty(); });
    if (waiting.empty()) return;
    auto work = std::move(waiting.front());
    waiting.pop_front();
    lock.unlock();
    set_float_control(work.float_control);
    work.run();
    work.run = nullptr;
    lock.lock();
    if (unfinished.fetch_sub(1, std::memory_order_release) == 1) drained.notify_all();
  }
}

}  // namespace maca
