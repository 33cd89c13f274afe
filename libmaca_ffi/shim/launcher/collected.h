// What all types have in common whose instances the collector of Python goes through.
#pragma once
#include "launcher.h"

namespace maca_launcher {

// An Instance has traverse(visit, arg), clear(), of what a cycle of references can go through, and release(), of all
// that it holds.
template <class Instance> struct Collected {
  static Instance& of(PyObject* object) { return *reinterpret_cast<Instance*>(object); }

  static inline PyTypeObject* type = nullptr;  // when the module has it

  // Gives the module the type, which has these slots and those that the collector needs.
  static bool add(PyObject* module, const char* qualified_name, const char* doc, unsigned flags,
                  std::vector<PyType_Slot> slots) {
    slots.insert(slots.end(), {{Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                               {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                               {Py_tp_clear, reinterpret_cast<void*>(clear)},
                               {Py_tp_doc, const_cast<char*>(doc)},
                               {0, nullptr}});
    const unsigned all = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | flags;
    type = add_type(module, {qualified_name, sizeof(Instance), 0, all, slots.data()});
    return type != nullptr;
  }

 private:
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
