#define Py_LIMITED_API 0x030a0000
#include "task_queue.h"

#include <pthread.h>

#include <new>

#include "runtime.h"
#include "unlocked.h"

namespace maca_shim {
namespace {
constexpr int64_t kBatch = 512;  // launches between two marks; a queued one takes 0.4 KB
}

void TaskQueue::attach(const Library* library) {
  library_ = library;
  // A child has no queue thread: what is pending is finished before the fork, so that it finds its tensors written.
  // os.fork() has drained the queue by then, without the interpreter's lock; other forks wait here.
  pthread_atfork(
      [] {
        runtime().queue.mutex_.lock();
        report(runtime().queue.wait());
      },
      [] { runtime().queue.mutex_.unlock(); },
      [] {
        TaskQueue& queue = runtime().queue;
        queue.stream_ = nullptr;
        queue.draining_ = 0;  // those threads are the parent's
        new (&queue.drained_) std::condition_variable;
        queue.mutex_.unlock();
      });
}

void TaskQueue::set_mode(Mode mode) { mode_ = mode; }

bool TaskQueue::is_profiled() const {
  PyObject* answer = profiled_ ? PyObject_CallObject(profiled_, nullptr) : nullptr;
  const bool yes = answer == Py_True;
  if (!answer) PyErr_Clear();  // nothing that a launch could answer for
  Py_XDECREF(answer);
  return yes;
}

void TaskQueue::ask_whether_profiled(PyObject* function) {
  Py_XINCREF(function);
  Py_XDECREF(profiled_);
  profiled_ = function;
}

maca_stream* TaskQueue::make() {
  std::lock_guard lock(mutex_);
  maca_stream* stream = stream_.load();
  if (!stream && library_->stream_create(0, &stream) == MACA_OK) stream_ = stream;
  return stream_.load();  // nullptr: the system has no thread for it
}

maca_stream* TaskQueue::next(bool is_long) {
  const Mode mode = this->mode();
  if (mode == kOff) return nullptr;
  maca_stream* stream = mode == kLong && !is_long ? pending() : stream_.load(std::memory_order_acquire);
  if (!stream && (mode == kEvery || is_long)) stream = make();
  if (stream) used_.store(true, std::memory_order_relaxed);
  return stream;
}

maca_stream* TaskQueue::pending() const {
  maca_stream* stream = stream_.load(std::memory_order_acquire);
  const int status = stream ? library_->stream_query(stream) : MACA_OK;
  return status == MACA_OK || status == kLost ? nullptr : stream;
}

int TaskQueue::wait() {
  maca_stream* stream = stream_.load(std::memory_order_acquire);
  return stream ? library_->stream_synchronize(stream) : MACA_OK;
}

int TaskQueue::drain() {
  if (!pending()) return MACA_OK;
  {
    std::lock_guard lock(mutex_);
    ++draining_;
  }
  since_mark_ = kBatch;  // the next launch looks whether it may go on
  int status;
  {
    const Unlocked unlocked(true);
    status = wait();
  }
  {
    std::lock_guard lock(mutex_);
    --draining_;
  }
  drained_.notify_all();
  return status;
}

void TaskQueue::throttle(int64_t launches) {
  if (mode() == kOff || (since_mark_ += launches) < kBatch) return;
  while (draining_) {
    const Unlocked unlocked(true);
    std::unique_lock lock(mutex_);
    drained_.wait(lock, [&] { return draining_ == 0; });
  }
  since_mark_ = 0;
  maca_stream* stream = pending();
  if (!stream) return;
  maca_event*& mark = marks_[next_mark_];
  next_mark_ = 1 - next_mark_;
  if (!mark && library_->event_create(0, &mark) != MACA_OK) {
    report(wait());
    return;
  }
  {
    const Unlocked unlocked(true);
    report(library_->event_synchronize(mark));  // of two batches ago
  }
  report(library_->event_record(mark, stream));
}

bool TaskQueue::take_used() {
  if (!used_.load(std::memory_order_relaxed)) return false;
  if (!pending()) used_.store(false, std::memory_order_relaxed);
  return true;
}

}  // namespace maca_shim
