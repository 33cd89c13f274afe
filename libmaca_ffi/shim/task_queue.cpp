#define Py_LIMITED_API 0x030a0000
#include "task_queue.h"

#include <pthread.h>

#include "runtime.h"
#include "unlocked.h"

namespace maca_shim {
namespace {
constexpr int64_t kBatch = 512;  // launches between two marks; a queued one takes 0.4 KB
}

void TaskQueue::attach(const maca_interface* interface, maca_device* device) {
  interface_ = interface;
  device_ = device;
  // A child has no queue thread: what is pending is finished before the fork, so that it finds its tensors written.
  pthread_atfork(
      [] {
        runtime().queue.making_.lock();
        runtime().queue.wait();
      },
      [] { runtime().queue.making_.unlock(); },
      [] {
        runtime().queue.stream_ = nullptr;
        runtime().queue.making_.unlock();
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
  std::lock_guard lock(making_);
  maca_stream* stream = stream_.load();
  if (!stream && interface_->stream_create(device_, 0, &stream) == MACA_OK) stream_ = stream;
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
  return stream && interface_->stream_query(device_, stream) != MACA_OK ? stream : nullptr;
}

void TaskQueue::wait() {
  if (maca_stream* stream = stream_.load(std::memory_order_acquire)) interface_->stream_synchronize(device_, stream);
}

void TaskQueue::throttle(int64_t launches) {
  if (mode() == kOff || (since_mark_ += launches) < kBatch) return;
  since_mark_ = 0;
  maca_stream* stream = pending();
  if (!stream) return;
  maca_event*& mark = marks_[next_mark_];
  next_mark_ = 1 - next_mark_;
  if (!mark && interface_->event_create(device_, &mark) != MACA_OK) {
    wait();
    return;
  }
  {
    const Unlocked unlocked(true);
    interface_->event_synchronize(device_, mark);  // of two batches ago
  }
  interface_->event_record(device_, mark, stream);
}

bool TaskQueue::take_used() {
  if (!used_.load(std::memory_order_relaxed)) return false;
  if (!pending()) used_.store(false, std::memory_order_relaxed);
  return true;
}

}  // namespace maca_shim
