// A base of launchers in C that need only a cache: its memory and its face to Python, in one place.
#pragma once
#include <cstring>

#include "launcher.h"

namespace maca_launcher {

// What runs a call: `launcher` is the instance, `cache` its dict. A subclass made in Python has general(args, kwargs)
// for what the cache does not know.
using RunCached = PyObject* (*)(PyObject* launcher, PyObject* cache, PyObject* args, PyObject* kwargs);

inline PyObject* run_general(PyObject* launcher, PyObject* args, PyObject* kwargs) {
  return PyObject_CallMethod(launcher, "general", "OO", args, kwargs ? kwargs : Py_None);
}

template <RunCached kRun> struct CachedCall {
  PyObject_HEAD PyObject* cache;
  int is_direct;  // no subclass has a __call__ of its own

  static inline PyTypeObject* g_type = nullptr;

  static CachedCall& of(PyObject* object) { return *reinterpret_cast<CachedCall*>(object); }

  // nullptr without an exception when `launcher` is none of this type, or a subclass that has its own __call__
  static PyObject* try_call(PyObject* launcher, PyObject* args, PyObject* kwargs, bool& is_one) {
    is_one = PyObject_TypeCheck(launcher, g_type) && of(launcher).is_direct;
    return is_one ? kRun(launcher, of(launcher).cache, args, kwargs) : nullptr;
  }

  static bool add(PyObject* module, const char* qualified_name, const char* doc) {
    PyType_Slot slots[] = {
        {Py_tp_new, reinterpret_cast<void*>(create)},
        {Py_tp_init, reinterpret_cast<void*>(initialize)},
        {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
        {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
        {Py_tp_clear, reinterpret_cast<void*>(clear)},
        {Py_tp_call, reinterpret_cast<void*>(call)},
        {Py_tp_doc, const_cast<char*>(doc)},
        {0, nullptr},
    };
    PyType_Spec spec = {qualified_name, sizeof(CachedCall), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
    g_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    const char* name = std::strrchr(qualified_name, '.') + 1;
    return g_type && PyModule_AddObjectRef(module, name, reinterpret_cast<PyObject*>(g_type)) == 0;
  }

 private:
  static PyObject* call(PyObject* self, PyObject* args, PyObject*) {
    PyObject *arguments, *options = nullptr;
    if (!PyArg_ParseTuple(args, "O!|O", &PyTuple_Type, &arguments, &options)) return nullptr;
    return kRun(self, of(self).cache, arguments, options);
  }

  static PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
    PyObject* self = allocate(type);
    if (self) of(self).is_direct = PyType_GetSlot(type, Py_tp_call) == reinterpret_cast<void*>(call);
    return self;
  }

  static int initialize(PyObject* object, PyObject* args, PyObject*) {
    PyObject* cache;
    if (!PyArg_ParseTuple(args, "O!", &PyDict_Type, &cache)) return -1;
    Ref old(of(object).cache);
    of(object).cache = Ref::borrowed(cache).release();
    return 0;
  }

  static int traverse(PyObject* object, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(of(object).cache);
    return 0;
  }

  static int clear(PyObject* object) {
    Py_CLEAR(of(object).cache);
    return 0;
  }

  static void dealloc(PyObject* object) {
    PyObject_GC_UnTrack(object);
    clear(object);
    release_memory(object);
  }
};

}  // namespace maca_launcher
