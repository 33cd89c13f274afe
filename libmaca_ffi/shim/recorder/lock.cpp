// RecordedLock: a reentrant lock without the two calls of Python's own, which every call would make four times.
#include "lock.h"

#include <mutex>
#include <thread>

#include "unlocked.h"

namespace maca::recorder {
namespace {

struct Lock {
  PyObject_HEAD std::mutex* mutex;
  std::thread::id owner;  // this and `depth` are guarded by the GIL
  int depth;
};

PyTypeObject* g_type = nullptr;

Lock* as_lock(PyObject* object) { return reinterpret_cast<Lock*>(object); }

PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* object = allocate(type);
  if (object) as_lock(object)->mutex = new std::mutex;
  return object;
}

void dealloc(PyObject* object) {
  delete as_lock(object)->mutex;
  release_memory(object);
}

PyObject* enter(PyObject* object, PyObject*) {
  acquire(object);
  return Ref::borrowed(object).release();
}

PyObject* leave(PyObject* object, PyObject*) {
  if (as_lock(object)->depth == 0 || as_lock(object)->owner != std::this_thread::get_id()) {
    PyErr_SetString(PyExc_RuntimeError, "the lock is not this thread's");
    return nullptr;
  }
  release(object);
  Py_RETURN_NONE;
}

PyMethodDef g_methods[] = {
    {"__enter__", enter, METH_NOARGS, "Waits until the lock is this thread's."},
    {"__exit__", leave, METH_VARARGS, "Gives the lock back."},
    {},
};

PyType_Slot g_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_methods, g_methods},
    {Py_tp_doc, const_cast<char*>("RecordedLock()\n\nA reentrant lock, which C takes without a call of Python's.")},
    {0, nullptr},
};

PyType_Spec g_spec = {"libmaca_ffi._recorder.RecordedLock", sizeof(Lock), 0, Py_TPFLAGS_DEFAULT, g_slots};

}  // namespace

bool is_lock(PyObject* object) { return Py_TYPE(object) == g_type; }

void acquire(PyObject* object) {
  Lock* lock = as_lock(object);
  const auto me = std::this_thread::get_id();
  if (lock->depth == 0 || lock->owner != me) {
    if (!lock->mutex->try_lock()) {
      const maca_shim::Unlocked unlocked(true);  // its owner may be waiting for the GIL
      lock->mutex->lock();
    }
    lock->owner = me;
  }
  ++lock->depth;
}

void release(PyObject* object) {
  if (--as_lock(object)->depth == 0) as_lock(object)->mutex->unlock();
}

bool add_recording_lock(PyObject* module) {
  g_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_spec));
  return g_type && PyModule_AddObjectRef(module, "RecordedLock", reinterpret_cast<PyObject*>(g_type)) == 0;
}

}  // namespace maca::recorder
