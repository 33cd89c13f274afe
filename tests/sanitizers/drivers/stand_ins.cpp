// What runtime.cpp is linked with in the place of Python, OpenBLAS and most of the host library. The interpreter's lock
// is a mutex: what the runtime leaves to it without holding it is reported.
#include <Python.h>
#include <dlfcn.h>

#include <mutex>

#include "cblas.h"
#include "kernels/matmul/bfloat16_tiles.h"
#include "ways.h"

namespace {
std::mutex g_interpreter;
thread_local bool t_holds = false;
}  // namespace

extern "C" {
PyThreadState* PyEval_SaveThread() {
  t_holds = false;
  g_interpreter.unlock();
  return reinterpret_cast<PyThreadState*>(&g_interpreter);
}
void PyEval_RestoreThread(PyThreadState*) {
  g_interpreter.lock();
  t_holds = true;
}
PyGILState_STATE PyGILState_Ensure() {
  if (t_holds) return PyGILState_LOCKED;
  PyEval_RestoreThread(nullptr);
  return PyGILState_UNLOCKED;
}
void PyGILState_Release(PyGILState_STATE before) {
  if (before == PyGILState_UNLOCKED) PyEval_SaveThread();
}
PyObject* PyObject_CallObject(PyObject*, PyObject*) { return nullptr; }
PyObject* PyObject_CallFunction(PyObject*, const char*, ...) { return nullptr; }
PyObject* PyErr_Occurred() { return nullptr; }
void PyErr_Clear() {}
void PyErr_WriteUnraisable(PyObject*) {}
void _Py_Dealloc(PyObject*) {}
void Py_IncRef(PyObject*) {}
void Py_DecRef(PyObject*) {}
PyLongObject _Py_TrueStruct;

const char* scipy_openblas_get_corename() { return "none"; }

// The device library is part of the program.
void* __real_dlopen(const char* path, int mode);
void* __wrap_dlopen(const char*, int) { return __real_dlopen(nullptr, RTLD_NOW); }
}

namespace maca {
std::vector<const char*> ways_for(const Request&) { return {}; }
namespace bfloat16_tiles {
bool available() { return false; }
}  // namespace bfloat16_tiles
}  // namespace maca
