#pragma once
#include <Python.h>

#include <cstdint>
#include <thread>

namespace maca_shim {

// Releases the interpreter's lock for its lifetime.
class Unlocked {
 public:
  // What is not `counted` nobody waits for: work that itself holds all memory that it uses, as a collective, which may
  // wait for what another process does next.
  explicit Unlocked(bool wanted, bool counted = true) : counted_(counted) {
    if (!wanted) return;
    count_ += counted_;
    state_ = PyEval_SaveThread();
  }
  ~Unlocked() {
    if (!state_) return;
    PyEval_RestoreThread(state_);
    count_ -= counted_;
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

  // Waits, with the lock, until no thread is inside of work that began with it: a kernel or a copy may still use memory
  // that its tensors no longer hold.
  static void wait_for_others() {
    while (count_) {
      PyThreadState* const state = PyEval_SaveThread();
      std::this_thread::yield();
      PyEval_RestoreThread(state);
    }
  }
  static void forget_others() { count_ = 0; }  // which a child process does not have

 private:
  static inline int64_t count_ = 0;  // threads that gave the lock away, changed by who has it
  bool counted_;
  PyThreadState* state_ = nullptr;
};

}  // namespace maca_shim
