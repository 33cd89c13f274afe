// What all types have in common whose instances the collector of Python goes through.
#pragma once
#include "launcher.h"

namespace maca_launcher {

// An Instance has traverse(visit, arg), clear(), of what a cycle of references can go through, and release(), of all
// that it holds.
template <class Instance> struct Collected {
  static Instance& of(PyObject* object) { return *reinterpret_cast<Instance*>(object); }

  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    return of(self).traverse(visit, arg);
  }

  static int clear(PyObject* self) {
    of(self).clear();
    return 0;
  }

  static void dealloc(PyObject* self) {
    PyObject_GC_UnTrack(self);
    of(self).release();
    release_memory(self);
  }
};

}  // namespace maca_launcher
