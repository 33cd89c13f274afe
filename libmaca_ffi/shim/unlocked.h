#pragma once
#include <Python.h>

namespace maca_shim {

// Releases the interpreter's lock for its lifetime.
class Unlocked {
 public:
  explicit Unlocked(bool wanted) : state_(wanted ? PyEval_SaveThread() : nullptr) {}
  ~Unlocked() {
    if (state_) PyEval_RestoreThread(state_);
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace maca_shim
