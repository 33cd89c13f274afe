// A base of launchers in C: their cache, their memory and their face to Python, in one place.
#pragma once
#include "collected.h"

namespace maca_launcher {

// What each instance has first. A subclass made in Python has general(args, kwargs) for what the cache does not know.
struct CachedCall {
  PyObject_HEAD PyObject* cache;
  int is_direct;  // no subclass has a __call__ of its own

  bool initialize(PyObject* args) {
    PyObject* given;
    return PyArg_ParseTuple(args, "O!", &PyDict_Type, &given) && keep(given);
  }
  bool keep(PyObject* given) {
    put(cache, given);
    return true;
  }
  int traverse(visitproc visit, void* arg) {
    Py_VISIT(cache);
    return 0;
  }
  void clear() { Py_CLEAR(cache); }  // of what a cycle of references can go through
  void release() { clear(); }        // of everything

  PyObject* general(PyObject* args, PyObject* kwargs) {
    return PyObject_CallMethod(object(), "general", "OO", args, kwargs ? kwargs : Py_None);
  }
  PyObject* object() { return reinterpret_cast<PyObject*>(this); }
};

// The type of a Launcher, which derives from CachedCall: it has run(args, kwargs), and initialize(args), traverse(),
// clear() and release() of its own where it keeps more than the cache.
template <class Launcher> struct CachedCallType : Collected<Launcher> {
  using Type = Collected<Launcher>;
  using Type::of;

  // nullptr when `launcher` is none of this type, or a subclass that has its own __call__
  static Run direct(PyObject* launcher) {
    if (!PyObject_TypeCheck(launcher, Type::type) || !of(launcher).is_direct) return nullptr;
    return [](PyObject* self, PyObject* args, PyObject* kwargs) { return of(self).run(args, kwargs); };
  }

  static bool add(PyObject* module, const char* qualified_name, const char* doc) {
    return Type::add(module, qualified_name, doc, Py_TPFLAGS_BASETYPE,
                     {{Py_tp_new, reinterpret_cast<void*>(create)},
                      {Py_tp_init, reinterpret_cast<void*>(initialize)},
                      {Py_tp_call, reinterpret_cast<void*>(call)}});
  }

 private:
  static PyObject* call(PyObject* self, PyObject* args, PyObject*) {
    PyObject *arguments, *options = nullptr;
    if (!PyArg_ParseTuple(args, "O!|O", &PyTuple_Type, &arguments, &options)) return nullptr;
    return of(self).run(arguments, options);
  }

  static PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
    PyObject* self = allocate(type);
    if (self) of(self).is_direct = PyType_GetSlot(type, Py_tp_call) == reinterpret_cast<void*>(call);
    return self;
  }

  static int initialize(PyObject* self, PyObject* args, PyObject*) { return of(self).initialize(args) ? 0 : -1; }
};

}  // namespace maca_launcher
