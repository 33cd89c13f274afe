// The launch queue of the default stream: with a library whose default stream runs work at once, the runtime can give
// that work to a stream of the library instead, so that Python goes on while a kernel runs (MACA_TASK_QUEUE).
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "library.h"
#include "maca.h"

typedef struct _object PyObject;  // as Python.h has it

namespace maca_shim {

class TaskQueue {
 public:
  enum Mode : int { kOff, kEvery, kLong };  // launches that are queued: none, all, long ones and what follows them

  void attach(const Library* library);
  Mode mode() const { return mode_.load(std::memory_order_relaxed); }
  void set_mode(Mode mode);  // while nothing is pending
  // With the interpreter's lock: does a profiler of PyTorch run, which wants every operator to take its own time?
  bool is_profiled() const;
  void ask_whether_profiled(PyObject* function);  // that says so

  // Where the default stream's next launch goes. nullptr: it runs at once, since nothing is pending before it.
  maca_stream* next(bool is_long);
  // The queue while work of it is unfinished, else nullptr.
  maca_stream* pending() const;
  int wait();  // a status; keeps the interpreter's lock, which the queue's thread never needs
  // Called with the interpreter's lock, which it gives up meanwhile: waits for what is queued now. Other threads that
  // would queue more wait in throttle(), so a loop of launches cannot keep it waiting. A status.
  int drain();
  // Called with the interpreter's lock before `launches` more, with nothing half done: where Python is far ahead, and
  // while another thread drains the queue, waits without the lock. So a loop of launches does not fill memory with
  // them.
  void throttle(int64_t launches);
  // Has something been queued, since this was asked last, that may have failed?
  bool take_used();

 private:
  maca_stream* make();

  const Library* library_ = nullptr;
  std::atomic<Mode> mode_{kOff};
  std::atomic<maca_stream*> stream_{nullptr};  // made when it is first needed; a forked child makes its own
  std::atomic<bool> used_{false};
  std::mutex mutex_;  // held while the stream is made, and over a fork
  PyObject* profiled_ = nullptr;
  int draining_ = 0;  // threads that drain; guarded by the interpreter's lock, and changed under the mutex too
  std::condition_variable drained_;
  int64_t since_mark_ = 0;  // launches; these three are guarded by the interpreter's lock
  maca_event* marks_[2] = {};
  int next_mark_ = 0;
};

}  // namespace maca_shim
